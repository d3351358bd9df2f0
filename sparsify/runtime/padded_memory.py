"""Memory of padded images, whose padding stays zero between calls.

In: `PADDED.empty((1, 16, 32, 32), torch.float32, Interior(18511, 35, (1156, 34, 1)))`. Out: a tensor with undefined
entries inside rows of zeros; `PADDED.rows_of(tensor, interior)` are the rows: images with a border of zeros for a
convolution that reads the tensor next.

The reference count of a storage shows whether the memory is free: views and tensors saved for backward keep the memory.
"""

import os
import sys
import threading
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

import torch
from torch import Tensor

from sparsify.runtime.buffers import CPU, LIMIT_BYTES

# A part of rows [n, length], and the entries of images [n, c, ...] in the part.
View = tuple[Tensor, tuple[slice, ...]]
Shape = tuple[int, ...]
Kind = tuple["RowLayout", Shape, torch.dtype]
_use_count: Final = torch._C._storage_Use_Count


class RowLayout(Protocol):
    """The layout of images [n, c, ...] in rows of zeros; hashable."""

    def row_length(self, shape: Shape) -> int:
        """The number of entries of a row, for images of a shape."""

    def views(self, rows: Tensor, shape: Shape) -> list[View]:
        """The parts of rows [n, length] that hold entries of images, with these entries."""


