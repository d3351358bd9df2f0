"""The pool: memory comes back when, and only when, nobody has it any more."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsify.runtime import buffers
from sparsify.runtime.buffers import Pool, Slots

ROWS, COLUMNS = 512, 128
SIZE = ROWS * COLUMNS * 4


def take(pool: Pool) -> torch.Tensor:
    return pool.empty((ROWS, COLUMNS), torch.float32)


def huge_page_flags(address: int) -> list[str]:
    """The flags of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    return []


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists() or not Path("/proc/self/smaps").exists(),
    reason="this system has no huge pages on request",
)
def test_large_blocks_ask_for_huge_pages() -> None:
    large = Pool().empty((16 * buffers.HUGE_BYTES,), torch.uint8)
    middle = large.data_ptr() + 8 * buffers.HUGE_BYTES
    assert "hg" in huge_page_flags(middle)
    large.fill_(1)


def test_memory_is_used_again() -> None:
    pool = Pool()
    first = take(pool)
    place = first.data_ptr()
    del first
    second = take(pool)
    assert second.data_ptr() == place
    assert second.shape == (ROWS, COLUMNS)
    assert second.is_contiguous()
    assert not second.requires_grad


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[3],
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.view(torch.int32),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: tensor * torch.ones(ROWS, COLUMNS, requires_grad=True),
        lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    ],
    ids=["itself", "row", "detached", "other dtype", "numpy", "storage", "saved for backward", "dlpack"],
)
def test_memory_in_use_is_left_alone(keep: Callable[[torch.Tensor], Any]) -> None:
    pool = Pool()
    first = take(pool)
    place = first.data_ptr()
    kept = keep(first)
    del first
    second = take(pool)
    assert second.data_ptr() != place
    del kept
    gc.collect()
    assert take(pool).data_ptr() == place


@pytest.mark.parametrize(
    "move",
    [lambda tensor: tensor.share_memory_(), lambda tensor: tensor.untyped_storage().resize_(8 * SIZE)],
    ids=["shared", "resized"],
)
def test_memory_that_was_moved_is_forgotten(move: Callable[[torch.Tensor], Any]) -> None:
    pool = Pool()
    first = take(pool)
    move(first)
    place = first.data_ptr()
    del first
    second = take(pool)
    assert second.data_ptr() != place
    assert second.untyped_storage().nbytes() == SIZE
    assert pool.held_bytes == SIZE


def test_other_shapes_share_memory_of_about_their_size() -> None:
    pool = Pool()
    first = take(pool)
    place = first.data_ptr()
    del first
    assert pool.empty((ROWS * COLUMNS // 2 - 1000,), torch.float64).data_ptr() == place
    assert pool.held_bytes == SIZE


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (3, 4), (buffers.SMALLEST_BYTES // 4 - 1,)])
def test_small_tensors_are_torch_s_own(shape: tuple[int, ...]) -> None:
    pool = Pool()
    made = pool.empty(shape, torch.float32)
    assert made.shape == shape
    assert pool.held_bytes == 0


def test_pool_is_bounded() -> None:
    pool = Pool(limit_bytes=3 * SIZE)
    kept = [take(pool) for _ in range(5)]
    for number, tensor in enumerate(kept):
        tensor.fill_(number)
    assert pool.held_bytes <= 3 * SIZE
    assert [tensor[0, 0].item() for tensor in kept] == [0, 1, 2, 3, 4]
    assert pool.empty((ROWS * 4, COLUMNS), torch.float32).shape == (ROWS * 4, COLUMNS)
    assert pool.held_bytes <= 3 * SIZE


def test_free_memory_is_forgotten_first() -> None:
    pool = Pool(limit_bytes=4 * SIZE)
    first, second, third = take(pool), take(pool), take(pool)
    place = first.data_ptr()
    del second, third
    fourth = pool.empty((ROWS * 2, COLUMNS), torch.float32)
    del first, fourth
    assert take(pool).data_ptr() == place


def test_many_tensors_in_use_do_not_slow_the_search() -> None:
    pool = Pool()
    kept = [take(pool) for _ in range(3 * buffers.LOOKS)]
    place = kept.pop(buffers.LOOKS).data_ptr()
    places = {take(pool).data_ptr() for _ in range(4)}
    assert place in places
    assert not places & {tensor.data_ptr() for tensor in kept}


def test_tensors_of_inference_mode_are_ordinary() -> None:
    pool = Pool()
    with torch.inference_mode():
        first = take(pool)
        del first
    second = take(pool)
    weight = torch.ones(ROWS, COLUMNS, requires_grad=True)
    (second.zero_() * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.abs().sum() == 0


def test_clear() -> None:
    pool = Pool()
    kept = take(pool).fill_(7)
    pool.clear()
    assert pool.held_bytes == 0
    assert kept.sum().item() == 7 * ROWS * COLUMNS


def test_threads_never_share_memory() -> None:
    pool = Pool()

    def work(number: int) -> bool:
        for _ in range(50):
            tensor = take(pool).fill_(number)
            if not (tensor == number).all():
                return False
        return True

    with ThreadPoolExecutor(6) as workers:
        assert all(workers.map(work, range(6)))


def test_slots_are_allocators() -> None:
    slots = Slots({2: torch.int32, 3: torch.float64}, Pool())
    assert slots(2, 40) is slots.tensors[2]
    slots(3, 80)
    assert {slot: (tensor.dtype, tensor.shape) for slot, tensor in slots.tensors.items()} == {
        2: (torch.int32, (10,)),
        3: (torch.float64, (10,)),
    }


@pytest.mark.parametrize("size", [1, 7, 8, 9, 100, 1000, 1 << 20, (1 << 20) + 1, 123_456_789])
def test_size_classes(size: int) -> None:
    block = buffers.size_class(size)
    assert size <= block <= size * 1.125
    assert buffers.size_class(block) == block
