"""Parts of attention patterns: a band, global tokens, blocks of a grid.

In: queries `i` and keys `j`, tensors that broadcast. Out: for each pair whether the part keeps the pair, and for a
cell of pairs whether any may be kept; pairs are evaluated one by one only in cells with possibly kept pairs.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Cells:
    """Rectangles of pairs: queries `first_row <= i < end_row`, keys `first_column <= j < end_column`."""

    first_row: Tensor
    end_row: Tensor
    first_column: Tensor
    end_column: Tensor


class Part(Protocol):
    """Some pairs of a query and a key."""

    def keeps(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether query `i` attends to key `j`."""

    def may_keep(self, cells: Cells) -> Tensor:
        """Whether a cell may hold a kept pair; false only for cells without any."""


@dataclass(frozen=True, slots=True)
class Band:
    """`low <= j - i <= high`, and `j - i` a multiple of `step`."""

    low: int
    high: int
    step: int = 1

    def keeps(self, i: Tensor, j: Tensor) -> Tensor:
        """Membership by the distance to the diagonal."""
        distance = j - i
        inside = (distance >= self.low) & (distance <= self.high)
        return inside if self.step == 1 else inside & (distance % self.step == 0)

    def may_keep(self, cells: Cells) -> Tensor:
        """Bound by the distances of the cell's corners."""
        nearest_above = cells.end_column - 1 - cells.first_row
        nearest_below = cells.first_column - (cells.end_row - 1)
        return (nearest_above >= self.low) & (nearest_below <= self.high)


@dataclass(frozen=True, slots=True)
class SameSegment:
    """`i / size == j / size`: the segments of a text attend to themselves."""

    size: int

    def keeps(self, i: Tensor, j: Tensor) -> Tensor:
        """Membership by equal segments."""
        return i // self.size == j // self.size

    def may_keep(self, cells: Cells) -> Tensor:
        """Bound by the first and the last segment of the cell."""
        first_row, last_row = cells.first_row // self.size, (cells.end_row - 1) // self.size
        first_column, last_column = cells.first_column // self.size, (cells.end_column - 1) // self.size
        return (first_row <= last_column) & (first_column <= last_row)


@dataclass(frozen=True, slots=True)
class LastOfSegment:
    """`j % size >= size - count`: the last keys of each segment, attended to by all queries."""

    size: int
    count: int

    def keeps(self, i: Tensor, j: Tensor) -> Tensor:
        """Membership by the place of the key in its segment."""
        return (j % self.size >= self.size - self.count).expand(torch.broadcast_shapes(i.shape, j.shape))

    def may_keep(self, cells: Cells) -> Tensor:
        """Bound by the place of the cell's last key, or by a segment end inside the cell."""
        last = cells.end_column - 1
        ends_inside = last // self.size > cells.first_column // self.size
        return (last % self.size >= self.size - self.count) | ends_inside


@dataclass(frozen=True, slots=True)
class Tokens:
    """Global tokens, attending to all and attended to by all: `rows[i] or columns[j]`."""

    rows: Tensor
    columns: Tensor

    def keeps(self, i: Tensor, j: Tensor) -> Tensor:
        """Membership by the query or the key."""
        return self.rows[i] | self.columns[j]

    def may_keep(self, cells: Cells) -> Tensor:
        """Bound by the global tokens in the cell."""
        return _any_in(self.rows, cells.first_row, cells.end_row) | _any_in(
            self.columns, cells.first_column, cells.end_column
        )


@dataclass(frozen=True, slots=True)
class Grid:
    """`blocks[i / size, j / size]`: whole blocks."""

    blocks: Tensor
    size: int

    def keeps(self, i: Tensor, j: Tensor) -> Tensor:
        """Membership by the block."""
        return self.blocks[i // self.size, j // self.size]

    def may_keep(self, cells: Cells) -> Tensor:
        """Bound by the kept blocks touching the cell."""
        rows, columns = self.blocks.shape
        count = torch.zeros(rows + 1, columns + 1, dtype=torch.int64)
        count[1:, 1:] = self.blocks.long().cumsum(0).cumsum(1)
        first, end = cells.first_row // self.size, (cells.end_row - 1) // self.size + 1
        left, right = cells.first_column // self.size, (cells.end_column - 1) // self.size + 1
        count_inside = count[end, right] - count[first, right] - count[end, left] + count[first, left]
        return count_inside > 0


def _any_in(chosen: Tensor, first: Tensor, end: Tensor) -> Tensor:
    """Whether any of `chosen[first:end]` is true."""
    count = torch.zeros(len(chosen) + 1, dtype=torch.int64)
    count[1:] = chosen.long().cumsum(0)
    return count[end] > count[first]
