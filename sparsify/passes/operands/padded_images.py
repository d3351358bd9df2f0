"""Padded images for convolutions, in memory whose padding is zero from call to call.

In: `memory = IMAGES.padded(grid, x)`. Out: `memory.images` [n, length], flat: `x` and zeros, until `memory.release()`.

Padding is never written, so only the entries of `x` are copied: one copy for each phase of a stride.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sparsify.passes.operands.sliding_window import Grid
from sparsify.runtime.locks import Lock

# Bytes of free memory above which that of other kinds of images is dropped.
LIMIT_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of padded images.

    Attributes:
        images: images [n, length], flat.
        parts: for each phase, the entries of images in `images`, and the same entries in `x[n, c, ...]`.
        free: the free memory of the same kind.
    """

    images: Tensor
    parts: list[tuple[Tensor, tuple[slice, ...]]]
    free: "list[Memory]"

    def release(self) -> None:
        """Leaves the memory to later calls."""
        self.free.append(self)


class PaddedImages:
    """Memory that is kept between calls, by kind of images; the kinds met first are dropped above a limit."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._lock = Lock()
        self._free: dict[Hashable, list[Memory]] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of the free memory."""
        return sum(memory.images.nbytes for free in list(self._free.values()) for memory in list(free))

    def padded(self, grid: Grid, x: Tensor) -> Memory:
        """Memory with the images x [n, c, ...], for the caller alone until it is released."""
        if grid.is_plain:
            return Memory(x.flatten(1), [], [])
        key = (grid, x.shape, x.dtype, x.device)
        free = self._free.get(key)
        try:
            memory = free.pop() if free else self._allocate(key, grid, x)
        except IndexError:  # another thread took the last one
            memory = self._allocate(key, grid, x)
        images = x.detach() if x.requires_grad else x
        for part, read in memory.parts:
            part.copy_(images if part.shape == images.shape else images[read])
        return memory

    def _allocate(self, key: Hashable, grid: Grid, x: Tensor) -> Memory:
        """New memory for images, zero."""
        with self._lock:
            while len(self._free) > 1 and self.held_bytes > self.limit_bytes:
                del self._free[next(iter(self._free))]
            free = self._free.setdefault(key, [])
        with torch.inference_mode(False), torch.no_grad():
            images = torch.zeros(len(x), grid.length(x.shape[1]), dtype=x.dtype, device=x.device)
            return Memory(images, grid.parts(images, x.shape[1]), free)


IMAGES: Final = PaddedImages()
