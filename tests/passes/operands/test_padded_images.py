"""Tests of `sparsify.passes.operands.padded_images`: memory of padded images that is kept between calls."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sparsify.passes.operands.padded_images import PaddedImages
from sparsify.passes.operands.sliding_window import Grid, Window

PADDED = Window(3, padding=1)


def zeros_around(x):
    """The images [n, c, h, w] with a border of zeros, flat."""
    return torch.nn.functional.pad(x, (1, 1, 1, 1)).flatten(1)


def test_memory_is_kept_and_its_padding_stays_zero():
    kept, grid = PaddedImages(), Grid((PADDED, PADDED), (4, 5))
    first = None
    for _ in range(3):
        x = torch.randn(2, 3, 4, 5)
        memory = kept.padded(grid, x)
        wanted = zeros_around(x)
        assert torch.equal(memory.images[:, : wanted.shape[1]], wanted)
        assert not memory.images[:, wanted.shape[1] :].any()
        assert first is None or memory.images.data_ptr() == first
        first = memory.images.data_ptr()
        memory.release()
    assert kept.held_bytes == memory.images.nbytes


def test_memory_in_use_is_not_handed_out_again():
    kept, grid = PaddedImages(), Grid((PADDED, PADDED), (4, 5))
    x, y = torch.randn(1, 3, 4, 5), torch.randn(1, 3, 4, 5)
    first, second = kept.padded(grid, x), kept.padded(grid, y)
    assert torch.equal(first.images[:, : zeros_around(x).shape[1]], zeros_around(x))
    assert torch.equal(second.images[:, : zeros_around(y).shape[1]], zeros_around(y))


def test_the_kinds_used_longest_ago_are_dropped_above_the_limit():
    kept = PaddedImages(limit_bytes=5000)

    def used(extent):
        grid = Grid((PADDED, PADDED), (extent, extent))
        memory = kept.padded(grid, torch.randn(1, 3, extent, extent))
        memory.release()
        return memory.images.data_ptr()

    first = used(4)
    for extent in (5, 6, 7, 8):
        used(extent)
        assert kept.held_bytes <= 5000
        assert used(4) == first
    used(40)
    assert kept.held_bytes <= 5000  # 40 x 40 are not kept
    assert used(4) == first


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_every_mode_of_gradients(mode):
    kept, grid = PaddedImages(), Grid((PADDED, PADDED), (4, 5))
    for made_in in (torch.inference_mode, mode):
        with made_in():
            x = torch.randn(1, 3, 4, 5, requires_grad=mode is torch.enable_grad and made_in is mode)
            memory = kept.padded(grid, x)
            assert not memory.images.requires_grad
            assert torch.equal(memory.images[:, : zeros_around(x).shape[1]], zeros_around(x))
            memory.release()


def test_threads():
    kept, grid = PaddedImages(), Grid((PADDED, Window(3, stride=2, padding=1)), (6, 7))

    def correct(seed):
        x = torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(seed))
        memory = kept.padded(grid, x)
        parts = grid.parts(memory.images, 3)
        found = all(torch.equal(part, x[read]) for part, read in parts)
        memory.release()
        return found

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(correct, range(200)))
