"""Entries on their way into a level: what a level stores of them, and where they are then.

In: entries sorted by level, the position of each above, their coordinates in this level. Out: `Built`: the arrays
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
    """Sorted entries as a level meets them.

    Attributes:
        places: the position of each entry in the level above, `None` when all are at 0.
        parents: how many positions the level above has.
        columns: the coordinates of the entries in this level, then in the branchless levels right below it.
        extent: how many coordinates the level has.
        name: entry -> its coordinates in words, for messages.
    """

    places: Tensor | None
    parents: int
    columns: Sequence[Tensor]
    extent: int
    name: Callable[[int], str]

    @property
    def column(self) -> Tensor:
        """The coordinates in this level."""
        return self.columns[0]

    @cached_property
    def opens(self) -> Tensor | None:
        """Which entries are the first with their coordinates, bool [n]; `None` when all are."""
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
        """The position above, of each entry that opens a position here."""
        places = torch.zeros(self.column.shape[0], dtype=torch.int64) if self.places is None else self.places
        return self._first(places)

    def coordinates(self) -> Tensor:
        """The coordinate of each entry that opens a position here."""
        return self._first(self.column)

    def numbers(self) -> Tensor:
        """For each entry the number of the opened position that it belongs to."""
        return torch.arange(self.column.shape[0]) if self.opens is None else self.opens.cumsum(0) - 1

    def _first(self, column: Tensor) -> Tensor:
        return column if self.opens is None else column[self.opens]


@dataclass(frozen=True, slots=True)
class Built:
    """A level that holds entries: where each of them is, how many positions there are, and its arrays."""

    places: Tensor
    positions: int
    pos: Tensor | None = None
    crd: Tensor | None = None


def located(entries: Entries, places: Tensor, positions: int, coordinates: Tensor) -> Built:
    """Entries in a level that computes positions from coordinates.

    Args:
        coordinates: those of the positions; where they differ from the entries' the level cannot hold them.

    Raises:
        InvalidTensorError: naming the first entry that cannot be held.
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
    """Segments of as many coordinates as there are, one position for each."""
    above = entries.above()
    pos = torch.zeros(entries.parents + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(above, minlength=entries.parents), 0, out=pos[1:])
    return Built(entries.numbers(), above.shape[0], pos, entries.coordinates())


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
    """`width` coordinates below each parent, the most that one has for `None`; what is missing is padded.

    Padding takes the least coordinates that are not in use below its parent; all of them stand in order.

    Raises:
        InvalidTensorError: naming the first parent with more than `width`.
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
