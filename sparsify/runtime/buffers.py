"""Memory that is used again: outputs and intermediates come from a pool.

In: `pool.empty((2708, 128), torch.float32)`. Out: a tensor with undefined values, in memory that an earlier
tensor no longer needs.

The first touch of fresh pages costs ten times as much as writing to pages that are there. Whether memory is
free is read from the reference count of its storage, so views, tensors saved for backward and numpy arrays
keep theirs without any call of ours.
"""

import math
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

# Smaller tensors are cheap: torch's allocator keeps their pages.
SMALLEST_BYTES: Final = 128 * 1024
LIMIT_BYTES: Final = 512 * 1024 * 1024
STEPS: Final = 8


@dataclass(slots=True)
class Block:
    """Memory of one size class.

    Attributes:
        storage: the memory; while it is free, only the pool refers to it.
        address: where the memory was at first; sharing with another process and resizing move it.
        used: when it was handed out last, counted in requests.
    """

    storage: torch.UntypedStorage
    address: int
    used: int

    def is_free(self) -> bool:
        """Whether no tensor has this memory and nobody has its storage."""
        return self.references() == _IDLE

    def is_whole(self) -> bool:
        """Whether it still is the memory that was allocated, and this process's alone."""
        return self.storage.data_ptr() == self.address

    def references(self) -> tuple[int, int]:
        """How often it is referred to from C++ and from Python; a storage is one object in Python."""
        return torch._C._storage_Use_Count(self.storage._cdata), sys.getrefcount(self.storage)


def allocate(size: int, used: int) -> Block:
    """A new block of `size` bytes."""
    storage = torch.UntypedStorage(size)
    return Block(storage, storage.data_ptr(), used)


_IDLE: Final = allocate(1, 0).references()


class Pool:
    """Hands out tensors in recycled memory; may be used by several threads at once.

    Attributes:
        limit_bytes: memory that the pool remembers at most; what it forgets lives on with its tensors.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._blocks: dict[int, list[Block]] = {}
        self._bytes = 0
        self._requests = 0
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor with undefined values."""
        size = math.prod(shape) * dtype.itemsize
        if not SMALLEST_BYTES <= size <= self.limit_bytes:
            return torch.empty(shape, dtype=dtype)
        tensor = torch.empty(0, dtype=dtype)
        # Found free and taken under one lock: nobody else can take it in between.
        with self._lock:
            tensor.set_(self._take(size_class(size)), 0, shape, row_major(shape))
        return tensor

    def clear(self) -> None:
        """Forgets all memory; what no tensor uses is returned to the system."""
        with self._lock:
            self._blocks, self._bytes = {}, 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks that the pool remembers, free or not."""
        return self._bytes

    def _take(self, size: int) -> torch.UntypedStorage:
        self._requests += 1
        for block in [block for block in self._blocks.get(size, ()) if block.is_free()]:
            if block.is_whole():
                block.used = self._requests
                return block.storage
            self._forget(size, block)
        self._make_room(size)
        made = allocate(size, self._requests)
        self._blocks.setdefault(size, []).append(made)
        self._bytes += size
        return made.storage

    def _make_room(self, size: int) -> None:
        """Forgets blocks until `size` bytes more fit: free ones first, then those handed out longest ago."""
        if self._bytes + size <= self.limit_bytes:
            return
        known = [(kind, block) for kind, blocks in self._blocks.items() for block in blocks]
        known.sort(key=lambda pair: (not pair[1].is_free(), pair[1].used))
        for kind, block in known:
            if self._bytes + size <= self.limit_bytes:
                return
            self._forget(kind, block)

    def _forget(self, size: int, block: Block) -> None:
        self._blocks[size] = [other for other in self._blocks[size] if other is not block]
        self._bytes -= size


class Slots:
    """The allocator of one call: a tensor of one dimension per output slot.

    `Slots({0: torch.int32})(0, 40)` is a tensor of 10 int32, also found as `slots.tensors[0]`.
    """

    def __init__(self, dtypes: Mapping[int, torch.dtype], pool: Pool | None = None) -> None:
        self.dtypes = dtypes
        self.pool = pool or POOL
        self.tensors: dict[int, torch.Tensor] = {}

    def __call__(self, slot: int, size: int) -> torch.Tensor:
        """The tensor of an output slot, `size` bytes long; asked again, a new one takes its place."""
        dtype = self.dtypes[slot]
        made = self.tensors[slot] = self.pool.empty((size // dtype.itemsize,), dtype)
        return made


def size_class(size: int) -> int:
    """The bytes of the block that serves `size` bytes: at most an eighth more.

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


POOL: Final = Pool()


def _release() -> None:
    """A forked process starts with a lock that nobody holds."""
    POOL._lock = threading.Lock()


os.register_at_fork(after_in_child=_release)
