"""Slices: neighbouring parents with as many positions each, which take turns.

In: the coordinates 0, 5 below the first parent of a slice of two, 3 below the second. Out: `pos` 0, 2; `crd`
0, 3, 5, 0, where the last one is padding of the second parent.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sparsify.storage.entries import Built, Entries


def parents_of(begins: Tensor, stride: int, positions: int) -> Tensor:
    """The parent of each position, int64 [positions], from where those of each parent begin [parents + 1]."""
    groups = torch.repeat_interleave(begins[::stride].diff(), output_size=positions)
    return groups if stride == 1 else groups * stride + torch.arange(positions, device=begins.device) % stride


def sliced(entries: "Entries", n: int) -> "Built":
    """Slices of `n` parents with as many positions as the fullest of them has.

    Padding takes the least coordinates that are not in use below its parent; those of each parent stand in order.
    """
    from sparsify.storage.entries import Built

    above, coordinates = entries.above(), entries.coordinates().long()
    counts = torch.bincount(above, minlength=entries.parents)
    slots = counts.view(-1, n).amax(1) if entries.parents else counts
    pos = torch.zeros(slots.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(slots, 0, out=pos[1:])
    is_entry = torch.zeros(entries.parents, entries.extent, dtype=torch.bool)
    is_entry[above, coordinates] = True
    free = ~is_entry
    is_stored = is_entry | (free & (free.cumsum(1) <= (slots.repeat_interleave(n) - counts).unsqueeze(1)))
    parents, crd = is_stored.nonzero(as_tuple=True)
    slot = is_stored.cumsum(1)[parents, crd] - 1
    places = (pos[parents // n] + slot) * n + parents % n
    listed = torch.empty_like(crd)
    listed[places] = crd
    return Built(places[is_entry[parents, crd]][entries.numbers()], listed.shape[0], pos, listed)
