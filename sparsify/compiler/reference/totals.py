"""Totals: accumulation of the parts of a reduction, for dense and for sparse results.

In: partial sums at points of `i` and all `k`. Out: the sums over `i` and `k`, dense, or the visited entries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.ir.dtypes import Kind
from sparsify.compiler.reference.fold import Partial, combined, identity, repeated, scatter
from sparsify.compiler.reference.grid import Grid, Mask, computed_dtype
from sparsify.compiler.reference.keys import Keys
from sparsify.compiler.reference.space import Space
from sparsify.compiler.reference.stored import DenseValues, Entries
from sparsify.storage.fill import decided

# Most pending entries before entries of equal coordinates are combined.
MOST_WAITING: Final = 2**23


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction in progress.

    Attributes:
        monoid: result of `fold.operation`.
        kind: kind of the values.
        fill: common value of the unvisited points, all fill entries; `None`: all points are visited.
        points: number of points of each total.
        is_tracked: whether to compute the mask of totals that are fill entries.
        device: device of the values.
    """

    monoid: str
    kind: Kind
    fill: Grid | None
    points: int
    is_tracked: bool
    device: torch.device

    @property
    def counts(self) -> bool:
        """Whether visited points are counted: unvisited ones change a total."""
        if self.fill is None:
            return False
        hit, _ = decided(MONOIDS[self.monoid].combine, 0, self.fill.values)
        return bool(hit) or bool(self.fill.values != identity(self.monoid, self.kind))


