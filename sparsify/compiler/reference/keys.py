"""Keys: coordinates of several modes as one integer each, for sorting and for searching.

In: coordinates [d, n] in a shape of any extents. Out: keys [n] in lexicographic order of the coordinates.
"""

from collections.abc import Sequence
from copy import copy
from typing import Final

import torch
from torch import Tensor

MOST: Final = 2**62


class Keys:
    """The keys of coordinates, and the encoding of further coordinates.

    If the product of the extents overflows an integer, the leading modes are replaced by their rank among the occurring
    coordinates; coordinates that do not occur have the key -1.

    Args:
        coordinates: one tensor [n] a mode.
        shape: extent of each mode.

    Attributes:
        values: keys of the coordinates, [n].
    """

    def __init__(self, coordinates: Sequence[Tensor], shape: Sequence[int]) -> None:
        self._stages: list[tuple[int, Tensor | None]] = []
        key, size = None, 1
        for column, extent in zip(coordinates, shape, strict=True):
            known = None
            if key is not None and size * extent >= MOST:
                known, key = torch.unique(key, return_inverse=True)
                size = len(known)
            self._stages.append((extent, known))
            key = column if key is None else key * extent + column
            size *= extent
        self.values = torch.zeros(1, dtype=torch.int64) if key is None else key

    def on(self, device: torch.device) -> "Keys":
        """A copy of the keys on a device."""
        found = copy(self)
        found._stages = [
            (extent, None if known is None else known.to(device)) for extent, known in self._stages
        ]
        found.values = self.values.to(device)
        return found

    def of(self, coordinates: Sequence[Tensor]) -> Tensor:
        """The keys of other coordinates, which broadcast; -1 for coordinates known not to occur."""
        if not coordinates:
            return torch.zeros((), dtype=torch.int64)
        key = coordinates[0]
        for column, (extent, known) in zip(coordinates[1:], self._stages[1:], strict=True):
            if known is not None:
                key, is_known = find(known, key)
                key = torch.where(is_known, key, -1)
                key = torch.where(key < 0, -1, key * extent + column)
            else:
                key = torch.where(key < 0, -1, key * extent + column)
        return key


def find(ordered: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of values in an ascending tensor, 0 for missing values, and the mask of present values."""
    if len(ordered) == 0:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(ordered, wanted.contiguous()).clamp_(max=len(ordered) - 1)
    is_found = ordered[place] == wanted
    return place.masked_fill_(~is_found, 0), is_found
