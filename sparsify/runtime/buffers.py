"""Memory pool for outputs and intermediates: freed blocks are recycled.

In: `pool.empty((2708, 128), torch.float32)`. Out: a tensor with undefined values, in the memory of an earlier
tensor without remaining references.

The first touch of fresh pages costs ten times as much as writing to resident pages; large blocks use
huge pages, four times cheaper. The reference count of a storage shows whether the memory is free, so views,
tensors saved for backward and numpy arrays keep their memory alive without an explicit call.
"""

import ctypes
import math
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

# Smaller tensors are cheap, because torch's allocator keeps their pages.
SMALLEST_BYTES: Final = 128 * 1024
LIMIT_BYTES: Final = 512 * 1024 * 1024
STEPS: Final = 8
# Alignment and size of a huge page.
HUGE_BYTES: Final = 2 * 1024 * 1024
CPU: Final = torch.device("cpu")
LOOKS: Final = 8
_use_count: Final = torch._C._storage_Use_Count


@dataclass(slots=True)
class Block:
    """Memory of one size class.

    Attributes:
        storage: the memory; while it is free, only the block itself refers to it.
        handle: handle of the storage in C++.
        address: first address of the memory; sharing with another process and resizing move it.
        used: number of the pool request that handed the block out last.
        template: tensor of the shape and dtype requested last.
    """

    storage: torch.UntypedStorage
    handle: int
    address: int
    used: int
    template: torch.Tensor

    def is_free(self) -> bool:
        """Whether no tensor and no other owner refers to the storage."""
        return self.references() == _IDLE

    def is_whole(self) -> bool:
        """Whether the storage still is the allocated memory, private to this process."""
        return self.storage.data_ptr() == self.address

    def references(self) -> tuple[int, int]:
        """The reference counts of the storage in C++ and in Python; a storage is one object in Python."""
        return _use_count(self.handle), sys.getrefcount(self.storage)

    def hand_out(self, shape: tuple[int, ...], dtype: torch.dtype, used: int) -> torch.Tensor:
        """New tensor in the memory of the block."""
        self.used = used
        if self.template.dtype != dtype or self.template.shape != shape:
            self.template = typed(self.storage, shape, dtype)
        # Three times as fast as torch.empty; the result has a separate version counter and is no view.
        return self.template.data


