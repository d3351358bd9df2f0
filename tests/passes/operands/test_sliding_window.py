"""Convolutions as products: matrices with places in flat images as columns, and the images."""

import random

import pytest
import torch

import sparsify
from sparsify.passes.operands.sliding_window import BEYOND, Grid, Window, packed_bytes, packed_format

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


def drawn(seed):
    """Windows and extents of images with one to three modes."""
    generator = random.Random(seed)
    windows = tuple(
        Window(*(generator.randint(*bounds) for bounds in ((1, 3), (1, 3), (0, 2), (1, 3))))
        for _ in range(generator.randint(1, 3))
    )
    return windows, tuple(window.reach + generator.randint(1, 7) for window in windows)


def product(grid, weight, x):
    """The sum of entries times shifted parts of images."""
    packed = sparsify.tensor(weight, packed_format(weight.shape))
    matrix, image = grid.matrix(packed), grid.padded(x)
    assert matrix.nnz == torch.count_nonzero(weight)
    assert not grid.is_ordered or matrix._vals.data_ptr() == packed._vals.data_ptr()
    beside = [*matrix._pattern.arrays(), *([] if grid.is_ordered else [matrix._vals])]
    shared = packed._pattern.pos[1].nbytes if grid.is_ordered else 0
    assert grid.extra_bytes(packed) == sum(array.nbytes for array in beside) - shared
    arrays = (packed._vals, *packed._pattern.arrays())
    assert packed_bytes(weight.shape, packed.nnz, 8) == sum(array.nbytes for array in arrays)
    assert image.shape == (len(x), grid.length(x.shape[1]))
    assert matrix.shape[1] + grid.count + (-1 if grid.is_plain else BEYOND - 1) <= image.shape[1]
    found = x.new_zeros(len(x), len(weight), grid.count)
    for row, place, value in zip(*matrix.coordinates(), matrix.values(), strict=True):
        found[:, row] += value * image[:, place : place + grid.count]
    return grid.shown(found)


@pytest.mark.parametrize("seed", range(25))
def test_products_are_convolutions(seed):
    windows, extents = drawn(seed)
    torch.manual_seed(seed)
    x = torch.randn(2, 3, *extents, dtype=torch.float64)
    weight = torch.randn(4, 3, *(window.size for window in windows), dtype=torch.float64)
    weight *= torch.rand_like(weight) < 0.5
    how = ([getattr(window, name) for window in windows] for name in ("stride", "padding", "dilation"))
    wanted = CONVOLUTIONS[len(windows) - 1](x, weight, None, *how)
    grid = Grid(windows, extents)
    assert grid.results == tuple(wanted.shape[2:])
    torch.testing.assert_close(product(grid, weight, x), wanted)


def test_images_of_pointwise_convolutions_are_not_copied():
    x = torch.randn(2, 3, 4, 5)
    grid = Grid((Window(1), Window(1)), (4, 5))
    assert grid.padded(x).data_ptr() == x.data_ptr()
    assert grid.is_whole
    assert grid.shown(grid.flat(x)).data_ptr() == x.data_ptr()


def test_strides_keep_only_what_is_read():
    grid = Grid((Window(1, stride=2), Window(1, stride=2)), (5, 6))
    x = torch.arange(30.0).view(1, 1, 5, 6)
    kept = x[:, :, ::2, ::2].reshape(1, -1)
    assert torch.equal(grid.padded(x)[:, : kept.shape[1]], kept)
