"""Convolutions with sparse kernels, against torch's on dense ones."""

import pytest
from torch.nn import functional

import sparsify
from sparsify.errors import ShapeError, UnsupportedOperatorError
from tests.ops.operands import assert_as_dense, assert_gradients, full, sparse

pytestmark = pytest.mark.filterwarnings("error")
LISTED = "dense, coordinate, coordinate, coordinate"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "function, input, weight, options",
    [
        (functional.conv1d, (2, 3, 9), (4, 3, 3), {"padding": 1}),
        (functional.conv2d, (2, 3, 7, 6), (4, 3, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
        (functional.conv2d, (3, 7, 6), (4, 3, 3, 3), {"dilation": 2, "padding": "same"}),
        (functional.conv2d, (2, 3, 7, 6), (4, 3, 3, 1), {"padding": "same", "dilation": (2, 1)}),
        (functional.conv2d, (2, 4, 5, 5), (6, 2, 1, 1), {"groups": 2}),
        (functional.conv3d, (1, 2, 4, 5, 4), (3, 2, 2, 2, 2), {"padding": "valid"}),
    ],
)
def test_convolutions(function, input, weight, options):
    bias = full(weight[0], seed=4)
    kernel = sparse(*weight, format="csf")
    with sparsify.strict():
        assert_as_dense(lambda x, w, b: function(x, w, b, **options), full(*input), kernel, bias)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients(groups):
    kernel = sparse(4, 4 // groups, 2, 2, format=LISTED)
    with sparsify.strict():
        assert_gradients(
            lambda x, w, b: functional.conv2d(x, w, b, 2, 1, groups=groups),
            full(1, 4, 4, 4),
            kernel,
            full(4, seed=4),
        )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"stride": 0}, "stride=0 of conv2d; one integer or 2, each 1 or more"),
        ({"stride": (1, 2, 3)}, r"stride=\(1, 2, 3\) of conv2d"),
        ({"dilation": 0}, "dilation=0"),
        ({"dilation": (1, -1)}, r"dilation=\(1, -1\)"),
        ({"padding": -1}, "padding=-1 of conv2d; one integer or 2, each 0 or more"),
        ({"padding": "foo"}, "padding='foo' of conv2d; 'same', 'valid' or integers"),
        ({"groups": 0}, "in 0 groups"),
    ],
)
def test_numbers_that_torch_refuses(options, message):
    with pytest.raises(RuntimeError):
        functional.conv2d(full(2, 3, 7, 7), full(4, 3, 3, 3), **options)
    with pytest.raises(ShapeError, match=message):
        functional.conv2d(full(2, 3, 7, 7), sparse(4, 3, 3, 3, format="csf"), **options)


def test_convolutions_that_cannot_be():
    kernel = sparse(4, 3, 3, 3, format="csf")
    with pytest.raises(ShapeError, match="weight \\[4, 3, 3, 3\\]"):
        functional.conv2d(full(2, 4, 7, 7), kernel)
    with pytest.raises(ShapeError, match="the kernel is larger"):
        functional.conv2d(full(2, 3, 2, 7), kernel)
    with sparsify.strict(), pytest.raises(UnsupportedOperatorError, match="sparse input"):
        functional.conv2d(sparse(2, 3, 7, 7, format="csf"), full(4, 3, 3, 3))