@dataclass(frozen=True, slots=True, eq=False)
class Interior:
    """The place of a dense tensor inside rows: `x[n, i, j]` is entry `first + strides[0] * i + strides[1] * j`.

    >>> print(Interior(18511, 35, (1156, 34, 1)))
    in rows of 18511 from 35 by 1156, 34, 1
    """

    length: int
    first: int
    strides: tuple[int, ...]

    def __hash__(self) -> int:
        return hash((self.length, self.first))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(other) is Interior and self.all_strides == other.all_strides and self.first == other.first

    def __str__(self) -> str:
        return f"in rows of {self.length} from {self.first} by {', '.join(map(str, self.strides))}"

    @property
    def all_strides(self) -> tuple[int, ...]:
        """The strides of all modes, that of rows first."""
        return (self.length, *self.strides)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor has the strides; modes with one entry may have any."""
        found = tensor.stride()
        if found == self.all_strides:
            return True
        modes = zip(found, self.all_strides, tensor.shape, strict=True)
        return all(own == wanted or extent == 1 for own, wanted, extent in modes)

    def row_length(self, shape: Shape) -> int:
        """The number of entries of a row."""
        return self.length

    def views(self, rows: Tensor, shape: Shape) -> list[View]:
        """The tensor inside rows, with all its entries."""
        return [(rows.as_strided(shape, self.all_strides, self.first), (slice(None),))]


@dataclass(slots=True, eq=False)
class Memory:
    """Rows of zeros with the images of one kind.

    Attributes:
        rows: all entries, [n, length].
        views: the parts with entries of images.
        storage: memory of the rows.
        address: address of the first part.
        idle: reference counts of the storage in C++ and in Python without a tensor outside.
        used: number of the last request that took the memory.
    """

    kind: Kind
    rows: Tensor
    views: list[View]
    storage: torch.UntypedStorage
    address: int
    idle: tuple[int, int] = (0, 0)
    used: int = 0

    def references(self) -> tuple[int, int]:
        """The reference counts of the storage in C++ and in Python."""
        return _use_count(self.storage._cdata), sys.getrefcount(self.storage)

    def is_in_place(self) -> bool:
        """Whether the storage was neither resized nor shared with another process."""
        return self.views[0][0].data_ptr() == self.address


class PaddedMemory:
    """Rows of zeros with images, kept between calls by kind; thread-safe.

    Args:
        limit_bytes: maximum memory tracked here; untracked memory lives on with its tensors.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kinds: dict[Kind, list[Memory]] = {}
        self._by_address: dict[int, Memory] = {}
        self._requests = count()

    @property
    def held_bytes(self) -> int:
        """Bytes of the tracked memory, free or not."""
        return sum(memory.rows.nbytes for memory in list(self._by_address.values()))

    def empty(self, shape: Shape, dtype: torch.dtype, interior: Interior) -> Tensor:
        """A tensor with undefined entries inside rows of zeros."""
        with self._lock:
            # Neither a view nor an inference tensor, with a version counter of its own.
            return self._free(interior, tuple(shape), dtype).views[0][0].data

    def placed_inside(self, tensor: Tensor, interior: Interior) -> Tensor:
        """A tensor inside rows of zeros: the tensor itself if it has the strides, else a copy."""
        if interior.holds(tensor) or not tensor.is_cpu:  # no kernel runs on other devices
            return tensor
        return self.empty(tensor.shape, tensor.dtype, interior).copy_(tensor.detach())

    def copied(self, images: Tensor, layout: RowLayout) -> Tensor:
        """Rows of zeros, [n, length], with the entries of images [n, c, ...]."""
        if images.is_cpu:
            with self._lock:
                memory = self._free(layout, tuple(images.shape), images.dtype)
                rows = memory.rows.data
        else:
            memory = allocated((layout, tuple(images.shape), images.dtype), images.device)
            rows = memory.rows
        read = images.detach() if images.requires_grad else images
        for part, entries in memory.views:
            part.copy_(read if part.shape == read.shape else read[entries])
        return rows

    def rows_of(self, tensor: Tensor, interior: Interior) -> Tensor | None:
        """The rows around a tensor that `empty` has made, None for any other tensor."""
        memory = self._by_address.get(tensor.data_ptr())
        if memory is None or not memory.is_in_place():
            return None
        (images, _), *_ = memory.views
        is_same = tensor.shape == images.shape and tensor.stride() == images.stride()
        is_same = is_same and tensor.dtype is images.dtype and memory.kind[0] == interior
        return memory.rows if is_same else None

    def clear(self) -> None:
        """Forgets all memory; tensors keep theirs."""
        with self._lock:
            self._kinds, self._by_address = {}, {}

    def _free(self, layout: RowLayout, shape: Shape, dtype: torch.dtype) -> Memory:
        """Memory without a tensor outside, the one used last; with the lock."""
        kind = (layout, shape, dtype)
        for memory in self._kinds.get(kind, ()):
            if memory.references() == memory.idle and memory.is_in_place():
                break
        else:
            memory = allocated(kind)
            self._track(memory)
        memory.used = next(self._requests)
        return memory

    def _track(self, memory: Memory) -> None:
        """Keeps new memory within the limit; rows without entries have no address."""
        if not 0 < memory.rows.nbytes <= self.limit_bytes:
            return
        self._make_room(memory.rows.nbytes)
        if memory.address in self._by_address:  # of memory that was resized or shared, and is elsewhere now
            self._forget(self._by_address[memory.address])
        self._kinds.setdefault(memory.kind, []).append(memory)
        self._by_address[memory.address] = memory

    def _make_room(self, needed_bytes: int) -> None:
        """Drops the memory used longest ago while the limit is exceeded: first what is free or was moved."""
        held = self.held_bytes
        if held + needed_bytes <= self.limit_bytes:
            return
        tracked = list(self._by_address.values())
        tracked.sort(key=lambda memory: (memory.references() != memory.idle, memory.used))
        for memory in tracked:
            if held + needed_bytes <= self.limit_bytes:
                break
            held -= memory.rows.nbytes
            self._forget(memory)

    def _forget(self, memory: Memory) -> None:
        """Ends the tracking of memory."""
        del self._by_address[memory.address]
        self._kinds[memory.kind].remove(memory)
        if not self._kinds[memory.kind]:
            del self._kinds[memory.kind]


def allocated(kind: Kind, device: torch.device = CPU) -> Memory:
    """New rows of zeros."""
    layout, shape, dtype = kind
    with torch.inference_mode(False), torch.no_grad():
        rows = torch.zeros(shape[0], layout.row_length(shape), dtype=dtype, device=device)
        views = layout.views(rows, shape)
    memory = Memory(kind, rows, views, rows.untyped_storage(), views[0][0].data_ptr())
    memory.idle = memory.references()
    return memory


PADDED: Final = PaddedMemory()


def _release() -> None:
    """Replaces the lock in a forked process by a free one."""
    PADDED._lock = threading.Lock()


os.register_at_fork(after_in_child=_release)