class Rows:
    """Rows of totals, with their masks of fill entries and counts of visited points."""

    def __init__(self, reduction: Reduction, shape: Sequence[int]) -> None:
        self.reduction = reduction
        kind, device = reduction.kind, reduction.device
        neutral = identity(reduction.monoid, kind)
        self.values = torch.full(tuple(shape), neutral, dtype=computed_dtype(kind), device=device)
        self.is_stored = (
            torch.zeros(tuple(shape), dtype=torch.bool, device=device) if reduction.is_tracked else None
        )
        self.met = torch.zeros(tuple(shape), dtype=torch.int64, device=device) if reduction.counts else None
        self.ended: Mask = None
        self.ends: Tensor | None = None

    def add(
        self, index: Tensor, part: Partial, met: Tensor, narrowed: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        """Combines a part with the rows `index`.

        Args:
            part: partial result [rows, other axes].
            met: number of points of each entry, broadcasting.
            narrowed: axis, start and length of each axis that the part covers partially.
        """

        def view(total: Tensor) -> Tensor:
            for axis, start, length in narrowed:
                total = total.narrow(axis, start, length)
            return total

        kind = self.reduction.kind
        total = view(self.values)
        shape = (len(index), *total.shape[1:])
        scatter(self.reduction.monoid, total, index, part.values.expand(shape), kind)
        if self.is_stored is not None:
            stored = torch.tensor(True, device=index.device) if part.is_fill is None else ~part.is_fill
            scatter("or", view(self.is_stored), index, stored.expand(shape), kind)
        if self.met is not None:
            view(self.met).index_add_(0, index, met.expand(shape))
        if part.ended is not None and part.ends is not None:
            if self.ended is None or self.ends is None:
                self.ended = torch.zeros_like(self.values, dtype=torch.bool)
                self.ends = torch.zeros_like(self.values)
            at = part.ended.expand(shape).nonzero(as_tuple=True)
            place = (index[at[0]], *at[1:])
            view(self.ended)[place] = True
            view(self.ends)[place] = part.ends.expand(shape)[at]

    def partial(self) -> Partial:
        """The totals without the unvisited points."""
        is_fill = None if self.is_stored is None else ~self.is_stored
        if self.reduction.points == 0 and MONOIDS[self.reduction.monoid].neutral != 0:
            is_fill = (
                None  # an empty sum equals a sum of fill entries; other empty reductions are no fill entries
            )
        return Partial(self.values, is_fill, self.ended, self.ends)

    def grid(self) -> Grid:
        """The totals, including the unvisited points, all fill entries of one value."""
        reduction = self.reduction
        if self.met is not None and reduction.fill is not None:
            left, value = reduction.points - self.met, reduction.fill.values.to(self.values.device)
            more = repeated(reduction.monoid, value, left, reduction.kind)
            self.values = combined(reduction.monoid, self.values, more, reduction.kind)
            hit, ends = decided(MONOIDS[reduction.monoid].combine, 0, value)
            if bool(hit):
                ended = left > 0
                ends = torch.as_tensor(ends).to(self.values.dtype).expand_as(self.values)
                if self.ended is not None and self.ends is not None:
                    ends, ended = torch.where(self.ended, self.ends, ends), ended | self.ended
                self.ended, self.ends = ended, ends
        return self.partial().grid(reduction.kind)


class DenseTotals:
    """Totals of all coordinates.

    Args:
        names: index variables of the totals, in the order of the modes of the result.
        bound: index variables bound by points, flattened into the rows.
    """

    def __init__(
        self, reduction: Reduction, names: Sequence[str], bound: Sequence[str], extents: Mapping[str, int]
    ) -> None:
        self.names, self.extents = names, extents
        self.bound = [name for name in names if name in bound]
        self.free = [name for name in names if name not in bound]
        rows = prod(extents[name] for name in self.bound)
        self.rows = Rows(reduction, (rows, *(extents[name] for name in self.free)))

    def add(self, space: Space, part: Partial, met: Tensor) -> None:
        """Combines a part over the axes of a space; its other axes are those of `free` in order."""
        index = torch.zeros(1 if space.count is None else space.count, dtype=torch.int64, device=space.device)
        for name in self.bound:
            index = index * self.extents[name] + space.points[name]
        narrowed = []
        for axis, name in enumerate(self.free, 1):
            ends = space.ranges[name]
            if len(ends) < self.extents[name]:
                narrowed.append((axis, ends.start, len(ends)))
        self.rows.add(index, part, met, narrowed)

    def result(self, fill: float | int | bool = 0) -> DenseValues:
        """All totals."""
        grid = self.rows.grid()
        order = [*self.bound, *self.free]
        shape = [self.extents[name] for name in order]
        places = [order.index(name) for name in self.names]

        def laid_out(found: Tensor) -> Tensor:
            return found.expand(self.rows.values.shape).reshape(shape).permute(places).contiguous()

        is_fill = None if grid.is_fill is None else laid_out(grid.is_fill)
        return DenseValues(laid_out(grid.values), is_fill, grid.kind, fill)


class FewTotals:
    """Totals of the visited coordinates; all others are fill entries."""

    def __init__(self, reduction: Reduction, names: Sequence[str], extents: Mapping[str, int]) -> None:
        self.reduction, self.names = reduction, names
        self.shape = [extents[name] for name in names]
        self._waiting: list[tuple[Tensor, Partial, Tensor]] = []
        self._count = self._limit = 0

    def add(self, space: Space, part: Partial, met: Tensor) -> None:
        """Combines a part over the axes of a space."""
        rank = (space.count is not None) + sum(name in space.ranges for name in self.names)
        columns = [
            space.coordinates(name).reshape(space.coordinates(name).shape[:rank]) for name in self.names
        ]
        shape = torch.broadcast_shapes(part.values.shape, met.shape, *(c.shape for c in columns))
        if part.is_fill is not None:
            shape = torch.broadcast_shapes(shape, part.is_fill.shape)
        coordinates = torch.stack([column.expand(shape).reshape(-1) for column in columns])

        def flat(found: Tensor | None) -> Tensor | None:
            return None if found is None else found.expand(shape).reshape(-1)

        values = part.values.expand(shape).reshape(-1)
        flattened = Partial(values, flat(part.is_fill), flat(part.ended), flat(part.ends))
        self._waiting.append((coordinates, flattened, met.expand(shape).reshape(-1)))
        self._count += len(values)
        if self._count > max(MOST_WAITING, self._limit):
            self._merge()

    def _merge(self) -> tuple[Tensor, Keys, Rows]:
        """Combines all entries of equal coordinates."""
        device = self.reduction.device
        if not self._waiting:
            none = torch.zeros((len(self.names), 0), dtype=torch.int64, device=device)
            return none, Keys(list(none), self.shape), Rows(self.reduction, (0,))
        coordinates = torch.cat([c for c, _, _ in self._waiting], 1)
        keys = Keys(list(coordinates), self.shape)
        distinct, place = torch.unique(keys.values, return_inverse=True)
        one_of = torch.empty_like(distinct)
        one_of[place] = torch.arange(len(place), device=device)
        coordinates = coordinates.index_select(1, one_of)
        rows, start = Rows(self.reduction, (len(distinct),)), 0
        for _, part, met in self._waiting:
            rows.add(place[start : start + len(part.values)], part, met)
            start += len(part.values)
        met = torch.zeros(len(distinct), dtype=torch.int64, device=device) if rows.met is None else rows.met
        self._waiting = [(coordinates, rows.partial(), met)]
        self._count, self._limit = len(distinct), 2 * len(distinct)
        keys.values = distinct
        return coordinates, keys, rows

    def result(self, fill: float | int | bool) -> Entries:
        """The totals of the visited coordinates."""
        coordinates, keys, rows = self._merge()
        grid = rows.grid()
        return Entries(coordinates, grid.values, self.shape, grid.kind, fill, grid.is_fill, keys)
