"""Tests of `sparsify.passes.dynamo.pieces`: the pieces of a model that no single graph holds."""

from types import SimpleNamespace

import pytest

from sparsify.errors import CaptureError
from sparsify.passes.capture.draft import Notices
from sparsify.passes.dynamo.pieces import Piece


class WithoutGraph:
    """A piece of a folder, for calls without a graph."""

    def __init__(self):
        self._notices = Notices("Model")

    def __call__(self, *args):
        raise CaptureError("Model has no graph for 3 rows")


def test_calls_without_a_graph_run_by_operators_with_one_warning(recwarn):
    piece = SimpleNamespace(inputs=[1], graph=lambda *args: sum(args))
    run = Piece.kernels(piece, WithoutGraph())
    with pytest.warns(
        RuntimeWarning, match="Model: a piece runs by its own operators: Model has no graph for 3 rows"
    ):
        assert run(1, 2) == 3
    assert run(2, 3) == 5
    assert not recwarn
