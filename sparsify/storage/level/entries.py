"""Entries to be stored in a level, and their positions in the level.

In: entries sorted by level, the position of each above, the coordinates in this level. Out: `Built`: the arrays
of the level and the position of each entry.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sparsify.errors import InvalidTensorError


@dataclass(frozen=True)
class Entries:
    """Sorted entries to be stored in a level.

    Attributes:
        places: position of each entry in the level above, `None` when all are at 0.
        parents: number of positions of the level above.
        columns: coordinates of the entries in this level, then in the branchless levels right below.
        extent: number of coordinates of the level.
        name: entry -> coordinates in words, for messages.
    """

    places: Tensor | None
    parents: int
    columns: Sequence[Tensor]
    extent: int
    name: Callable[[int], str]

    @property
    def column(self) -> Tensor:
        """The coordinates in the level."""
        return self.columns[0]

    @cached_property
    def opens(self) -> Tensor | None:
        """The mask of first entries with equal coordinates, bool [n]; `None` when all are."""
        count = self.column.shape[0]
        if count == 0:
            return None
        first = torch.ones(count, dtype=torch.bool)
        changes = self.column[1:] != self.column[:-1]
        for column in self.columns[1:]:
            changes |= column[1:] != column[:-1]
        if self.places is not None:
            changes |= self.places[1:] != self.places[:-1]
        first[1:] = changes
        return None if bool(first.all()) else first

    def above(self) -> Tensor:
        """The position in the level above, of each entry that opens a new position."""
        places = torch.zeros(self.column.shape[0], dtype=torch.int64) if self.places is None else self.places
        return self._first(places)

    def coordinates(self) -> Tensor:
        """The coordinate of each entry that opens a new position."""
        return self._first(self.column)

    def numbers(self) -> Tensor:
        """The number of the opened position of each entry."""
        return torch.arange(self.column.shape[0]) if self.opens is None else self.opens.cumsum(0) - 1

    def _first(self, column: Tensor) -> Tensor:
        return column if self.opens is None else column[self.opens]


@dataclass(frozen=True, slots=True)
class Built:
    """A filled level: the position of each entry, the number of positions, and the arrays."""

    places: Tensor
    positions: int
    pos: Tensor | None = None
    crd: Tensor | None = None


def located(entries: Entries, places: Tensor, positions: int, coordinates: Tensor) -> Built:
    """Entries in a level with positions computed from coordinates.

    Args:
        coordinates: coordinates of the positions; the level cannot hold entries with different coordinates.

    Raises:
        InvalidTensorError: names the first entry without a position.
    """
    wrong = coordinates != entries.column
    if bool(wrong.any()):
        entry = int(wrong.nonzero()[0])
        raise InvalidTensorError(
            f"the entry at {entries.name(entry)} has no position in its level",
            "a level that stores any coordinate, such as compressed",
        )
    return Built(places, positions)


def compressed(entries: Entries) -> Built:
    """Segments of variable length, one position for each coordinate."""
    above = entries.above()
    pos = torch.zeros(entries.parents + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(above, minlength=entries.parents), 0, out=pos[1:])
    return Built(entries.numbers(), above.shape[0], pos, entries.coordinates())


def leading(entries: Entries) -> Built:
    """All coordinates up to the last one of each parent."""
    column = entries.column.long()
    parents = torch.zeros_like(column) if entries.places is None else entries.places.long()
    lengths = torch.zeros(entries.parents, dtype=torch.int64)
    lengths.scatter_reduce_(0, parents, column + 1, "amax")
    pos = torch.zeros(entries.parents + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=pos[1:])
    return Built(pos[parents] + column, int(pos[-1]), pos)


def single(entries: Entries) -> Built:
    """The coordinate of each position above."""
    assert entries.places is not None, "a level above lists coordinates"
    if entries.parents == entries.column.shape[0]:
        return Built(entries.places, entries.parents, None, entries.column)
    crd = torch.zeros(entries.parents, dtype=entries.column.dtype).index_copy(
        0, entries.places, entries.column
    )
    return Built(entries.places, entries.parents, None, crd)


def fixed(entries: Entries, width: int | None) -> Built:
    """`width` coordinates below each parent, the maximum over all parents for `None`; missing ones are padded.

    Padding takes the least unused coordinates below the parent; all coordinates are in order.

    Raises:
        InvalidTensorError: names the first parent with more than `width`.
    """
    above, coordinates = entries.above(), entries.coordinates().long()
    counts = torch.bincount(above, minlength=entries.parents)
    most = int(counts.max()) if entries.parents else 0
    if width is None:
        width = most
    elif most > width:
        parent = int((counts > width).nonzero()[0])
        entry = int((above == parent).nonzero()[0])
        first = entry if entries.opens is None else int(entries.opens.nonzero()[entry])
        raise InvalidTensorError(
            f"{int(counts[parent])} entries in the group of {entries.name(first)}, which holds {width}",
            "prune them first, or store them compressed",
        )
    if width > entries.extent and entries.parents:
        raise InvalidTensorError(
            f"groups of {width} distinct coordinates out of {entries.extent}", "a smaller group"
        )
    unused = torch.ones(entries.parents, width, dtype=torch.bool)
    low = coordinates < width
    unused[above[low], coordinates[low]] = False
    # Of the first `width` coordinates at least as many are free as the group lacks.
    padding = unused & (unused.cumsum(1) <= (width - counts).unsqueeze(1))
    lacking, extra = padding.nonzero(as_tuple=True)
    parents, crd = torch.cat([above, lacking]), torch.cat([coordinates, extra])
    if lacking.shape[0] == 0:
        return Built(entries.numbers(), above.shape[0], None, entries.coordinates())
    sorting = torch.argsort(crd, stable=True)
    sorting = sorting[torch.argsort(parents[sorting], stable=True)]
    places = torch.empty_like(sorting)
    places[sorting] = torch.arange(sorting.shape[0])
    return Built(places[entries.numbers()], sorting.shape[0], None, crd[sorting])
