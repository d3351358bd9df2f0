"""Coordinates as bits, the storage of bitmap levels.

In: the coordinates 0 and 9 below the only parent, of an extent of 12. Out: two bytes, 1 and 2.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sparsify.storage.level.entries import Built, Entries

BYTE = 8


def row_bytes(extent: int) -> int:
    """The number of bytes with a bit for each coordinate."""
    return -(-extent // BYTE)


def packed(is_set: Tensor) -> Tensor:
    """Flags [parents, a multiple of 8] as bytes, int8, the first flag in the lowest bit.

    >>> packed(torch.tensor([[True, False, False, False, False, False, False, True]])).tolist()
    [-127]
    """
    weights = torch.tensor([1 << bit for bit in range(BYTE)], dtype=torch.int32)
    unsigned_bytes = (is_set.view(-1, BYTE).int() * weights).sum(1, dtype=torch.int32)
    return torch.where(unsigned_bytes > 127, unsigned_bytes - 256, unsigned_bytes).to(torch.int8)


def unpacked(words: Tensor, parents: int, extent: int) -> Tensor:
    """The flags of bytes, bool [parents, whole bytes]."""
    flags = (words.int().unsqueeze(1) >> torch.arange(BYTE)) & 1
    return flags.bool().view(parents, row_bytes(extent) * BYTE)


def coordinates(words: Tensor, extent: int) -> Tensor:
    """The coordinates of set bits, parent by parent, int64."""
    parents = words.shape[0] // row_bytes(extent) if extent else 0
    return unpacked(words, parents, extent).nonzero()[:, 1]


def bitmap(entries: "Entries") -> "Built":
    """The bits of entries, and a position for each set bit."""
    from sparsify.storage.level.entries import Built, compressed

    listed = compressed(entries)
    is_set = torch.zeros(entries.parents, row_bytes(entries.extent) * BYTE, dtype=torch.bool)
    is_set[entries.above(), entries.coordinates().long()] = True
    return Built(listed.places, listed.positions, listed.pos, packed(is_set))
