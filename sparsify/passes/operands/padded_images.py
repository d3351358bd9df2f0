"""Padded images for convolutions, in memory whose padding is zero from call to call.

In: `memory = IMAGES.padded(grid, x)`. Out: `memory.images` [n, length], flat: `x` and zeros, until `memory.release()`.

Padding is never written, so only the entries of `x` are copied: one copy for each phase of a stride.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import Final

import torch
from torch import Tensor

from sparsify.passes.operands.sliding_window import Grid
from sparsify.runtime.locks import Lock

# Bytes of free memory that are kept.
LIMIT_BYTES: Final = 128 * 1024 * 1024


@dataclass(slots=True)
class Kind:
    """The free memory of one kind of images, and the number of the request that used it last."""

    free: "list[Memory]"
    used: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of padded images.

    Attributes:
        images: images [n, length], flat.
        parts: for each phase, the entries of images in `images`, and the same entries in `x[n, c, ...]`.
        free: the free memory of the same kind; None for memory that is not kept.
    """

    images: Tensor
    parts: list[tuple[Tensor, tuple[slice, ...]]]
    free: "list[Memory] | None"

    def release(self) -> None:
        """Leaves the memory to later calls."""
        if self.free is not None:
            self.free.append(self)


class PaddedImages:
    """Memory that is kept between calls, by kind of images; the kinds used longest ago are dropped above a limit."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._lock = Lock()
        self._kinds: dict[Hashable, Kind] = {}
        self._requests = count()

    @property
    def held_bytes(self) -> int:
        """Bytes of the free memory."""
        return sum(memory.images.nbytes for kind in list(self._kinds.values()) for memory in list(kind.free))

    def padded(self, grid: Grid, x: Tensor) -> Memory:
        """Memory with the images x [n, c, ...], for the caller alone until it is released."""
        if grid.is_plain:
            return Memory(x.flatten(1), [], None)
        key = (grid, x.shape, x.dtype, x.device)
        kind = self._kinds.get(key)
        try:
            memory = kind.free.pop() if kind is not None else self._allocate(key, grid, x)
        except IndexError:  # none is free, or another thread took the last one
            memory = self._allocate(key, grid, x)
        if kind is not None:
            kind.used = next(self._requests)
        images = x.detach() if x.requires_grad else x
        for part, read in memory.parts:
            part.copy_(images if part.shape == images.shape else images[read])
        return memory

    def _allocate(self, key: Hashable, grid: Grid, x: Tensor) -> Memory:
        """New memory for images, zero; memory above the limit is not kept."""
        with torch.inference_mode(False), torch.no_grad():
            images = torch.zeros(len(x), grid.length(x.shape[1]), dtype=x.dtype, device=x.device)
            parts = grid.parts(images, x.shape[1])
        if images.nbytes > self.limit_bytes:
            return Memory(images, parts, None)
        with self._lock:
            kind = self._kinds.setdefault(key, Kind([]))
            kind.used = next(self._requests)
            by_use = sorted(self._kinds, key=lambda one: self._kinds[one].used)
            while self.held_bytes + images.nbytes > self.limit_bytes and by_use[0] != key:
                del self._kinds[by_use.pop(0)]
        return Memory(images, parts, kind.free)


IMAGES: Final = PaddedImages()
