"""The expected time of one thread for a program under a schedule, from concrete index notation.

In: `forall i: let a in register: (forall j: a += A[i,j] * x[j]); y[i] = a`, the sizes of `A` and `x`.
Out: rows, their entries, one multiply and add each in a chain of additions: about 60 us.

Loops are counted by the nests of their assignments (`iterations.py`), in the time of one multiply and add of a vector
register. An operand is read once for each iteration of the innermost loop that its indices depend on. Additions to one
register wait for each other; additions to memory are loaded and stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf, prod
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Cast, Declaration, Expr, Index, Program
from sparsify.compiler.ir.node import Node, children, find, map_children
from sparsify.compiler.notation.nodes import (
    Forall,
    If,
    Let,
    Notation,
    Parallel,
    Position,
    Prefetch,
    Split,
    Temporary,
    Unrolled,
    Vector,
)
from sparsify.compiler.notation.nodes import Sequence as Statements
from sparsify.compiler.schedule.cost.iterations import UNKNOWN_EXTENT, Nest, nest_of, spread
from sparsify.compiler.schedule.cost.machine import Machine, scaled
from sparsify.compiler.schedule.cost.statement import ARITHMETIC, ELEMENTARY, LINE_BYTES, ROW
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.format import Format

# Vectors' times: an iteration of a loop, of a list of coordinates, of merged lists; entering a loop.
STEP: Final = 1.0
LISTED: Final = 2.0
MERGED: Final = 20.0
ENTER: Final = 4.0
# Additions that wait for each other, in a register and through memory.
LATENCY: Final = 6.0
STORED_LATENCY: Final = 10.0
# A lane of a gather; all lanes of a register added up.
GATHERED: Final = 1.5
ACROSS: Final = 8.0
# An addition to a workspace whose entries in use are listed or marked, beyond that to memory; an appended entry.
LISTED_SUM: Final = 8.0
MARKED_SUM: Final = 4.0
APPENDED: Final = 6.0
# The rest of a list that does not fill a tile of lanes, read under masks.
PARTIAL: Final = 15.0
# The share of the time of a gather that remains after a prefetch.
PREFETCHED: Final = 0.6
# Threads of the assumed machine, and how evenly each policy shares rows of unequal length among them.
THREADS: Final = 2
EVEN: Final = {"dynamic": 0.98, "balanced": 0.97, "static": 0.9}


@dataclass(frozen=True)
class Pricing:
    """The facts that all schedules of a program share.

    Attributes:
        sizes: sizes of the operands.
        lanes: elements of the result's dtype in a vector register.
        item_bytes: bytes of such an element.
        nests: memoized nests of assignments, `None` for those that are not counted.
    """

    sizes: Sizes
    lanes: int
    item_bytes: int
    nests: dict[Assign, Nest | None] = field(default_factory=dict)

    @cached_property
    def machine(self) -> Machine:
        """The assumed machine; a choice does not depend on the measured one, so that kernels stay the same."""
        return scaled(THREADS, self.lanes * self.item_bytes)


def scheduled_us(tree: Notation, pricing: Pricing) -> float:
    """The expected time of a program, infinite if one of its nests is not counted."""
    return Scheduled(tree, pricing).cost(tree.body, ()) * pricing.machine.vector_us


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop around a statement.

    Attributes:
        node: the loop.
        root: index variable that the loop belongs to.
        runs: expected runs of its body; those of a vector loop count registers.
        completes: whether the loop and those around it determine the index variable.
    """

    node: Forall
    root: str
    runs: float
    completes: bool


Around = tuple[Loop, ...]


