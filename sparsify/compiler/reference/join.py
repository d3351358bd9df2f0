"""Joins: the intersection of the stored points of several sparse tensors.

In: `A[i,j]` and `B[j,k]`. Out: all (i, j, k) with an entry of A at (i, j) and one of B at (j, k), part by part.

Shared index variables are join keys; of the index variables of an affine index, all but one range over their extents,
and the last is solved for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.affine import Affine, affine
from sparsify.compiler.einsum.nodes import Expr
from sparsify.compiler.reference.keys import Keys

# Most points of a part of a join.
MOST_JOINED: Final = 2**16
Column = str | Expr


@dataclass(frozen=True, slots=True)
class Table:
    """Points by the coordinates of their index variables, each [n].

    The column of an access, `A[i,j]`, holds the index of each point among the entries of the tensor.
    """

    columns: Mapping[Column, Tensor]
    count: int

    def select(self, rows: Tensor) -> "Table":
        """The points in the given rows."""
        columns = {name: column.index_select(0, rows) for name, column in self.columns.items()}
        return Table(columns, len(rows))

    def part(self, start: int, stop: int) -> "Table":
        """The points in a range of rows."""
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return Table(columns, min(stop, self.count) - start)


def table(leaf: Expr, indices: Sequence[Expr], coordinates: Tensor, extents: Mapping[str, int]) -> Table:
    """The points at which a tensor with entries at these coordinates, read at `indices`, is stored."""
    count = coordinates.shape[1]
    first: dict[Column, Tensor] = {leaf: torch.arange(count, device=coordinates.device)}
    found = Table(first, count)
    columns = list(coordinates)
    for mode, index in enumerate(indices):
        form = affine(index)
        assert form is not None, "programs have affine indices"
        unbound = [name for name in form.names if name not in found.columns]
        for name in unbound[1:]:
            rows = torch.arange(found.count, device=coordinates.device).repeat_interleave(extents[name])
            values = torch.arange(extents[name], device=coordinates.device).repeat(found.count)
            found = found.select(rows)
            found = Table({**found.columns, name: values}, found.count)
            columns = [column.index_select(0, rows) for column in columns]
        kept, solved = _solved(form, unbound[:1], columns[mode], found, extents)
        if kept is not None:
            rows = kept.nonzero().squeeze(1)
            found = found.select(rows)
            columns = [column.index_select(0, rows) for column in columns]
            solved = {name: column.index_select(0, rows) for name, column in solved.items()}
        found = Table({**found.columns, **solved}, found.count)
    return found


def _solved(
    form: Affine, unbound: list[str], column: Tensor, known: Table, extents: Mapping[str, int]
) -> tuple[Tensor | None, dict[Column, Tensor]]:
    """The mask of points with this coordinate, `None`: all; and the coordinates of the solved index variable."""
    total = column * form.divisor - form.offset
    for name, factor in form.extents:
        total = total - factor * extents[name]
    for name, factor in form.terms:
        if name not in unbound:
            total = total - factor * known.columns[name]
    if not unbound:
        return total == 0, {}
    (name,) = unbound
    factor = dict(form.terms)[name]
    if factor == 1 and len(form.terms) == 1 and form.divisor == 1 and not form.offset and not form.extents:
        kept = total < extents[name]
        return None if bool(kept.all()) else kept, {name: total}
    value = torch.div(total, factor, rounding_mode="floor")
    return (value * factor == total) & (value >= 0) & (value < extents[name]), {name: value}


class Sorted:
    """The build side of a join: a table sorted by the shared index variables.

    Args:
        table: points.
        shared: shared index variables, the join keys.
    """

    def __init__(self, table: Table, shared: Sequence[str], extents: Mapping[str, int]) -> None:
        self.table, self.shared = table, shared
        self._keys = Keys([table.columns[name] for name in shared], [extents[name] for name in shared])
        self.order = (
            self._keys.values.argsort()
            if shared
            else torch.arange(table.count, device=self._keys.values.device)
        )
        self._ordered = self._keys.values[self.order] if shared else self._keys.values

    def matches(self, points: Table) -> tuple[Tensor, Tensor]:
        """For each point the first matching index in `order`, and the number of matches."""
        if not self.shared:
            none = torch.zeros(points.count, dtype=torch.int64, device=self.order.device)
            return none, none + self.table.count
        wanted = self._keys.of([points.columns[name] for name in self.shared])
        first = torch.searchsorted(self._ordered, wanted)
        return first, torch.searchsorted(self._ordered, wanted, right=True) - first


def joined(tables: Sequence[Table], extents: Mapping[str, int]) -> Iterator[Table]:
    """The join of all tables, in parts."""
    first, *others = sorted(tables, key=lambda one: one.count)
    ordered: list[Sorted] = []
    names = _names(first)
    while others:
        at = next((n for n, one in enumerate(others) if not _names(one).isdisjoint(names)), 0)
        other = others.pop(at)
        ordered.append(Sorted(other, sorted(names & _names(other)), extents))
        names |= _names(other)
    yield from _join(first, ordered)


def _names(table: Table) -> set[str]:
    return {name for name in table.columns if isinstance(name, str)}


def _join(points: Table, others: Sequence[Sorted]) -> Iterator[Table]:
    """The points joined with each of the others in turn; points with too many results are split beforehand."""
    if not others:
        for start in range(0, points.count, MOST_JOINED):
            yield points.part(start, start + MOST_JOINED)
        return
    other = others[0]
    first, counts = other.matches(points)
    ends = counts.cumsum(0)
    start = 0
    while start < points.count:
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(torch.searchsorted(ends, done + MOST_JOINED, right=True)))
        many = counts[start:stop]
        rows = torch.arange(stop - start, device=many.device).repeat_interleave(many)
        places = torch.arange(len(rows), device=many.device) - (many.cumsum(0) - many).index_select(0, rows)
        found = other.table.select(other.order[first[start:stop].index_select(0, rows) + places])
        part = points.part(start, stop).select(rows)
        yield from _join(Table({**found.columns, **part.columns}, part.count), others[1:])
        start = stop
