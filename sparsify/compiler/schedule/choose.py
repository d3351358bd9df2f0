"""The choice of a schedule for one statement, by the shape of its loops.

In: `Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])`, A compressed by row, 8 lanes.
Out: `split k ko ki 64 tail 32 16 8; order i, ko, j, ki; precompute w at ko in register; vector ki;
      parallel i dynamic A`
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.node import walk
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, Let, Notation, Split
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.chains import loop_chain
from sparsify.compiler.schedule.sampled import sampled
from sparsify.storage.levels import Dense

# What accumulators in registers cover of a row: 16 AVX2 or 8 AVX-512 registers, enough independent chains to hide
# the latency of an fma, and one pass over the positions of a row for up to 128 columns of float32.
TILE_BYTES = 512
# How many stored positions ahead gathered rows are asked for; 16 covers the latency of memory.
AHEAD = 16


def candidates(program: Notation, lanes: int, item_bytes: int) -> Iterator[d.Schedule]:
    """Schedules that may suit `program`, the best first; the last ones always lower.

    Args:
        lanes: elements of the result's dtype in a vector register.
        item_bytes: the size of such an element.
    """
    if (found := sampled(program)) is not None:
        yield from found.schedules(lanes)
        return
    nests = _nests(program)
    if len(nests) <= 2:
        shape = _Shape(program, nests, lanes, item_bytes)
        yield shape.schedule(parallel=True)
        yield shape.schedule(parallel=False)
        yield shape.schedule(parallel=False, vector=False)
        yield d.Schedule((d.Order(tuple(shape.order)),)) if len(shape.order) > 1 else d.Schedule()
    yield d.Schedule()


def _nests(program: Notation) -> list[tuple[list[Forall], Assign]]:
    """The loop nests of a concretized program, each with its loops."""
    found = []
    for assign in (node for node in walk(program.body) if isinstance(node, Assign)):
        chain = next(
            (
                c
                for n in walk(program.body)
                if isinstance(n, Forall)
                for c, inner in [loop_chain(n)]
                if inner is assign
            ),
            [],
        )
        found.append((chain, assign))
    return found


@dataclass
class _Shape:
    """The nest that reduces, or the only one, seen as loops: outer ones of the result, sums, lanes."""

    program: Notation
    nests: list[tuple[list[Forall], Assign]]
    lanes: int
    item_bytes: int

    def __post_init__(self) -> None:
        self.chain, self.assign = next((n for n in self.nests if n[1].monoid), self.nests[-1])
        self.splits = {r.index: r for r in self.program.relations if isinstance(r, Split)}
        self.loops = [loop.index for loop in self.chain]
        self.target = list(self._derived(self.assign.target))
        self.edges = self._level_edges()
        self.stored = {name for edge in self.edges for name in edge} | self._single_levels()
        self.lane = self._lane()
        self.order = self._concordant()

    def _derived(self, access: Access) -> list[str]:
        """The loops over the modes of an access, in the order of the modes."""
        names: list[str] = []
        for name in index_names(access):
            split = self.splits.get(name)
            names += [split.outer, split.inner] if split is not None else [name]
        return names

    def _sparse(self) -> list[Access]:
        """The accesses to operands with compressed levels, in all nests."""
        declarations = {declaration.name: declaration for declaration in self.program.declarations}
        reads = [n for _, assign in self.nests for n in walk(assign) if isinstance(n, Access)]
        return [a for a in reads if a.tensor in declarations and not declarations[a.tensor].format.is_dense]

    def _levels(self, access: Access) -> list[tuple[str, bool]]:
        """The loop of each level of a sparse access, and whether the level is dense."""
        declaration = next(dec for dec in self.program.declarations if dec.name == access.tensor)
        levels = []
        for stored in declaration.format.levels:
            index = access.indices[stored.expression.mode]
            if not isinstance(index, Index):
                continue
            name = index.name
            if stored.expression.kind != "whole" and name in self.splits:
                split = self.splits[name]
                name = split.outer if stored.expression.kind == "block" else split.inner
            levels.append((name, isinstance(stored.level, Dense)))
        return levels

    def _level_edges(self) -> list[tuple[str, str]]:
        """Pairs of loops of which the first must be outside the second."""
        edges = []
        for access in self._sparse():
            names = [name for name, _ in self._levels(access)]
            edges += list(itertools.pairwise(names))
        return edges

    def _single_levels(self) -> set[str]:
        """The loops over the only level of sparse vectors."""
        return {names[0][0] for a in self._sparse() if len(names := self._levels(a)) == 1}

    def _lane(self) -> str | None:
        """The loop whose iterations are neighbours in memory in every operand that has it."""
        reads = [n for n in walk(self.assign) if isinstance(n, Access) and n.indices]
        last = [self._derived(a)[-1] for a in reads if self._derived(a)]
        free = [name for name in self.loops if name not in self.stored and name in last]
        best = [name for name in free if name in self.target and self.target[-1] == name]
        whole = [
            name
            for name in free
            if all(self._derived(a)[-1] == name for a in reads if name in self._derived(a))
        ]
        return next(iter(best or whole), None)

    def _concordant(self) -> list[str]:
        """The loops in an order that every sparse operand allows: those of the result first, lanes last."""
        rest = sorted(self.loops, key=lambda n: (n == self.lane, n not in self.target, self.loops.index(n)))
        order: list[str] = []
        while rest:
            free = [n for n in rest if not any(b == n and a in rest and a != n for a, b in self.edges)]
            chosen = (free or rest)[0]
            order.append(chosen)
            rest.remove(chosen)
        return order

    def _name(self, text: str) -> str:
        """A loop name that is not taken."""
        taken = {node.index for node in walk(self.program.body) if isinstance(node, Forall)}
        while text in taken:
            text += "_"
        return text

    def schedule(self, *, parallel: bool, vector: bool = True) -> d.Schedule:
        """The schedule for this shape."""
        lane = self.lane if vector and self.lanes > 1 else None
        outer = [name for name in self.order if name != lane]
        sums = [name for name in outer if name not in self.target]
        leading = [name for name in outer if name in self.target]
        ordered = outer == leading + sums
        if lane is None:
            return self._scalar(outer, leading, ordered, parallel)
        if lane in self.target:
            return self._free_lanes(lane, leading, sums, outer, ordered, parallel)
        return self._summed_lanes(lane, leading, sums, outer, ordered, parallel)

    def _scalar(self, order: list[str], leading: list[str], ordered: bool, parallel: bool) -> d.Schedule:
        """No lanes: sums in a scalar register."""
        steps = self._reorder(order)
        if ordered and self.assign.monoid:
            steps.append(self._collect(leading[-1] if leading else ""))
        return d.Schedule((*steps, *self._parallel(order, parallel)))

    def _free_lanes(
        self, lane: str, leading: list[str], sums: list[str], outer: list[str], ordered: bool, parallel: bool
    ) -> d.Schedule:
        """Lanes along the result: accumulators for a tile of it when its loops are outside the sums."""
        if not self.assign.monoid:
            return d.Schedule(
                (*self._reorder([*outer, lane]), d.Vector(lane), *self._parallel(outer, parallel))
            )
        size = max(TILE_BYTES // self.item_bytes, self.lanes)
        tile, inner = self._name(f"{lane}o"), self._name(f"{lane}i")
        tail = tuple(size >> n for n in range(1, 10) if size >> n >= self.lanes)
        split = d.Split(lane, tile, inner, size, tail)
        if not ordered:
            order = [tile, *outer, inner]
            return d.Schedule(
                (split, *self._reorder(order), d.Vector(inner), *self._parallel(order, parallel))
            )
        order = [*leading, tile, *sums, inner]
        steps = [split, *self._reorder(order), self._collect(tile), d.Vector(inner)]
        ahead = [d.Prefetch(name, AHEAD) for name in self._gathered(lane, sums)]
        return d.Schedule((*steps, *self._parallel(order, parallel), *ahead))

    def _gathered(self, lane: str, sums: list[str]) -> list[str]:
        """The dense operands whose rows are read at stored coordinates of the innermost sum."""
        if not sums or sums[-1] not in self.stored:
            return []
        sparse = {access.tensor for access in self._sparse()}
        reads = [n for n in walk(self.assign.value) if isinstance(n, Access) and n.tensor not in sparse]
        return list(dict.fromkeys(a.tensor for a in reads if index_names(a) == (sums[-1], lane)))

    def _summed_lanes(
        self, lane: str, leading: list[str], sums: list[str], outer: list[str], ordered: bool, parallel: bool
    ) -> d.Schedule:
        """Lanes along a sum: one partial sum a lane, added up at the end."""
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

    def _reorder(self, order: list[str]) -> list[d.Directive]:
        return [d.Order(tuple(order))] if len(order) > 1 else []

    def _collect(self, at: str) -> d.Precompute:
        """The temporary that holds the sum in registers: the one there is, else a new one."""
        name = self.assign.target.tensor
        if any(
            isinstance(n, Let) and any(t.name == name for t in n.temporaries) for n in walk(self.program.body)
        ):
            return d.Precompute(name, "register", at=at)
        return d.Precompute("sum_" + name, "register", at=at, source=name)

    def _parallel(self, order: list[str], wanted: bool) -> list[d.Directive]:
        """Threads over the outermost loop, balanced by the operand that is stored by its rows."""
        if not wanted or not order:
            return []
        read = [a for a in self._sparse() if a.tensor in self.program.inputs]
        by = next((a.tensor for a in read if self._levels(a) and self._levels(a)[0][0] == order[0]), "")
        return [d.Parallel(order[0], "dynamic" if by else "static", by)]
