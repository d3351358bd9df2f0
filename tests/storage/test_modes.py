"""Modes of a shape, permutations and strides."""

import pytest
import torch

from sparsify.storage.modes import inverse, mode_of, strides


@pytest.mark.parametrize(("mode", "rank", "found"), [(0, 3, 0), (-1, 3, 2), (-3, 3, 0), (2, 3, 2)])
def test_mode_of(mode, rank, found):
    assert mode_of(mode, rank) == found


@pytest.mark.parametrize(
    ("mode", "error"), [(3, IndexError), (-4, IndexError), (True, TypeError), ("0", TypeError)]
)
def test_no_modes(mode, error):
    with pytest.raises(error, match=r"Dimension out of range|a mode is an integer"):
        mode_of(mode, 3)


def test_inverse():
    assert inverse((2, 0, 1)) == (1, 2, 0) and inverse(inverse((3, 1, 0, 2))) == (3, 1, 0, 2)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 5), (2, 1, 4)], ids=str)
def test_strides_equal_those_of_torch(shape):
    assert strides(shape) == list(torch.empty(shape).stride())


def test_strides_stay_within_integers():
    assert strides((2, 2**40, 2**40)) == [2**62, 2**40, 1]
