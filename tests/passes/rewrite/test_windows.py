"""Sums over windows: the windows of a convolution, found in its statement."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from sparsify.passes.graph.canonicalize import canonicalize
from sparsify.passes.operands.sliding_window import Window
from sparsify.passes.program.model import Refusal
from sparsify.passes.program.translate import translate
from sparsify.passes.rewrite.windows import windowed

conv1d, conv2d = torch.ops.aten.conv1d, torch.ops.aten.conv2d


def found(function, image, weight):
    graph = make_fx(function, tracing_mode="fake", pre_dispatch=True)(
        torch.randn(image), torch.randn(weight)
    ).graph
    canonicalize(graph)
    inputs, result = graph.find_nodes(op="placeholder"), graph.output_node().args[0]
    return windowed(translate(graph), result, inputs[1])


@pytest.mark.parametrize(
    ("function", "image", "weight", "windows"),
    [
        (lambda x, w: conv1d(x, w), (2, 3, 9), (4, 3, 5), (Window(5),)),
        (lambda x, w: conv1d(x, w), (3, 9), (1, 3, 5), (Window(5),)),
        (
            lambda x, w: conv2d(x, w, None, [2, 1], [1, 0], [1, 2]),
            (1, 3, 9, 9),
            (4, 3, 3, 2),
            (Window(3, 2, 1), Window(2, dilation=2)),
        ),
        (lambda x, w: conv2d(x, w), (2, 1, 9, 9), (4, 1, 1, 1), (Window(1), Window(1))),
        (
            lambda x, w: conv2d(x, w, None, [1, 1], "same"),
            (2, 3, 5, 5),
            (4, 3, 3, 1),
            (Window(3, padding=1), Window(1)),
        ),
        (
            lambda x, w: conv2d(x, w, None, [1, 1], [1, 1]),
            (2, 3, 1, 5),
            (4, 3, 3, 3),
            (Window(3, padding=1),) * 2,
        ),
        (lambda x, w: conv2d(x, w, None, [2, 2], [1, 1]), (2, 3, 2, 4), (4, 3, 3, 3), (Window(3, 2, 1),) * 2),
        (lambda x, w: torch.einsum("ncl,ocr->no", x, w), (2, 3, 9), (4, 3, 5), None),
    ],
)
def test_windows(function, image, weight, windows):
    total = found(function, image, weight)
    assert (None if total is None else total.windows) == windows


def test_more_padding_behind_images_than_before():
    with pytest.raises(Refusal, match="more behind images than before"):
        found(lambda x, w: conv1d(x, w, None, [1], "same"), (2, 3, 9), (4, 3, 4))
