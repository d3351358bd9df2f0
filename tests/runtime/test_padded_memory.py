"""Tests of `sparsify.runtime.padded_memory`: rows of zeros around images, kept between calls."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sparsify.passes.operands.sliding_window import Grid, Phases, Window
from sparsify.runtime import padded_memory
from sparsify.runtime.padded_memory import Interior, PaddedMemory

PADDED = Window(3, padding=1)
GRID = Grid((PADDED, PADDED), (4, 5))


def zeros_around(x):
    """The images [n, c, h, w] with a border of zeros, flat."""
    return torch.nn.functional.pad(x, (1, 1, 1, 1)).flatten(1)


def assert_padded(rows, x):
    wanted = zeros_around(x)
    assert torch.equal(rows[:, : wanted.shape[1]], wanted)
    assert not rows[:, wanted.shape[1] :].any()


def test_memory_is_kept_and_its_padding_stays_zero():
    kept, interior = PaddedMemory(), GRID.interior(3)
    addresses = set()
    for _ in range(3):
        x = torch.randn(2, 3, 4, 5)
        rows = kept.copied(x, interior)
        assert_padded(rows, x)
        addresses.add(rows.data_ptr())
        bytes_of_rows = rows.nbytes
        del rows
        inside = kept.empty((2, 3, 4, 5), torch.float32, interior).copy_(x)
        assert_padded(kept.rows_of(inside, interior), x)
        del inside
    assert len(addresses) == 1
    assert kept.held_bytes == bytes_of_rows


def test_memory_in_use_is_not_handed_out_again():
    kept, interior = PaddedMemory(), GRID.interior(3)
    x, y = torch.randn(1, 3, 4, 5), torch.randn(1, 3, 4, 5)
    first = kept.empty(x.shape, x.dtype, interior).copy_(x)
    view = first[:, 1]
    del first
    second = kept.copied(y, interior)
    assert torch.equal(view, x[:, 1])
    assert_padded(second, y)


def test_rows_are_found_of_tensors_inside_them_alone():
    kept, interior = PaddedMemory(), Interior(200, 7, (42, 7, 1))
    inside = kept.empty((2, 3, 4, 5), torch.float32, interior).fill_(1)
    assert kept.rows_of(inside, interior).sum() == 120
    assert kept.rows_of(inside.detach(), Interior(200, 7, (42, 7, 1))) is not None
    assert kept.rows_of(inside, Interior(200, 7, (43, 7, 1))) is None
    assert kept.rows_of(inside[:1], interior) is None
    assert kept.rows_of(inside.clone(), interior) is None
    assert kept.rows_of(inside.as_strided((2, 3, 4, 5), (200, 42, 1, 7)), interior) is None


def test_a_tensor_is_copied_inside_rows_once():
    kept, interior = PaddedMemory(), GRID.interior(3)
    x = torch.randn(2, 3, 4, 5)
    inside = kept.placed_inside(x, interior)
    assert torch.equal(inside, x)
    assert kept.placed_inside(inside, interior) is inside
    assert_padded(kept.rows_of(inside, interior), x)


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 1, 1, 5), (1, 1, 1, 1)])
def test_modes_with_one_entry_may_have_any_stride(shape):
    interior = Interior(200, 8, (42, 7, 1))
    strides = [
        99 if extent == 1 else stride for extent, stride in zip(shape, interior.all_strides, strict=True)
    ]
    assert interior.holds(torch.empty(1000).as_strided(shape, strides))


def test_the_kinds_used_longest_ago_are_dropped_above_the_limit():
    kept = PaddedMemory(limit_bytes=5000)

    def used(extent):
        interior = Grid((PADDED, PADDED), (extent, extent)).interior(3)
        return kept.copied(torch.randn(1, 3, extent, extent), interior).data_ptr()

    first = used(4)
    for extent in (5, 6, 7, 8):
        used(extent)
        assert kept.held_bytes <= 5000
        assert used(4) == first
    used(40)
    assert kept.held_bytes <= 5000  # 40 x 40 are not kept
    assert used(4) == first


def test_memory_of_one_kind_is_dropped_in_any_order():
    interior = GRID.interior(3)
    kept = PaddedMemory(limit_bytes=3 * 4 * interior.length)
    held = [kept.empty((1, 3, 4, 5), torch.float32, interior) for _ in range(3)]
    del held[1]
    other = Grid((PADDED, PADDED), (5, 4)).interior(3)
    kept.empty((1, 3, 5, 4), torch.float32, other)
    assert all(kept.rows_of(tensor, interior) is not None for tensor in held)
    assert kept.held_bytes == 3 * 4 * interior.length


def test_images_on_other_devices_stay_there():
    kept, interior = PaddedMemory(), GRID.interior(3)
    images = torch.empty(2, 3, 4, 5, device="meta")
    assert kept.copied(images, interior).device == images.device
    assert kept.placed_inside(images, interior) is images
    assert kept.held_bytes == 0


def test_memory_in_use_outlives_its_place_among_the_kept():
    kept, interior = PaddedMemory(), GRID.interior(3)
    inside = kept.empty((2, 3, 4, 5), torch.float32, interior).fill_(2)
    kept.clear()
    other = kept.empty((2, 3, 4, 5), torch.float32, interior).fill_(3)
    assert (inside == 2).all()
    assert (other == 3).all()
    assert kept.rows_of(inside, interior) is None


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_every_mode_of_gradients(mode):
    kept, interior = PaddedMemory(), GRID.interior(3)
    for made_in in (torch.inference_mode, mode):
        with made_in():
            x = torch.randn(1, 3, 4, 5, requires_grad=mode is torch.enable_grad and made_in is mode)
            rows = kept.copied(x, interior)
            assert not rows.requires_grad
            assert not rows.is_inference()
            assert_padded(rows, x)


def test_no_images_take_no_memory():
    kept = PaddedMemory()
    for channels in (1, 2):
        x = torch.zeros(0, channels, 4, 5)
        assert kept.copied(x, GRID.interior(channels)).shape[0] == 0
        assert kept.empty(x.shape, x.dtype, GRID.interior(channels)).shape == x.shape
    assert not kept._kinds
    assert not kept._by_address


def test_a_failed_copy_leaves_the_memory_free():
    kept, interior = PaddedMemory(), GRID.interior(3)

    class Broken(torch.Tensor):
        def detach(self):
            raise RuntimeError("no entries")

    with pytest.raises(RuntimeError, match="no entries"):
        kept.copied(torch.randn(1, 3, 4, 5).as_subclass(Broken).requires_grad_(), interior)
    kept.copied(torch.randn(1, 3, 4, 5), interior)
    assert kept.held_bytes == interior.length * 4


def test_threads():
    kept, grid = PaddedMemory(), Grid((PADDED, Window(3, stride=2, padding=1)), (6, 7))

    def correct(seed):
        x = torch.randn(2, 3, 6, 7, generator=torch.Generator().manual_seed(seed))
        rows = kept.copied(x, Phases(grid))
        return all(torch.equal(part, x[read]) for part, read in grid.parts(rows, 3))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(correct, range(200)))


def test_the_lock_is_free_in_a_forked_process(monkeypatch):
    kept = PaddedMemory()
    monkeypatch.setattr(padded_memory, "PADDED", kept)
    with kept._lock:
        padded_memory._release()
        assert not kept._lock.locked()
