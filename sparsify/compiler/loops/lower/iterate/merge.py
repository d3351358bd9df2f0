"""Union co-iteration: the coordinates of several operands merged in order, a case for each lattice point.

In: `forall j: C[i,j] = A[i,j] + B[i,j]`, a cursor on each. Out: `while A and B have entries left:`, the cases of a next
coordinate in A, in B or in both; then the remaining entries of A, and of B.

If the body needs A, as in `P[i,j] = where(stored(A[i,j]), B[i,j], 0)`, the other operands seek the coordinates of A
as in `intersect.py`.

Source: Kjolstad et al., The Tensor Algebra Compiler, 2017, section 4 (merge lattices, while loops per point).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, both, compare, larger, smaller
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.iterate.body import body_at
from sparsify.compiler.loops.lower.iterate.cursor import Cursor
from sparsify.compiler.loops.lower.iterate.intersect import seek
from sparsify.compiler.loops.lower.lattice import Point
from sparsify.compiler.notation import nodes as notation

Bodies = Mapping[Point, loops.Block]


def merge(
    context: Context, loop: notation.Forall, found: list[Cursor], points: frozenset[Point], env: Environment
) -> Lowered:
    """A `while` loop for each point, larger ones first: as long as all operands of the point have entries left."""
    lowered: Lowered = [stmt for cursor in found for stmt in cursor.declarations]
    for point in _by_size(points, found):
        visit = Visit(context, loop, [cursor for cursor in found if cursor.access in point])
        inner = env.without(frozenset(cursor.access for cursor in found) - point)
        bodies = visit.bodies([p for p in _by_size(points, found) if p <= point], inner)
        if len(visit.cursors) == 1:
            lowered += visit.alone(bodies)
        elif len(visit.cursors) == 2 and not visit.are_alike(bodies):
            lowered += visit.pair(bodies)
        elif leading := visit.leading(bodies):
            lowered += visit.led(bodies, leading)
        else:
            lowered += visit.together(bodies)
    return lowered


def _by_size(points: frozenset[Point], found: list[Cursor]) -> list[Point]:
    """Larger points first, in the order of the operands."""
    accesses = [cursor.access for cursor in found]
    return sorted(
        points, key=lambda point: (-len(point), [accesses.index(a) for a in accesses if a in point])
    )


class Visit:
    """A loop over the coordinates of some cursors, with a subset of the operands stored at each coordinate.

    Attributes:
        coordinate: current coordinate of the loop.
    """

    def __init__(self, context: Context, loop: notation.Forall, cursors: list[Cursor]) -> None:
        self.context, self.loop, self.cursors = context, loop, cursors
        self.coordinate = context.fresh_int(loop.index)
        self._searches: dict[Access, Lowered] = {}
        self._steps: dict[Access, loops.Stmt] = {}

    @property
    def _alive(self) -> loops.Expr:
        return reduce(both, (cursor.alive for cursor in self.cursors))

    def bodies(self, points: list[Point], env: Environment) -> Bodies:
        """The statements of each point, with exactly the operands of the point stored."""
        self.context.count_cases(self.loop, len(points))
        for cursor in self.cursors:
            self._searches[cursor.access], env = cursor.here(self.context, env, self.coordinate)
            self._steps[cursor.access] = loops.Set(cursor.var, cursor.after(env))
        accesses = frozenset(self._steps)
        made = {
            point: loops.Block(
                tuple(body_at(self.context, self.loop, self.coordinate, env.without(accesses - point)))
            )
            for point in reversed(points)
        }
        return made if any(block.statements for block in made.values()) else {}

    def are_alike(self, bodies: Bodies) -> bool:
        """Whether the body is the same for all points with stored entries."""
        return len(set(bodies.values())) == 1 and all(frozenset({c.access}) in bodies for c in self.cursors)

    def leading(self, bodies: Bodies) -> list[Cursor]:
        """The cursors required by every case with statements."""
        done = [point for point, block in bodies.items() if block.statements]
        return [cursor for cursor in self.cursors if all(cursor.access in point for point in done)]

    def alone(self, bodies: Bodies) -> Lowered:
        """`while A has entries left: j = crd[pA]`, and the body."""
        (cursor,) = self.cursors
        return [
            loops.While(
                cursor.alive,
                loops.Block(
                    (
                        loops.Declare(self.coordinate, cursor.coordinate(self.context)),
                        *self._searches[cursor.access],
                        block,
                        self._steps[cursor.access],
                    )
                ),
            )
            for block in bodies.values()
        ]

    def pair(self, bodies: Bodies) -> Lowered:
        """`if jA < jB: ... elif jB < jA: ... else: ...`: each case advances its own cursors.

        A coordinate is read once and held until its cursor advances, and only an advanced cursor may be exhausted.
        A cursor without a case of its own seeks the coordinate of the other.
        """
        if not bodies:
            return []
        left = loops.Var(self.context.fresh(f"{self.coordinate.name}_left"), loops.BOOL)
        held = {
            cursor.access: self.context.fresh_int(f"{self.coordinate.name}{cursor.access.tensor}")
            for cursor in self.cursors
        }
        lowered: Lowered = [loops.Declare(left, self._alive, True)]
        for cursor in self.cursors:
            start = loops.Op("where", (left, cursor.coordinate(self.context), ZERO), loops.INT)
            lowered.append(loops.Declare(held[cursor.access], start, True))

        def case(*here: Cursor) -> loops.Block:
            done = bodies.get(frozenset(cursor.access for cursor in here))
            body = [stmt for cursor in here for stmt in self._searches[cursor.access]]
            body += [] if done is None else [done]
            if body:
                body = [loops.Declare(self.coordinate, held[here[0].access]), *body]
            if len(here) == 1 and (done is None or not done.statements):
                (other,) = (cursor for cursor in self.cursors if cursor is not here[0])
                body = seek(self.context, here[0], held[other.access])
            else:
                body += [self._steps[cursor.access] for cursor in here]
            again = tuple(loops.Set(held[cursor.access], cursor.coordinate(self.context)) for cursor in here)
            still = reduce(both, (cursor.alive for cursor in here))
            return loops.Block((*body, loops.Set(left, still), loops.If(left, loops.Block(again))))

        first, second = self.cursors
        before = compare("lt", held[first.access], held[second.access])
        after = compare("lt", held[second.access], held[first.access])
        chain = loops.If(before, case(first), loops.If(after, case(second), case(first, second)))
        return [*lowered, loops.While(left, chain)]

    def together(self, bodies: Bodies) -> Lowered:
        """`while all have entries left: j = the least of their coordinates`, and the cases of stored operands."""
        if not bodies:
            return []
        least = reduce(smaller, (cursor.coordinate(self.context) for cursor in self.cursors))
        block = (loops.Declare(self.coordinate, least), *self.cases(bodies, is_merged=True))
        return [loops.While(self._alive, loops.Block(block))]

    def led(self, bodies: Bodies, leading: list[Cursor]) -> Lowered:
        """`while all have entries left: j = next candidate of the leading cursors`: all seek j, then the cases."""
        most = reduce(larger, (cursor.coordinate(self.context) for cursor in leading))
        seeks = [stmt for cursor in self.cursors for stmt in seek(self.context, cursor, self.coordinate)]
        at = (both(c.alive, compare("eq", c.coordinate(self.context), self.coordinate)) for c in leading)
        found = loops.If(reduce(both, at), loops.Block(tuple(self.cases(bodies))))
        block = (loops.Declare(self.coordinate, most), *seeks, found)
        return [loops.While(self._alive, loops.Block(block))]

    def cases(self, bodies: Bodies, is_merged: bool = False) -> Lowered:
        """`if A and B are at j: ... elif A is at j: ...`, then the cursors at j advance.

        If merged, all cursors have entries left and the coordinate belongs to one of them: a condition common to all
        points is omitted.
        """
        flags = {
            c.access: loops.Var(self.context.fresh(f"has_{c.access.tensor}"), loops.BOOL)
            for c in self.cursors
        }
        before: Lowered = []
        after: Lowered = []
        for cursor in self.cursors:
            flag = flags[cursor.access]
            is_here = compare("eq", cursor.coordinate(self.context), self.coordinate)
            before.append(loops.Declare(flag, is_here if is_merged else both(cursor.alive, is_here)))
            before += self._searches[cursor.access]
            after.append(loops.If(flag, self._steps[cursor.access]))
        chain: loops.Stmt | None = None
        for point, block in bodies.items():
            here: list[loops.Expr] = [flags[c.access] for c in self.cursors if c.access in point]
            chain = loops.If(reduce(both, here), block, chain) if here else block
        if is_merged and self.are_alike(bodies):
            chain = next(iter(bodies.values()))
        return [*before, *([chain] if chain is not None else []), *after]
