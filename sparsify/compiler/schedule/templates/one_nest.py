"""The schedule of a program of one reduction, with at most one nest after it: rows, sums, lanes, threads.

In: `Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`, A compressed by row, 8 lanes, 128 columns.
Out: `split k ko ki 128; order i, ko, j, ki; precompute w at ko in register; vector ki; parallel i dynamic A`
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.compiler.einsum.affine import affine
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.ir.node import find, walk
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, Let, Notation, Split
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.nests import around, downward, loop_chain, loop_names, many_first
from sparsify.compiler.schedule.row_lanes import entries_at_a_time, lists_entries
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.padded_rows import padded_lanes
from sparsify.compiler.schedule.tile_width import (
    TILE_BYTES,
    WIDE_TILE_BYTES,
    accumulators,
    has_wide_tiles,
    lane_tile,
)

# Prefetch distance of gathered rows in bytes: covers the memory latency of a few rows, and fits the first-level cache
# until the rows are read.
AHEAD_BYTES = 1 << 14
# Fewest bytes of a prefetched row: two cache lines.
LEAST_BYTES = 128
# Fewest accumulators for long rows: fewer would stall on the latency of an fma.
CHAINS = 4
LONG_ROW = 8


def nests_of(program: Notation) -> list[tuple[list[Forall], Assign]]:
    """The loop nests of a concretized program, each with its loops."""
    chains: dict[int, list[Forall]] = {}
    assigns = []
    for node in walk(program.body):
        if isinstance(node, Forall):
            chain, inner = loop_chain(node)
            chains.setdefault(id(inner), chain)
        elif isinstance(node, Assign):
            assigns.append(node)
    return [(chains.get(id(assign), []), assign) for assign in assigns]


@dataclass
class OneNest:
    """The reducing nest, or the only one, as loops: outer ones of the result, sums, lanes."""

    program: Notation
    nests: list[tuple[list[Forall], Assign]]
    lanes: int
    item_bytes: int
    sizes: Sizes
    wanted: tuple[str, ...]

    def __post_init__(self) -> None:
        self.chain, self.assign = next((n for n in self.nests if n[1].monoid), self.nests[-1])
        self.splits = {r.index: r for r in self.program.relations if isinstance(r, Split)}
        self.loops = [loop.index for loop in self.chain]
        self.sparse = self._sparse()
        self.target = list(self._derived(self.assign.target))
        self.edges = self._level_edges()
        self.stored = {name for edge in self.edges for name in edge} | self._single_levels()
        self.lane = self._lane()
        is_known = sorted(self.wanted) == sorted(self.loops)
        order = list(self.wanted) if is_known else self._concordant()
        outer = [name for name in order if name in self.target and name != self.lane]
        self.order = downward(many_first(order, outer, self.sizes.extents), self.edges)

    def _derived(self, access: Access) -> list[str]:
        """The loops over the modes of an access, in the order of the modes."""
        return [part for name in index_names(access) for part in self._parts(name)]

    def _parts(self, name: str) -> list[str]:
        """The loops derived from an index variable."""
        split = self.splits.get(name)
        return [name] if split is None else [split.outer, split.inner]

    def _contiguous(self, access: Access) -> set[str]:
        """The loops with contiguous iterations: in `x[c,h+r]` those over `h` and `r`."""
        form = affine(access.indices[-1])
        before = {name for index in access.indices[:-1] for name in index_names(index)}
        if form is None or form.divisor != 1:
            return set()
        return {self._parts(name)[-1] for name, factor in form.terms if factor == 1 and name not in before}

    def _is_divided(self, name: str) -> bool:
        """Whether an index divides the loop's variable: most lanes along the variable would read nothing."""
        forms = [affine(i) for a in self.reads for i in a.indices]
        return any(name in form.names for form in forms if form is not None and form.divisor != 1)

    def _sparse(self) -> list[Access]:
        """The accesses to operands with compressed levels, in all nests."""
        declarations = {declaration.name: declaration for declaration in self.program.declarations}
        reads = [n for _, assign in self.nests for n in find(assign, Access)]
        return [a for a in reads if a.tensor in declarations and not declarations[a.tensor].format.is_dense]

    def _declaration(self, name: str) -> Declaration | None:
        """The declaration of a tensor; temporaries have none."""
        return next((declared for declared in self.program.declarations if declared.name == name), None)

    def _levels(self, access: Access) -> list[tuple[str, bool]]:
        """The loops of each level of a sparse access, and whether the level is dense."""
        declaration = self._declaration(access.tensor)
        assert declaration is not None, "sparse accesses are declared"
        levels = []
        for stored in declaration.format.levels:
            index = access.indices[stored.expression.mode]
            is_dense = stored.level.is_full
            if not isinstance(index, Index):
                # The variable of a window solved for from stored coordinates comes last.
                form = affine(index)
                terms = () if form is None else sorted(form.terms, key=lambda term: term[1] == 1)
                levels += [(part, is_dense) for name, _ in terms for part in self._parts(name)]
                continue
            name = index.name
            if stored.expression.kind != "whole" and name in self.splits:
                split = self.splits[name]
                name = split.outer if stored.expression.kind == "block" else split.inner
            levels.append((name, is_dense))
        return levels

    def _level_edges(self) -> list[tuple[str, str]]:
        """Pairs of loops of which the first must enclose the second."""
        edges = []
        for access in self.sparse:
            names = [name for name, _ in self._levels(access)]
            edges += list(itertools.pairwise(names))
        return edges

    def _single_levels(self) -> set[str]:
        """The loops over the only level of sparse vectors."""
        return {names[0][0] for a in self.sparse if len(names := self._levels(a)) == 1}

    def _lane(self) -> str | None:
        """The loop that is contiguous in every operand with its variable."""
        self.reads = [n for n in find(self.assign, Access) if n.indices]
        last = {name for access in self.reads for name in self._contiguous(access)}
        free = [n for n in self.loops if n not in self.stored and n in last and not self._is_divided(n)]
        best = [name for name in free if name in self.target and self.target[-1] == name]
        whole = [
            name
            for name in free
            if all(name in self._contiguous(a) for a in self.reads if name in self._derived(a))
        ]
        if best and best[0] not in whole and (along := self._long_sum(whole)) is not None:
            return along
        return next(iter(best or whole), None)

    def _long_sum(self, whole: list[str]) -> str | None:
        """The loop over a contiguous sum that fills vectors, like the rows of `X[i,j]` in `m[i] += X[i,j]`."""
        sums = [name for name in whole if name not in self.target]
        return next((name for name in sums if self.sizes.extents.get(name, self.lanes) >= self.lanes), None)

    def _concordant(self) -> list[str]:
        """The loops in an order concordant with every sparse operand: those of the result first, lanes last."""
        return downward(
            sorted(self.loops, key=lambda n: (n == self.lane, n not in self.target, self.loops.index(n))),
            self.edges,
        )

    def _name(self, text: str) -> str:
        """An unused loop name."""
        taken = loop_names(self.program)
        while text in taken:
            text += "_"
        return text

    def around(self) -> Iterator[d.Schedule]:
        """The loops around all nests in an order concordant with every sparse operand, the nests unchanged."""
        chain = loop_chain(self.program.body)[0] if isinstance(self.program.body, Forall) else []
        order = downward([loop.index for loop in chain], self.edges)
        if order:
            yield d.Schedule((*self._reorder(order), *self._parallel(order, True)))
            yield d.Schedule(tuple(self._reorder(order)))

    def schedule(self, *, parallel: bool, vector: bool = True, sets: bool = True) -> d.Schedule:
        """The schedule for this shape, optionally without threads, lanes or several sets of accumulators."""
        lane = self.lane if vector and self.lanes > 1 else None
        outer = [name for name in self.order if name != lane]
        sums = [name for name in outer if name not in self.target]
        leading = [name for name in outer if name in self.target]
        ordered = outer == leading + sums
        if lane is None:
            if sets and vector and ordered and (count := self._row_lanes(leading, sums)) > 1:
                return self._stored_lanes(leading, sums, count, parallel)
            return self._scalar(outer, leading, ordered, parallel)
        if lane in self.target:
            return self._free_lanes(lane, leading, sums, outer, ordered, parallel, sets)
        return self._summed_lanes(lane, leading, sums, outer, ordered, parallel)

    def _scalar(self, order: list[str], leading: list[str], ordered: bool, parallel: bool) -> d.Schedule:
        """No lanes: sums in a scalar register."""
        steps = self._reorder(order)
        if ordered and self.assign.monoid:
            steps.append(self._collect(leading[-1] if leading else ""))
        return d.Schedule((*steps, *self._parallel(order, parallel)))

    def _free_lanes(
        self,
        lane: str,
        leading: list[str],
        sums: list[str],
        outer: list[str],
        ordered: bool,
        parallel: bool,
        sets: bool,
    ) -> d.Schedule:
        """Lanes along the result: accumulators for a tile of the result if its loops enclose the sums."""
        if not self.assign.monoid:
            return d.Schedule(
                (*self._reorder([*outer, lane]), d.Vector(lane), *self._parallel(outer, parallel))
            )
        tile, inner = self._name(f"{lane}o"), self._name(f"{lane}i")
        widest = self._tile_bytes(lane, sums)
        size, tail = lane_tile(self.sizes.extents.get(lane), self.lanes, self.item_bytes, widest)
        split = d.Split(lane, tile, inner, size, tail)
        if not ordered:
            order = [tile, *outer, inner]
            padded: list[d.Directive] = []
            place = (self.assign, lane, self.sparse, size)
            if sets and (whole := padded_lanes(*place, self.lanes, self.item_bytes, self.sizes)):
                split, padded = d.Split(lane, tile, inner, whole), [self._collect(tile, "memory")]
            return d.Schedule(
                (split, *self._reorder(order), *padded, d.Vector(inner), *self._parallel(order, parallel))
            )
        read = [
            name for a in find(self.assign.value, Access) if lane in (own := self._derived(a)) for name in own
        ]
        is_shared = len(leading) > 1 and leading[-1] not in read
        rows = self._rows_beside(lane, leading, sums, size) if sets else None
        if rows is not None:
            return self._tile_of_rows(rows, split, leading, sums, parallel)
        first = around(leading, tile, is_shared and self.sizes.extents.get(lane, 0) > size)
        collect = self._collect(first[-1])
        steps: list[d.Directive] = [split]
        after: list[d.Directive] = []
        if sets and (count := self._sets(size, sums)) > 1:
            sums, steps, after = self._positions(sums, count, collect.temporary, steps)
            after.append(d.Unroll(sums[-1]))
        order = [*first, *sums, inner]
        steps += [*self._reorder(order), collect, *after, d.Vector(inner)]
        distance = AHEAD_BYTES // (size * self.item_bytes)
        ahead = [d.Prefetch(name, distance) for name in self._gathered(lane, size)]
        return d.Schedule((*steps, *self._parallel(order, parallel), *ahead))

    def _rows_beside(
        self, lane: str, leading: list[str], sums: list[str], size: int
    ) -> tuple[str, int] | None:
        """The rows of short lanes that share a stored entry: `y` and their number, in `W[o,k] * F[n,k+34*y+x]`."""
        forms = [affine(index) for access in self.reads for index in access.indices]
        moved = [
            dict(form.terms) for form in forms if form is not None and {lane, *sums[-1:]} <= {*form.names}
        ]
        rows = next((name for terms in moved for name in reversed(leading) if name in terms), None)
        extent = None if rows is None else self.sizes.extents.get(rows)
        is_whole = 0 < self.sizes.extents.get(lane, 0) <= size
        if rows is None or not extent or not is_whole or self._driver(sums) is None:
            return None
        most = accumulators(self.lanes, self.item_bytes) // -(-size // self.lanes)
        return (rows, -(-extent // -(-extent // most))) if min(most, extent) > 1 else None

    def _tile_of_rows(
        self, rows: tuple[str, int], split: d.Split, leading: list[str], sums: list[str], parallel: bool
    ) -> d.Schedule:
        """Accumulators for a tile of rows and lanes: a stored entry is read once for all of them.

        Loops whose variable the window does not read are inside of the tiles, whose operand stays in the near cache;
        outside if the other loops, over images, have a single iteration, which threads cannot share.
        """
        name, count = rows
        tile, inner = self._name(f"{name}o"), self._name(f"{name}i")
        read = {part for a in self.reads if name in self._derived(a) for part in self._derived(a)}
        shared = [one for one in leading if one not in read or self._is_first_of_driver(one, sums)]
        outer = [one for one in leading if one not in shared and one != name]
        is_single = all(self.sizes.extents.get(one) == 1 for one in outer)
        first = [*shared, *outer, tile] if is_single else [*outer, tile, *shared]
        first.append(split.outer)
        collect = self._collect(split.outer)
        steps = [
            d.Split(name, tile, inner, count),
            split,
            *self._reorder([*first, *sums, inner, split.inner]),
        ]
        steps += [collect, d.Unroll(inner), d.Vector(split.inner)]
        return d.Schedule((*steps, *self._parallel(first, parallel)))

    def _is_first_of_driver(self, name: str, sums: list[str]) -> bool:
        """Whether a loop is over the rows of the operand whose stored entries are summed."""
        driver = self._driver(sums)
        return any(a.tensor == driver.name and name in self._derived(a) for a in self.sparse if driver)

    def _tile_bytes(self, lane: str, sums: list[str]) -> int:
        """The most bytes of a tile of lanes: more if stored entries are offsets along the lanes, `F[n,k+p]`."""
        forms = [affine(index) for access in self.reads for index in access.indices]
        is_moved = any(form is not None and lane in form.names and len(form.terms) > 1 for form in forms)
        driver = self._driver(sums)
        mean = self.sizes.mean_below(driver) if is_moved and driver is not None else None
        return WIDE_TILE_BYTES if has_wide_tiles(mean, self.lanes, self.item_bytes) else TILE_BYTES

    def _sets(self, size: int, sums: list[str]) -> int:
        """The number of stored entries accumulated in parallel, each with its own accumulators."""
        driver = self._driver(sums)
        mean = None if driver is None else self.sizes.mean_below(driver)
        count = -(-CHAINS // max(1, size // self.lanes))
        return count if mean is not None and mean >= LONG_ROW * count else 1

    def _driver(self, sums: list[str]) -> Declaration | None:
        """The only operand whose stored entries the innermost sum runs over; `None` for several."""
        reads = [a for a in self.sparse if sums and sums[-1] in [name for name, _ in self._levels(a)]]
        if len(reads) != 1 or self._levels(reads[0])[-1][0] != sums[-1]:
            return None
        declared = next(dec for dec in self.program.declarations if dec.name == reads[0].tensor)
        return declared if lists_entries(declared.format.levels) else None

    def _positions(
        self, sums: list[str], count: int, collected: str, steps: list[d.Directive]
    ) -> tuple[list[str], list[d.Directive], list[d.Directive]]:
        """The sums with `count` stored entries at a time; the directives before the order and after the temporary."""
        driver = self._driver(sums)
        assert driver is not None, "only stored entries are taken several at a time"
        place = self._name("p")
        group, member = self._name(f"{place}o"), self._name(f"{place}i")
        before = [*steps, d.Pos(sums[-1], place, driver.name), d.Split(place, group, member, count)]
        apart = d.Precompute(self._name("sums"), "register", source=collected, over=member)
        return [*sums[:-1], group, member], before, [apart]

    def _gathered(self, lane: str, size: int) -> list[str]:
        """The dense operands whose rows are gathered at stored coordinates from tables larger than the near caches."""
        sums = [name for name in self.order if name not in self.target]
        if not sums or sums[-1] not in self.stored or size * self.item_bytes < LEAST_BYTES:
            return []
        sparse = {access.tensor for access in self.sparse}
        reads = [n for n in find(self.assign.value, Access) if n.tensor not in sparse]
        found = list(dict.fromkeys(a.tensor for a in reads if index_names(a) == (sums[-1], lane)))
        return found if self.sizes.is_far(sums[-1], lane, self.item_bytes, self._driver(sums)) else []

    def _summed_lanes(
        self, lane: str, leading: list[str], sums: list[str], outer: list[str], ordered: bool, parallel: bool
    ) -> d.Schedule:
        """Lanes along a sum: one partial sum for each lane, added up at the end."""
        if not ordered:
            return self._scalar([*outer, lane], leading, False, parallel)
        step, inner = self._name(f"{lane}o"), self._name(f"{lane}i")
        order = [*leading, *sums, step, inner]
        collect = self._collect(leading[-1] if leading else "")
        lanes = d.Precompute(self._name("lanes"), "register", source=collect.temporary, over=inner)
        steps = [
            d.Split(lane, step, inner, self.lanes),
            *self._reorder(order),
            collect,
            lanes,
            d.Vector(inner),
        ]
        return d.Schedule((*steps, *self._parallel(order, parallel)))

    def _row_lanes(self, leading: list[str], sums: list[str]) -> int:
        """The number of stored entries of a row that a scalar sum takes at a time, in lanes; 1 if not profitable."""
        driver = self._driver(sums)
        if driver is None or not self.assign.monoid or not leading or len(sums) != 1 or self.lanes == 1:
            return 1
        is_picked = any(sums[0] in index_names(a) for a in self.reads if a.tensor != driver.name)
        return entries_at_a_time(driver, self.sizes, self.lanes, is_picked)

    def _stored_lanes(self, leading: list[str], sums: list[str], count: int, parallel: bool) -> d.Schedule:
        """Lanes along stored entries: one partial sum for each lane, added up at the end of a row."""
        collect = self._collect(leading[-1])
        sums, steps, after = self._positions(sums, count, collect.temporary, [])
        order = [*leading, *sums]
        steps += [*self._reorder(order), collect, *after, d.Vector(sums[-1])]
        return d.Schedule((*steps, *self._parallel(order, parallel)))

    def _reorder(self, order: list[str]) -> list[d.Directive]:
        return [d.Order(tuple(order))] if len(order) > 1 else []

    def _collect(self, at: str, scope: str = "register") -> d.Precompute:
        """The temporary of the sum: the existing one, else a new one."""
        name = self.assign.target.tensor
        if any(any(t.name == name for t in n.temporaries) for n in find(self.program.body, Let)):
            return d.Precompute(name, scope, at=at)
        return d.Precompute("sum_" + name, scope, at=at, source=name)

    def _parallel(self, order: list[str], wanted: bool) -> list[d.Directive]:
        """Threads over the outermost loop, balanced by the operand stored by its rows.

        A loop over a sum cannot be parallel: its iterations all write the same entries.
        """
        if not wanted or not order or (order[0] in self.loops and order[0] not in self.target):
            return []
        read = [a for a in self.sparse if a.tensor in self.program.inputs]
        rows = [a.tensor for a in read if self._levels(a) and self._levels(a)[0][0] == order[0]]
        by = max(rows, key=lambda name: self.sizes.stored.get(name, 0), default="")
        # The appended parts of all threads but the first are moved at the end.
        target = self._declaration(self.assign.target.tensor)
        is_appended = target is not None and not target.format.is_dense and target.pattern_of is None
        policy = "balanced" if is_appended else "dynamic"
        return [d.Parallel(order[0], policy if by else "static", by)]
