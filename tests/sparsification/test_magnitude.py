"""Which entries pruning by magnitude keeps."""

import pytest
import torch

from sparsify.errors import ShapeError
from sparsify.recipe import Prune
from sparsify.sparsification.magnitude import largest, magnitude_masks

WEIGHT = torch.tensor([[4.0, -1.0, 0.5, 3.0], [-2.0, 0.1, 0.2, -5.0]])


def kept(weights: list[torch.Tensor], **how: object) -> list[list[list[int]]]:
    masks = magnitude_masks(weights, Prune(method="magnitude", **how))
    return [mask.int().tolist() for mask in masks]


def test_the_largest_stay():
    assert kept([WEIGHT], sparsity=0.5) == [[[1, 0, 0, 1], [1, 0, 0, 1]]]
    assert kept([WEIGHT], sparsity=1.0) == [[[0] * 4] * 2]
    assert kept([WEIGHT], sparsity=0.0) == [[[1] * 4] * 2]


def test_one_threshold_for_all_weights():
    small = WEIGHT / 100
    assert kept([WEIGHT, small], sparsity=0.5, scope="global") == [[[1] * 4] * 2, [[0] * 4] * 2]


@pytest.mark.parametrize(
    ("dim", "mask"),
    [
        (None, [[1, 0, 0, 1], [1, 0, 0, 1]]),
        ("in", [[1, 0, 0, 1], [1, 0, 0, 1]]),
        ("out", [[1, 1, 1, 0], [0, 0, 0, 1]]),
        (0, [[1, 1, 1, 0], [0, 0, 0, 1]]),
    ],
)
def test_groups(dim, mask):
    assert kept([WEIGHT], pattern="1:2", dim=dim) == [mask]


def test_blocks():
    assert kept([WEIGHT], sparsity=0.5, pattern={"block": [2, 1]}) == [[[1, 0, 0, 1]] * 2]
    assert kept([WEIGHT], sparsity=0.5, pattern={"block": [1, 2]}) == [[[1, 1, 0, 0], [0, 0, 1, 1]]]


def test_the_first_of_equals_stay():
    assert largest(torch.ones(4), 0.5).tolist() == [True, True, False, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_scores_of_any_dtype(dtype):
    assert largest(torch.tensor([1.0, 3.0, 2.0, 2.0], dtype=dtype), 0.5).tolist() == [
        False,
        True,
        True,
        False,
    ]


def test_what_is_not_a_number_stays():
    assert largest(torch.tensor([1.0, torch.nan, 2.0]), 0.34).tolist() == [False, True, False]


@pytest.mark.parametrize("how", [{"pattern": "1:3"}, {"sparsity": 0.5, "pattern": {"block": [3, 1]}}])
def test_what_does_not_divide(how):
    with pytest.raises(ShapeError, match="do not divide"):
        kept([WEIGHT], **how)