class Scheduled:
    """The costs of the statements of one scheduled program."""

    def __init__(self, tree: Notation, pricing: Pricing) -> None:
        self.tree = tree
        self.pricing = pricing
        self.splits = {name: r for r in tree.relations if isinstance(r, Split) for name in (r.outer, r.inner)}
        self.positions = {r.position: r.index for r in tree.relations if isinstance(r, Position)}
        self.ahead = {r.tensor for r in tree.relations if isinstance(r, Prefetch)}
        lets = find(tree.body, Let)
        self.temporaries = {t.name: t for let in lets for t in let.temporaries}
        declared = {d.name: d for d in tree.declarations}
        self.declared = declared | {t.name: self._declaration(t) for t in self.temporaries.values()}

    def root(self, loop: str) -> str:
        """The index variable of a loop."""
        while loop in self.splits or loop in self.positions:
            loop = self.splits[loop].index if loop in self.splits else self.positions[loop]
        return loop

    def roots(self, access: Access) -> tuple[str, ...]:
        """The index variables of an access, outermost stored mode first."""
        declared = self.declared[access.tensor]
        order = declared.format.ordering if len(declared.format.ordering) == len(access.indices) else None
        names = [index.name if isinstance(index, Index) else "" for index in access.indices]
        names = names if order is None else [names[mode] for mode in order]
        return tuple(dict.fromkeys(self.root(name) for name in names))

    def _declaration(self, temporary: Temporary) -> Declaration:
        """A temporary as a dense tensor over index variables."""
        names = tuple(dict.fromkeys(self.root(name) for name in temporary.indices))
        dense = Format(", ".join(["dense"] * len(names)) if names else (), rank=len(names))
        return Declaration(temporary.name, names, dense, temporary.dtype)

    def cost(self, node: Node, around: Around) -> float:
        """The cost of a statement in all runs of the loops around it."""
        match node:
            case Statements(statements):
                return sum([self.cost(statement, around) for statement in statements])
            case Let(temporaries, body):
                return self._cleared(temporaries, around) + self.cost(body, around)
            case If(_, body):
                return self.cost(body, around)
            case Forall():
                return self._loop(node, around)
            case Assign():
                return self._assign(node, around)
        return inf

    def _cleared(self, temporaries: Sequence[Temporary], around: Around) -> float:
        """The cost of setting temporaries in memory to their first values, and of their traffic."""
        runs = around[-1].runs if around else 1.0
        total = 0.0
        for temporary in temporaries:
            if temporary.scope == "register":
                if any(not self._is_constant(name) for name in temporary.indices):
                    return inf  # no number of registers holds all elements
                continue
            if temporary.listed or temporary.marked:
                continue  # cleared entry by entry
            count = prod([self._extent(name) for name in self.declared[temporary.name].extents])
            own = count * self.pricing.item_bytes
            moved = 2 * own / self.pricing.machine.reads.at(own) / self.pricing.machine.vector_us
            total += runs * max(count / self.pricing.lanes, moved)
        return total

    def _is_constant(self, loop: str) -> bool:
        """Whether the extent of a loop is known at compile time."""
        split = self.splits.get(loop)
        return loop in dict(self.tree.extents) or (split is not None and split.inner == loop)

    def _extent(self, name: str) -> float:
        return float(self.pricing.sizes.extents.get(name, UNKNOWN_EXTENT))

    def _loop(self, node: Forall, around: Around) -> float:
        """The cost of a loop and its body; threads share the outermost parallel one."""
        loop, steps, lists = self._counted(node, around)
        outer = around[-1].runs if around else 1.0
        each = STEP if not lists else LISTED if lists == 1 else MERGED
        is_unrolled = isinstance(node.kind, Vector | Unrolled) and node.index in self.splits
        if isinstance(node.kind, Vector) and self._is_of_positions(node.index):
            outer_lists = around[-2].runs if len(around) > 1 else 1.0
            return PARTIAL * outer_lists + self.cost(node.body, (*around, loop))
        own = 0.0 if is_unrolled else outer * ((ROW / 2 if lists else ENTER) + steps * each)
        total = own + self.cost(node.body, (*around, loop))
        if not isinstance(node.kind, Parallel) or any(isinstance(a.node.kind, Parallel) for a in around):
            return total
        machine = self.pricing.machine
        even = EVEN[node.kind.policy]
        return total / (THREADS * even) + outer * machine.fork_us / machine.vector_us

    def _is_of_positions(self, loop: str) -> bool:
        """Whether a loop runs inside a tile of a list: the last tile of each list is read under a mask."""
        split = self.splits.get(loop)
        return split is not None and split.inner == loop and split.index in self.positions

    def _counted(self, node: Forall, around: Around) -> tuple[Loop, float, int]:
        """A loop with its runs, its steps for each run of the loops around it, and the number of its lists."""
        root, split = self.root(node.index), self.splits.get(node.index)
        outer = around[-1].runs if around else 1.0
        is_inner = split is not None and split.inner == node.index
        span, steps, lists = self._span(node, root, around)
        if split is None:
            trips = span
        elif not is_inner:
            trips = span / split.size + 0.5 if lists else ceil(span / split.size)
            steps = trips
        else:
            tiles = span / split.size + 0.5 if lists else ceil(span / split.size)
            is_whole = isinstance(node.kind, Vector | Unrolled)
            trips = min(float(split.size), max(span, 1.0)) if is_whole else span / max(tiles, 1.0)
            steps, lists = trips, 0
        if isinstance(node.kind, Vector):
            trips = float(ceil(trips / self.pricing.lanes))
            steps = trips
        return Loop(node, root, outer * trips, split is None or is_inner), steps, lists

    def _span(self, node: Forall, root: str, around: Around) -> tuple[float, float, int]:
        """The iterations with a body, the visited coordinates, and the lists, by the most selective assignment."""
        best: tuple[float, float, int] | None = None
        for assign in find(node, Assign):
            nest = self._nest(assign)
            if nest is None:
                return inf, inf, 0
            if root not in nest.variables:
                continue
            mask = 0
            for loop in around:
                if loop.completes and loop.root in nest.variables:
                    mask |= nest.bit(loop.root)
            bit = nest.bit(root)
            if mask & bit:  # a second loop over the same variable
                continue
            if (listed := self._taken(assign, root)) is not None:
                return listed, listed, 1
            above = nest.count(mask)
            visits, lists = nest.visits(mask, bit)
            found = (nest.count(mask | bit) / above if above else 0.0, visits, lists)
            best = found if best is None or found < best else best
        return best or (self._extent(root), self._extent(root), 0)

    def _taken(self, assign: Assign, root: str) -> float | None:
        """The entries in use of a workspace that an assignment reads along a loop; `None` for other reads."""
        for access in find(assign.value, Access):
            temporary = self.temporaries.get(access.tensor)
            if (
                temporary is None
                or not (temporary.listed or temporary.marked)
                or root not in self.roots(access)
            ):
                continue
            makers = [
                a for a in find(self.tree.body, Assign) if a.target.tensor == access.tensor and a.monoid
            ]
            nest = self._nest(makers[0]) if makers else None
            if nest is not None:
                mask = nest.full & ~nest.target
                rows = sum(
                    [nest.bit(n) for n in nest.variables if n not in self.roots(access) and self._is_row(n)]
                )
                runs = max(nest.count(rows), 1.0)
                return spread(nest.count(mask | nest.full) / runs, nest.coordinates(nest.target))
        return None

    def _is_row(self, name: str) -> bool:
        """Whether an index variable is one of the result's."""
        targets = [a.target for a in find(self.tree.body, Assign) if a.target.tensor in self.tree.outputs]
        return any(name in self.roots(target) for target in targets)

    def _nest(self, assign: Assign) -> Nest | None:
        """The nest of an assignment over index variables."""
        memory = self.pricing.nests
        if assign not in memory:
            plain = map_children(assign, self._rooted)
            assert isinstance(plain, Assign)
            tree = self.tree
            program = Program((), tuple(self.declared.values()), tree.inputs, tree.outputs, tree.extents)
            known = replace(self.pricing.sizes, extents={**dict(tree.extents), **self.pricing.sizes.extents})
            memory[assign] = nest_of(program, plain.target, plain.value, known, plain.monoid)
        return memory[assign]

    def _rooted(self, node: Node) -> Node:
        """Accesses to temporaries by index variables: `w[ko,ki] -> w[k]`."""
        if isinstance(node, Access) and node.tensor in self.temporaries:
            return Access(node.tensor, tuple(Index(name) for name in self.declared[node.tensor].extents))
        return map_children(node, self._rooted)

    def _assign(self, node: Assign, around: Around) -> float:
        """The cost of an assignment in all runs of its loops."""
        runs = around[-1].runs if around else 1.0
        work = self._value(node.value, around)[1]
        target = self.temporaries.get(node.target.tensor)
        is_register = target is not None and target.scope == "register"
        if target is not None and (target.listed or target.marked):
            work += runs * (LISTED_SUM if target.listed else MARKED_SUM)
        elif node.target.tensor in self.tree.outputs and self.declared[node.target.tensor].is_assembled:
            work += runs * APPENDED
        depth = self._depth(node.target, around)
        if node.monoid is None:
            written = 0.0 if is_register else self._moved(node.target, around, depth)
            return work + written
        work += runs
        summed = [n for n, loop in enumerate(around) if not self._varies(node.target, loop)]
        if summed and isinstance(around[summed[-1]].node.kind, Vector):
            work += runs * ACROSS
        if not is_register:
            work += self._moved(node.target, around, len(around)) * 2
        waits = around[summed[-1]].runs if summed else 0.0
        return max(work, waits * (LATENCY if is_register else STORED_LATENCY))

    def _value(self, expr: Expr, around: Around) -> tuple[int, float]:
        """The innermost loop that an expression depends on, and its cost in all runs; invariant parts are hoisted."""
        if isinstance(expr, Access):
            depth = self._depth(expr, around)
            temporary = self.temporaries.get(expr.tensor)
            is_register = temporary is not None and temporary.scope == "register"
            return depth, 0.0 if is_register or not expr.indices else self._moved(expr, around, depth)
        if isinstance(expr, Index):
            loops = [n for n, loop in enumerate(around, 1) if loop.root == self.root(expr.name)]
            return max(loops, default=0), 0.0
        parts = [self._value(child, around) for child in children(expr) if isinstance(child, Expr)]
        depth = max((part[0] for part in parts), default=0)
        cost = sum([part[1] for part in parts])
        if isinstance(expr, Call | Cast):
            is_cheap = isinstance(expr, Cast) or expr.function in ARITHMETIC
            cost += (around[depth - 1].runs if depth else 1.0) * (1.0 if is_cheap else ELEMENTARY)
        return depth, cost

    def _varies(self, access: Access, loop: Loop) -> bool:
        """Whether an access depends on a loop; a temporary of a tile depends on the loop inside the tile only."""
        if access.tensor in self.temporaries:
            own = self.temporaries[access.tensor].indices
            return loop.node.index in own or loop.root in own
        return loop.root in self.roots(access)

    def _depth(self, access: Access, around: Around) -> int:
        """The number of loops down to the innermost one that an access depends on."""
        return max((n for n, loop in enumerate(around, 1) if self._varies(access, loop)), default=0)

    def _moved(self, access: Access, around: Around, depth: int) -> float:
        """The cost of reading or writing an access in each run of the loops down to one."""
        if not depth:
            return 1.0
        loop, roots, machine = around[depth - 1], self.roots(access), self.pricing.machine
        declared = self.declared[access.tensor]
        item = self.pricing.item_bytes
        lanes = self.pricing.lanes if isinstance(loop.node.kind, Vector) else 1
        is_sparse = not declared.format.is_dense or declared.pattern_of is not None
        if is_sparse or (roots and roots[-1] == loop.root):
            each, moved = 1.0, item * lanes
        else:
            each, moved = (GATHERED * lanes if lanes > 1 else 1.0), LINE_BYTES * lanes
        table = prod([self._extent(name) for name in declared.extents]) * item
        full = self._full(access) if is_sparse else roots
        is_random = any(self._is_listed(a) for a in around[:depth] if a.root in full)
        if is_sparse:
            table = self.pricing.sizes.stored.get(access.tensor, UNKNOWN_EXTENT) * 2 * item
        rate = machine.gathers.at(table) if is_random else machine.reads.at(table)
        taken = moved / rate / machine.vector_us
        if is_random and access.tensor in self.ahead:
            taken *= PREFETCHED
        return loop.runs * max(each, taken)

    def _full(self, access: Access) -> list[str]:
        """The index variables along full levels of a sparse operand: lists of others may jump between them."""
        levels = self.declared[access.tensor].format.levels
        names = [index.name if isinstance(index, Index) else "" for index in access.indices]
        return [self.root(names[stored.expression.mode]) for stored in levels if stored.level.is_full]

    def _is_listed(self, loop: Loop) -> bool:
        """Whether a loop runs over stored coordinates."""
        sparse = [a for a in find(loop.node, Access) if not self.declared[a.tensor].format.is_dense]
        for access in sparse:
            levels = self.declared[access.tensor].format.levels
            if loop.root in [
                self.root(index.name)
                for stored in levels
                if not stored.level.is_full
                and stored.expression.mode < len(access.indices)
                and isinstance(index := access.indices[stored.expression.mode], Index)
            ]:
                return True
        return False
