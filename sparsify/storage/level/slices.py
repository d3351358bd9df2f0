"""Slices: neighbouring parents with equally many, interleaved positions.

In: the coordinates 0, 5 below the first parent of a slice of two, 3 below the second. Out: `pos` 0, 2; `crd`
0, 3, 5, 0; the last one is padding of the second parent.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sparsify.storage.level.entries import Built, Entries


def parents_of(begins: Tensor, stride: int, positions: int) -> Tensor:
    """The parent of each position [positions], from the starts of the parents [parents + 1]."""
    counts = begins[::stride].diff()
    counts = counts.long() if counts.dtype == torch.int16 else counts  # int16 is not implemented in torch
    groups = torch.repeat_interleave(counts, output_size=positions)
    return groups if stride == 1 else groups * stride + torch.arange(positions, device=begins.device) % stride


def sliced(entries: "Entries", n: int) -> "Built":
    """Slices of `n` parents with as many positions as the fullest parent.

    Padding takes the least unused coordinates below the parent; the coordinates of each parent are in order.
    """
    from sparsify.storage.level.entries import Built

    above, coordinates = entries.above(), entries.coordinates().long()
    counts = torch.bincount(above, minlength=entries.parents)
    slots = counts.view(-1, n).amax(1) if entries.parents else counts
    pos = torch.zeros(slots.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(slots, 0, out=pos[1:])
    widths = slots.repeat_interleave(n)
    begins = widths.cumsum(0) - widths
    parents = torch.repeat_interleave(widths)
    slot = torch.arange(parents.shape[0]) - begins[parents]
    # Among the first coordinates of a parent, one per slot, at least as many are free as missing.
    free = torch.ones(parents.shape[0], dtype=torch.bool)
    low = coordinates < widths[above]
    free[begins[above[low]] + coordinates[low]] = False
    before = torch.zeros(parents.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(free, 0, out=before[1:])
    is_padding = free & (before[:-1] - before[begins][parents] < (widths - counts)[parents])
    crd = torch.cat([coordinates, slot[is_padding]])
    sorting = torch.argsort(crd, stable=True)
    sorting = sorting[torch.argsort(torch.cat([above, parents[is_padding]])[sorting], stable=True)]
    places = torch.empty_like(sorting)
    places[sorting] = (pos[parents // n] + slot) * n + parents % n
    listed = torch.empty_like(crd)
    listed[places] = crd
    return Built(places[: above.shape[0]][entries.numbers()], listed.shape[0], pos, listed)