def typed(storage: torch.UntypedStorage, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor at the start of a storage, a normal tensor even in inference mode."""
    with torch.inference_mode(False):
        return torch.empty(0, dtype=dtype, device=CPU).set_(storage, 0, shape, row_major(shape))


def allocate(size: int) -> Block:
    """A new block of `size` bytes."""
    storage = torch.UntypedStorage(size, device=CPU)
    if size >= 2 * HUGE_BYTES:
        advise_huge_pages(storage.data_ptr(), size)
    return Block(storage, storage._cdata, storage.data_ptr(), 0, typed(storage, (size,), torch.uint8))


def advise_huge_pages(address: int, size: int) -> None:
    """Requests huge pages for the aligned part of a block; a no-op on systems without huge pages."""
    if _madvise is None:
        return
    first = -(-address // HUGE_BYTES) * HUGE_BYTES
    _madvise(first, (address + size - first) // HUGE_BYTES * HUGE_BYTES, mmap.MADV_HUGEPAGE)


def _find_madvise() -> Callable[[int, int, int], int] | None:
    """`madvise` of the C library, `None` on systems without huge pages on request."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes, madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return madvise


_madvise: Final = _find_madvise()


class Pool:
    """Hands out tensors in recycled memory; thread-safe.

    Attributes:
        limit_bytes: maximum memory tracked by the pool; untracked blocks live on with their tensors.
        lookers: callbacks, called whenever memory was handed out.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._blocks: dict[int, deque[Block]] = {}
        self._bytes = 0
        self._requests = 0
        self.lookers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor with undefined values."""
        size = math.prod(shape, start=dtype.itemsize)
        if not self.is_recycled(size):
            return torch.empty(shape, dtype=dtype, device=CPU)
        return self._take(size_class(size), shape, dtype)

    def _take(self, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """New tensor in a block of the given size class."""
        # Found free and handed out under one lock, so no other thread takes the block in between.
        with self._lock:
            self._requests += 1
            block = self._find(size) or self._add(size)
            result = block.hand_out(shape, dtype, self._requests)
            for look in self.lookers:
                look()
            return result

    def used_bytes(self) -> int:
        """Bytes of the blocks in use."""
        blocks_by_size = list(self._blocks.items())  # other threads may add to both
        return sum(size for size, blocks in blocks_by_size for block in list(blocks) if not block.is_free())

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is one of the pool's blocks."""
        blocks = self._blocks.get(storage.nbytes(), ())
        return any(block.handle == storage._cdata for block in list(blocks))

    def maker(self, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """Factory of tensors equal to those of `empty`, for one shape and dtype; small tensors in fewer steps."""
        size = math.prod(shape, start=dtype.itemsize)
        if self.is_recycled(size):
            return partial(self._take, size_class(size), shape, dtype)
        return partial(torch.empty_strided, shape, row_major(shape), dtype=dtype, device=CPU)

    def is_recycled(self, size: int) -> bool:
        """Whether tensors of the given size in bytes come from the pool."""
        return SMALLEST_BYTES <= size <= self.limit_bytes

    def clear(self) -> None:
        """Drops all blocks; memory without a tensor is returned to the system."""
        with self._lock:
            self._blocks, self._bytes = {}, 0

    @property
    def held_bytes(self) -> int:
        """Bytes of all tracked blocks, free or not."""
        return self._bytes

    def _find(self, size: int) -> Block | None:
        """A free block among the few least recently used ones."""
        blocks = self._blocks.get(size)
        if not blocks:
            return None
        for _ in range(min(LOOKS, len(blocks))):
            block = blocks.popleft()
            if not block.is_free():
                blocks.append(block)
            elif block.is_whole():
                blocks.append(block)
                return block
            else:
                self._bytes -= size
        return None

    def _add(self, size: int) -> Block:
        if self._bytes + size > self.limit_bytes:
            self._forget_half()
        block = allocate(size)
        self._blocks.setdefault(size, deque()).append(block)
        self._bytes += size
        return block

    def _forget_half(self) -> None:
        """Drops blocks until half of the limit is left: free blocks first, then the least recently used ones.

        Half of the limit, so that a program with more memory in use than the limit does not drop blocks at every
        request.
        """
        blocks_by_use = [(size, block) for size, queue in self._blocks.items() for block in queue]
        blocks_by_use.sort(key=lambda pair: (pair[1].is_free(), -pair[1].used))
        while blocks_by_use and self._bytes > self.limit_bytes // 2:
            size, block = blocks_by_use.pop()
            self._bytes -= size
        self._blocks = {}
        for size, block in sorted(blocks_by_use, key=lambda pair: pair[1].used):
            self._blocks.setdefault(size, deque()).append(block)


class Slots:
    """The allocator of one call: a tensor of one dimension per output slot.

    `Slots({0: torch.int32})(0, 40)` is a tensor of 10 int32, also found as `slots.tensors[0]`.
    """

    def __init__(self, dtypes: Mapping[int, torch.dtype], pool: Pool | None = None) -> None:
        self.dtypes = dtypes
        self.pool = pool or POOL
        self.tensors: dict[int, torch.Tensor] = {}

    def __call__(self, slot: int, size: int) -> torch.Tensor:
        """The tensor of an output slot, `size` bytes long; a second call replaces the tensor by a new one."""
        dtype = self.dtypes[slot]
        result = self.tensors[slot] = self.pool.empty((size // dtype.itemsize,), dtype)
        return result


def cut(arrays: tuple[torch.Tensor, ...], count: int) -> tuple[torch.Tensor, ...]:
    """The first `count` elements of arrays; copied into smaller memory if `count` is less than half of the array."""
    lengths = [array.numel() for array in arrays]
    if max(lengths) == count == min(lengths):
        return arrays
    if max(lengths) * arrays[0].itemsize < SMALLEST_BYTES > max(lengths) * arrays[-1].itemsize:
        return tuple([array.narrow(0, 0, count).clone() for array in arrays])
    views = [typed(array.untyped_storage(), (count,), array.dtype) for array in arrays]
    if 2 * count >= lengths[0]:
        return tuple(views)
    return tuple([POOL.empty((count,), array.dtype).copy_(array) for array in views])


def size_class(size: int) -> int:
    """Bytes of the block for a request of `size` bytes: at most an eighth more.

    >>> size_class(1024), size_class(1025)
    (1024, 1152)
    """
    step = max(1, (1 << size.bit_length()) // (2 * STEPS))
    return -(-size // step) * step


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides = []
    stride = 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= max(1, extent)
    return tuple(reversed(strides))


# The reference counts of an idle block.
_IDLE: Final = allocate(1).references()
POOL: Final = Pool()


def _release() -> None:
    """Replaces the lock in a forked process by a free one."""
    POOL._lock = threading.Lock()


os.register_at_fork(after_in_child=_release)
