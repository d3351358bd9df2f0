import pytest
import torch

from sparsify.errors import ShapeError
from tests.ops.operands import assert_as_dense, assert_gradients, sparse

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bcsr(2, 4)", "dia"])
def test_by_distance_from_the_diagonal(format):
    stored = sparse(7, 9, format=format)
    for offset in (-2, 0, 3):
        assert_as_dense(lambda a, n=offset: torch.diagonal(a, n), stored)
        assert_as_dense(lambda a, n=offset: torch.tril(a, n), stored)
        assert_as_dense(lambda a, n=offset: a.triu(n), stored)
    assert_as_dense(torch.trace, stored)
    assert_as_dense(lambda a: a.flip(0), stored)
    assert_as_dense(lambda a: torch.flip(a, (0, 1)), stored)
    assert_as_dense(lambda a: a.roll((2, -3), (0, 1)), stored)
    assert stored.tril().format == stored.format


def test_of_three_modes():
    stored = sparse(4, 5, 6, format="csf")
    assert_as_dense(lambda a: a.diagonal(1, 0, 2), stored)
    assert_as_dense(lambda a: a.tril(-1), stored)


def test_gradients():
    assert_gradients(torch.trace, sparse(4, 5))
    assert_gradients(lambda a: a.tril().flip(1), sparse(4, 5))


def test_mistakes():
    with pytest.raises(ShapeError, match="a diagonal of mode 1 with itself"):
        sparse(7, 9).diagonal(0, 1, 1)
    with pytest.raises(ShapeError, match="the trace of a tensor of 3 modes"):
        torch.trace(sparse(2, 3, 4, format="csf"))
