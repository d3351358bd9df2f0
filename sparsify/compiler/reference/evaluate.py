"""Evaluation of a program by torch's operators: the reference of kernels, and their fallback.

In: a program and its operands, by name. Out: the assigned tensors, as `DenseValues` or `Entries`.

A statement is evaluated over a space: all points of its index variables, in boxes, or, if much fewer, the points of its
cover, in parts. A reduction inside of a statement is evaluated at the surrounding points, or beforehand as a separate
tensor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.dtype import declared_kind, kind_of, reduced
from sparsify.compiler.einsum.infer.extents import program_extents
from sparsify.compiler.einsum.infer.shared_pattern import root_access
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Cast,
    Const,
    Declaration,
    Expr,
    Extent,
    Index,
    Program,
    Reduce,
    Stored,
)
from sparsify.compiler.ir.dtypes import NUMBER, Kind
from sparsify.compiler.reference.contract import contracted
from sparsify.compiler.reference.cover import Cover, Leaf, Sets, cover
from sparsify.compiler.reference.fold import fold, joined, operation, repeated
from sparsify.compiler.reference.grid import Grid, apply, choose, computed_dtype, number
from sparsify.compiler.reference.join import Table, table
from sparsify.compiler.reference.join import joined as joined_tables
from sparsify.compiler.reference.keys import Keys
from sparsify.compiler.reference.space import MOST_DENSE, MOST_POINTS, Space, box, boxes, check_size, sized
from sparsify.compiler.reference.stored import (
    DenseValues,
    Entries,
    Values,
    entries_of,
    operand,
    sorted_entries,
    stored_of,
)
from sparsify.compiler.reference.totals import DenseTotals, FewTotals, Reduction
from sparsify.storage.fill import same

# Spaces of up to this many points are evaluated whole, without a cover.
FEW_POINTS: Final = 2**16
# Cost of a point found by a join, in points of a box.
JOIN_COST: Final = 8
NEW: Final = "#new"


class Evaluation:
    """A program with its operands.

    Args:
        operands: operands by name.

    Attributes:
        tensors: operands, and tensors assigned so far.
    """

    def __init__(self, program: Program, operands: Mapping[str, Tensor]) -> None:
        self.program = program
        self.kinds = {d.name: declared_kind(d) for d in program.declarations}
        self.extents = program_extents(program, {n: tuple(operands[n].shape) for n in program.inputs})
        self.tensors: dict[str, Values] = {}
        for declared in map(program.declaration, program.inputs):
            name, is_dense = declared.name, declared.format.is_dense
            self.tensors[name] = operand(operands[name], self.kinds[name], declared.fill, is_dense=is_dense)
        first = next(iter(operands.values()), None)
        self.device = torch.device("cpu") if first is None else first.device
        self._reduced: dict[Reduce, Values] = {}

    def run(self) -> None:
        """Executes all statements."""
        for statement in self.program.statements:
            self._execute(statement)

    def _execute(self, statement: Assign) -> None:
        """Executes a statement; a second assignment by a monoid is combined with the previous value."""
        name = statement.target.tensor
        declared = self.program.declaration(name)
        targets = [index.name for index in statement.target.indices if isinstance(index, Index)]
        expr = statement.value
        if statement.monoid is not None:
            bound = tuple(n for n in free_indices(expr) if n not in targets)
            if bound:
                expr = Reduce(statement.monoid, bound, expr)
            else:
                kind = reduced(kind_of(expr, self.kinds), statement.monoid, expr, self.kinds)
                expr = Cast(kind.dtype, expr)
        if statement.monoid is not None and name in self.tensors:
            self.kinds[NEW] = self.kinds[name]
            self.tensors[NEW] = self._assigned(declared, targets, Cast(self.kinds[name].dtype, expr))
            both = (Access(name, statement.target.indices), Access(NEW, statement.target.indices))
            expr = Call(MONOIDS[statement.monoid].combine, both)
        self.tensors[name] = self._assigned(declared, targets, expr)

    def _assigned(self, declared: Declaration, targets: Sequence[str], expr: Expr) -> Values:
        """The value of an expression as a tensor with a declaration."""
        kind, root = self.kinds[declared.name], declared.pattern_of
        if root is not None and not declared.format.is_dense:
            return self._on_pattern(declared, targets, expr)
        if declared.format.is_dense:
            found = self._all(targets, expr)
            return DenseValues(
                Grid(found.values, None, found.kind).cast(kind.dtype).values, None, kind, declared.fill
            )
        return self._few(targets, expr, kind, declared.fill)

    def _on_pattern(self, declared: Declaration, targets: Sequence[str], expr: Expr) -> Values:
        """The values of an expression at the stored entries of the tensor whose pattern the result shares."""
        kind, name = self.kinds[declared.name], str(declared.pattern_of)
        root, owner = self.tensors[name], self.program.declaration(name)
        assert isinstance(root, Entries), "only sparse tensors lend their pattern"
        stored = root_access(declared, owner, Access(name, tuple(map(Index, targets))))
        entries, place = root, torch.arange(root.coordinates.shape[1], device=self.device)
        if len(targets) > len(stored.indices):
            entries, place = self._over_modes(root, [str(index) for index in stored.indices], targets)
        found, step = [], max(1, MOST_POINTS // 64)
        for start in range(0, max(1, entries.coordinates.shape[1]), step):
            places = entries.coordinates[:, start : start + step]
            columns: dict[str | Expr, Tensor] = dict(zip(targets, places, strict=True))
            columns[stored] = place[start : start + step]
            space = Space(places.shape[1], columns, {}, self.device)
            values = self.evaluate(expr, space).cast(kind.dtype).values
            found.append(values.expand(places.shape[1]))
        values = torch.cat(found)
        return Entries(
            entries.coordinates, values, entries.shape, kind, declared.fill, entries.is_fill, entries.keys
        )

    def _over_modes(
        self, root: Entries, names: Sequence[str], targets: Sequence[str]
    ) -> tuple[Entries, Tensor]:
        """Entries repeated over the coordinates of further modes, sorted, and the index of each in `root`."""
        shape = [self.extents[name] for name in targets]
        further = [name for name in targets if name not in names]
        count = prod(self.extents[name] for name in further)
        place = torch.arange(root.coordinates.shape[1], device=self.device).repeat_interleave(count)
        rest = torch.arange(count, device=self.device).repeat(root.coordinates.shape[1])
        columns = {name: root.coordinates[mode].index_select(0, place) for mode, name in enumerate(names)}
        for name in reversed(further):
            extent = max(1, self.extents[name])
            columns[name], rest = rest % extent, rest // extent
        coordinates = torch.stack([columns[name] for name in targets])
        order = Keys(list(coordinates), shape).values.argsort()
        coordinates, place = coordinates[:, order], place[order]
        is_fill = None if root.is_fill is None else root.is_fill[place]
        return Entries(coordinates, place, shape, root.kind, root.fill, is_fill), place

    def _all(self, targets: Sequence[str], expr: Expr) -> DenseValues:
        """The values of an expression at all coordinates."""
        names = free_indices(expr)
        if isinstance(expr, Reduce) and len(names) == len(targets):
            found = self._materialised(expr, is_tracked=False, is_dense=True)
            assert isinstance(found, DenseValues), "a dense tensor was asked for"
            return replace(found, values=found.values.permute([names.index(name) for name in targets]))
        shape = [self.extents[name] for name in targets]
        check_size(shape, expr)
        kind = kind_of(expr, self.kinds)
        result: Tensor | None = None
        for ranges in boxes({name: self.extents[name] for name in targets}):
            grid = self.evaluate(expr, box(ranges, self.device))
            if result is None:
                result = torch.empty(shape, dtype=grid.values.dtype, device=self.device)
            part, lengths = result, [stop - start for start, stop in ranges.values()]
            for axis, (start, stop) in enumerate(ranges.values()):
                part = part.narrow(axis, start, stop - start)
            part.copy_(grid.values.expand(lengths))
        values = torch.zeros(shape, device=self.device) if result is None else result
        return DenseValues(values, None, kind)

    def _few(self, targets: Sequence[str], expr: Expr, kind: Kind, fill: float) -> Entries:
        """The entries of an expression other than fill entries of this fill."""
        covered = self._cover(expr)
        sets = covered.sets
        if covered.grid is None or not same(covered.grid.cast(kind.dtype).values.item(), fill):
            sets = None
        names = free_indices(expr)
        if isinstance(expr, Reduce) and len(names) == len(targets):
            found = self._materialised(expr, is_tracked=True, is_dense=sets is None)
            entries = entries_of(found, fill)
            coordinates = entries.coordinates[[names.index(name) for name in targets]]
            values = Grid(entries.values, None, entries.kind).cast(kind.dtype).values
            return sorted_entries(coordinates, values, [self.extents[n] for n in targets], kind, fill)
        columns = [torch.zeros((len(targets), 0), dtype=torch.int64, device=self.device)]
        parts = [torch.zeros(0, dtype=computed_dtype(kind), device=self.device)]
        for space in self._spaces(sets, targets):
            grid = self.evaluate(expr, space).cast(kind.dtype)
            kept = stored_of(grid, fill).expand(space.shape).reshape(-1).nonzero().squeeze(1)
            places = [space.coordinates(n).expand(space.shape).reshape(-1)[kept] for n in targets]
            columns.append(torch.stack(places))
            parts.append(grid.values.expand(space.shape).reshape(-1)[kept])
        shape = [self.extents[name] for name in targets]
        return sorted_entries(torch.cat(columns, 1), torch.cat(parts), shape, kind, fill)

    def evaluate(self, expr: Expr, space: Space) -> Grid:
        """The values of an expression at all points of a space."""
        match expr:
            case Const(value):
                return number(value, kind_of(expr, {}))
            case Index(name):
                return Grid(space.coordinates(name), None, Kind("int64", NUMBER))
            case Extent(name):
                return Grid(torch.tensor(self.extents[name], device=self.device), None, Kind("int64", NUMBER))
            case Access():
                return self._read(expr, space)
            case Stored(access):
                found = self._read(access, space)
                if found.is_fill is None:
                    return Grid(torch.ones_like(found.values, dtype=torch.bool), None, Kind("bool"))
                return Grid(~found.is_fill, found.is_fill, Kind("bool"))
            case Cast(dtype, value):
                return self.evaluate(value, space).cast(dtype)
            case Call("where", (condition, yes, no)):
                return choose(*(self.evaluate(arg, space) for arg in (condition, yes, no)))
            case Call(function, args):
                return apply(function, [self.evaluate(arg, space) for arg in args])
            case Reduce():
                return self._reduce(expr, space)
        raise AssertionError(f"{type(expr).__name__} has no value")

    def _read(self, access: Access, space: Space) -> Grid:
        """The entries of a tensor at all points of a space."""
        tensor = self.tensors[access.tensor]
        if access in space.points and isinstance(tensor, Entries):
            return tensor.at(space.along_points(access))
        return tensor.read(access.indices, space, self.extents)

    def _reduce(self, expr: Reduce, space: Space) -> Grid:
        """A reduction at all points of a space, read from memoized totals if known or cheaper to compute whole."""
        names = free_indices(expr)
        if expr in self._reduced or self._is_whole(expr, space):
            if expr not in self._reduced:
                self._reduced[expr] = self._materialised(expr, is_tracked=True, is_dense=False)
            return self._reduced[expr].read([Index(name) for name in names], space, self.extents)
        rank, total = len(space.shape), None
        monoid, kind = self._operation(expr)
        bound = {name: self.extents[name] for name in expr.indices}
        for ranges in boxes(bound, max(1, MOST_POINTS // max(1, space.size_of(names)))):
            grid = self.evaluate(expr.body, space.extended(ranges)).cast(kind.dtype)
            part = fold(monoid, grid, rank, [stop - start for start, stop in ranges.values()])
            total = part if total is None else joined(monoid, total, part, kind)
        if total is None:
            neutral = Grid(torch.zeros((), device=self.device), None, kind).cast(kind.dtype)
            total = fold(monoid, neutral, 0, [0])
        return total.grid(kind)

    def _operation(self, expr: Reduce) -> tuple[str, Kind]:
        """The monoid of a reduction, and the kind in which values are combined."""
        kind = reduced(kind_of(expr.body, self.kinds), expr.monoid, expr.body, self.kinds)
        return operation(expr.monoid, kind), kind

    def _is_whole(self, expr: Reduce, space: Space) -> bool:
        """Whether to compute a reduction for all coordinates before reading the points of a space."""
        names = free_indices(expr)
        every, points = sized(names, self.extents), space.size_of(names)
        times = sized(expr.indices, self.extents)
        sets = self._cover(expr.body).sets
        found = (
            every * times
            if sets is None
            else min(every * times, JOIN_COST * self._estimate(sets, (*names, *expr.indices)))
        )
        if every > MOST_DENSE and sets is None:
            return False
        return points >= every or points * times >= found

    def _materialised(self, expr: Reduce, *, is_tracked: bool, is_dense: bool) -> Values:
        """A reduction for all coordinates of its free index variables, in their order."""
        names = free_indices(expr)
        every = (*names, *expr.indices)
        monoid, kind = self._operation(expr)
        covered = self._cover(expr.body)
        few = None if covered.sets is None else self._estimate(covered.sets, every)
        points = sized(every, self.extents)
        if monoid == "sum":
            found = contracted(expr, kind, self.tensors, self.extents, is_tracked=is_tracked, points=few)
            if found is not None:
                return found
        is_searched = few is not None and points > FEW_POINTS and few * JOIN_COST < points
        sets = covered.sets if is_searched else None
        fill = covered.grid.cast(kind.dtype) if is_searched and covered.grid is not None else None
        totals_fill = None if covered.grid is None else self._fill_of(expr)
        size = sized(names, self.extents)
        is_few = not is_dense and sets is not None and size > FEW_POINTS and size > 4 * (few or 0)
        reduction = Reduction(
            monoid, kind, fill, sized(expr.indices, self.extents), is_tracked or is_few, self.device
        )
        totals: DenseTotals | FewTotals
        if is_few:
            totals = FewTotals(reduction, names, self.extents)
        else:
            check_size([self.extents[name] for name in names], expr)
            totals = DenseTotals(reduction, names, self._bound(sets), self.extents)
        for space in self._spaces(sets, (*names, *expr.indices)):
            self._add(totals, expr, space, names, monoid, kind)
        return totals.result(0 if totals_fill is None else totals_fill.values.item())

    def _add(
        self,
        totals: DenseTotals | FewTotals,
        expr: Reduce,
        space: Space,
        names: Sequence[str],
        monoid: str,
        kind: Kind,
    ) -> None:
        """Adds the points of a space whose last axes are the reduced ones."""
        grid = self.evaluate(expr.body, space).cast(kind.dtype)
        last = [name for name in expr.indices if name in space.ranges]
        lengths = [len(space.ranges[name]) for name in last]
        rank = len(space.shape) - len(last)
        part = fold(monoid, grid, rank, lengths)
        if space.count is None:
            part = part.in_one_row(space.shape[:rank])
        totals.add(space, part, torch.tensor(prod(lengths), device=self.device))

    def _cover(self, expr: Expr) -> Cover:
        """The cover of an expression over the current tensors."""
        return cover(expr, self._fill_of, self.kinds)

    def _fill_of(self, leaf: Leaf) -> Grid | None:
        """The value of a sparse tensor or a reduction at unstored coordinates; `None` for a dense one."""
        if isinstance(leaf, Access):
            tensor = self.tensors[leaf.tensor]
            if isinstance(tensor, DenseValues):
                return None
            return Grid(tensor.fill_value.cpu(), torch.tensor(True), tensor.kind)
        inner = self._cover(leaf.body)
        if inner.sets is None or inner.grid is None or inner.is_number:
            return None
        monoid, kind = self._operation(leaf)
        value = inner.grid.cast(kind.dtype).values
        count = torch.tensor(sized(leaf.indices, self.extents))
        return Grid(repeated(monoid, value, count, kind), torch.tensor(True), kind)

    def _estimate(self, sets: Sets, names: Sequence[str]) -> int:
        """The expected number of points of a cover, for uniformly distributed entries."""
        every, found = sized(names, self.extents), 0.0
        for leaves in sets:
            share = 1.0
            for leaf in leaves:
                share *= self._density(leaf)
            found += share * every
        return min(every, int(found) + 1)

    def _density(self, leaf: Leaf) -> float:
        """The fraction of points at which a leaf is stored."""
        if isinstance(leaf, Reduce):
            times = sized(leaf.indices, self.extents)
            sets = self._cover(leaf.body).sets or ()
            points = self._estimate(sets, (*free_indices(leaf), *leaf.indices))
            every = sized(free_indices(leaf), self.extents)
            return min(1.0, points / max(1, every)) if times else 1.0
        tensor = self.tensors[leaf.tensor]
        assert isinstance(tensor, Entries), "leaves of covers are sparse"
        return len(tensor.values) / max(1, prod(tensor.shape))

    def _bound(self, sets: Sets | None) -> list[str]:
        """The index variables bound by the points of a cover, the same for all of its sets."""
        return list(dict.fromkeys(n for leaves in sets or () for leaf in leaves for n in free_indices(leaf)))

    def _spaces(self, sets: Sets | None, names: Sequence[str]) -> Iterator[Space]:
        """The points of a cover part by part, or all points box by box; axes are in the order of the names."""
        if sets is None:
            for ranges in boxes({name: self.extents[name] for name in names}):
                yield box(ranges, self.device)
            return
        bound = self._bound(sets)
        free = {name: self.extents[name] for name in names if name not in bound}
        for at, leaves in enumerate(sets):
            tables = [self._table(leaf) for leaf in leaves]
            missing = set(bound) - {name for one in tables for name in one.columns}
            tables += [self._every(name) for name in sorted(missing)]
            for points in joined_tables(tables, self.extents):
                for ranges in boxes(free, MOST_POINTS):
                    step = max(
                        1, MOST_POINTS // max(1, prod(stop - start for start, stop in ranges.values()))
                    )
                    for start in range(0, points.count, step):
                        part = self._without(points.part(start, start + step), sets[:at])
                        yield Space(part.count, part.columns, {}, self.device).extended(ranges)

    def _table(self, leaf: Leaf) -> Table:
        """The points at which a leaf is stored."""
        if isinstance(leaf, Access):
            tensor = self.tensors[leaf.tensor]
            assert isinstance(tensor, Entries), "leaves of covers are sparse"
            return table(leaf, leaf.indices, tensor.coordinates, self.extents)
        if leaf not in self._reduced:
            self._reduced[leaf] = self._materialised(leaf, is_tracked=True, is_dense=False)
        entries = entries_of(self._reduced[leaf], 0)
        return table(leaf, [Index(name) for name in free_indices(leaf)], entries.coordinates, self.extents)

    def _every(self, name: str) -> Table:
        """All coordinates of an index variable."""
        return Table({name: torch.arange(self.extents[name], device=self.device)}, self.extents[name])

    def _without(self, points: Table, sets: Sets) -> Table:
        """The points that belong to no earlier set of a cover."""
        space = Space(points.count, points.columns, {}, self.device)
        for leaves in sets:
            is_met = torch.ones(points.count, dtype=torch.bool, device=self.device)
            for leaf in leaves:
                indices = leaf.indices if isinstance(leaf, Access) else [Index(n) for n in free_indices(leaf)]
                values = self.tensors[leaf.tensor] if isinstance(leaf, Access) else self._reduced[leaf]
                found = values.read(indices, space, self.extents).is_fill
                if found is not None:
                    is_met &= ~found
            points = points.select((~is_met).nonzero().squeeze(1))
            space = Space(points.count, points.columns, {}, self.device)
        return points
