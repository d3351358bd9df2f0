"""Loops over stored coordinates: one operand, several merged, or all coordinates with cursors alongside.

In: `forall j: C[i,j] = A[i,j] + B[i,j]`, both compressed. Out: a cursor on each, advanced by `merge.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    both,
    compare,
    integer,
    larger,
    minus,
    plus,
    smaller,
)
from sparsify.compiler.loops.lower.assemble import remarked
from sparsify.compiler.loops.lower.environment import Environment, Place, Range, scalar
from sparsify.compiler.loops.lower.iterate import bitmap, prefetch, sliced
from sparsify.compiler.loops.lower.iterate import search as locate
from sparsify.compiler.loops.lower.iterate.enter import body_at
from sparsify.compiler.loops.lower.iterate.intersect import intersection
from sparsify.compiler.loops.lower.iterate.merge import Visit, merge
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.level_access import (
    advance,
    coordinate_at,
    first_below,
    is_located,
    next_variable,
    numerator,
    place_of,
)
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]


def drivers(low: Lowering, loop: notation.Forall, env: Environment) -> list[Access]:
    """The accesses in the loop with stored coordinates of the loop variable in the next level."""
    found: dict[Access, None] = {}
    for access in stored_accesses(low, loop.body, env):
        place = place_of(low, access, env)
        levels = low.declaration(access.tensor).format.levels
        if place.levels == len(levels) or is_located(levels[place.levels]):
            continue
        if next_variable(low, access, levels[place.levels], env) == loop.index:
            found[access] = None
    return list(found)


def stored_accesses(low: Lowering, node: Node, env: Environment) -> list[Access]:
    """The accesses to operands with separate patterns, also if shared, possibly stored at this point.

    A window without values depending on it is excluded: its bounds have not been checked.
    """
    read = {low.root_of(access) for access in locate.accesses_read(low, node, env)}
    targets = {n.target.tensor for n in find(node, Assign)}
    roots = (low.root_of(n) for n in find(node, Access))
    return [
        root
        for root in dict.fromkeys(roots)
        if root.tensor in low.declarations
        and root.tensor not in targets
        and not low.declaration(root.tensor).format.is_dense
        and root not in env.absent
        and (root in read or all(isinstance(index, Index) for index in root.indices))
    ]


def level_range(low: Lowering, access: Access, place: Place, *, in_lanes: bool = False) -> Range:
    """The positions of the current level of `access`; for differing parents, of the parent in the first lane."""
    if not (place.position.is_uniform or in_lanes):
        raise ScheduleError(
            f"the lanes of a vector loop reach different rows of {access}", "vector an inner loop"
        )
    if place.part is not None:
        return place.part
    start = place.position.start
    stride = low.declaration(access.tensor).format.levels[place.levels].level.stride
    after = plus(start, integer(stride)) if place.segment_end is None else place.segment_end
    begin, end = (first_below(low, access, place.levels, parent) for parent in (start, after))
    return Range(begin, end)


def iterate(
    low: Lowering, loop: notation.Forall, found: list[Access], env: Environment, limits: Range | None = None
) -> Lowered:
    """The loop over the coordinates stored in `found`, by the lattice points of the body.

    `limits`: the thread's part of the positions (one operand) or coordinates (several, cursors).
    """
    points = statement_points(loop.body, frozenset(found), low, env.absent)
    if frozenset() in points:
        return _cursors(low, loop, found, env, limits)
    note_skipping(low, loop.body, found)
    if not points:
        return []
    if points == frozenset({frozenset(found)}) and len(found) == 1:
        return _single(low, loop, found[0], env, limits)
    cursors = [Cursor.start(low, access, env).between(low, limits).declared(low) for access in found]
    if points == frozenset({frozenset(found)}):
        return intersection(low, loop, cursors, env)
    return merge(low, loop, cursors, points, env)


def note_skipping(low: Lowering, body: Node, found: list[Access]) -> None:
    """Marks results of a loop over `found` as prefilled, except results on the pattern of `found`.

    Loops leave out the padding of blocks, so padding has to be prefilled.
    """
    low.prefilled.update(
        n.target.tensor
        for n in find(body, Assign)
        if n.monoid is None and not (low.root_of(n.target) in found and all(map(low.is_whole, low.blocks)))
    )


def repeats(low: Lowering, access: Access, level: int) -> bool:
    """Whether a level stores a coordinate once for each entry below, as all levels of COO but the last."""
    levels = [stored.level for stored in low.declaration(access.tensor).format.levels]
    if level + 1 == len(levels) or not levels[level + 1].is_branchless:
        return False
    return levels[level].is_branchless or not levels[level].is_unique


def _single(
    low: Lowering, loop: notation.Forall, access: Access, env: Environment, limits: Range | None
) -> Lowered:
    """`for p in pos[q]..pos[q + 1]: j = crd[p]; body`."""
    cursor = Cursor.start(low, access, env)
    level = low.declaration(access.tensor).format.levels[cursor.level].level
    if level.has_bits:
        return bitmap.iterate(low, loop, cursor, env, limits)
    if level.stride > 1:
        return sliced.iterate(low, loop, cursor, env, limits)
    reach = cursor.within(limits)
    if cursor.repeats:
        return _segments(low, loop, cursor, reach, env)
    var = loops.Var(low.fresh(cursor.name), loops.INT)
    coordinate = loops.Var(low.fresh(loop.index), loops.INT)
    inner = advance(env, access, Place(cursor.level + 1, scalar(var), segment=cursor.reach.begin))

    def ahead(here: Environment) -> Lowered:
        if cursor.shift != ZERO:
            return []
        return prefetch.prefetches(low, access, cursor.level, var, loop.index, loop.body, here)

    body = body_at(low, loop, coordinate, inner, ahead)
    if not body:
        return []
    declared = loops.Declare(coordinate, cursor.coordinate_of(low, var))
    block = loops.Block((declared, *body))
    made = [*cursor.declarations, loops.For(var, reach.begin, reach.end, block)]
    return remarked.once(low, loop, access, env, made, lambda: _single(low, loop, access, env, limits))


def _segments(
    low: Lowering, loop: notation.Forall, cursor: Cursor, reach: Range, env: Environment
) -> Lowered:
    """`while p < end: i = crd[p]; q = end of the entries with i; body; p = q`."""
    cursor = cursor.declared(low, reach)
    coordinate = loops.Var(low.fresh(loop.index), loops.INT)
    step, inner = cursor.here(low, env, coordinate)
    body = body_at(low, loop, coordinate, inner)
    if not body:
        return []
    block = loops.Block(
        (
            loops.Declare(coordinate, cursor.coordinate(low)),
            *step,
            *body,
            loops.Set(cursor.var, cursor.after(inner)),
        )
    )
    return [*cursor.declarations, loops.While(cursor.alive, block)]


@dataclass(frozen=True, slots=True)
class Cursor:
    """An operand traversed along a level: variable `var`, from `reach.begin` to `end`.

    In a window, coordinates are the loop variable plus `shift`. `in_lanes`: `parent` and `reach` belong to the first
    lane, and each lane has a separate parent.
    """

    access: Access
    level: int
    name: str
    parent: loops.Expr
    reach: Range
    repeats: bool
    var: loops.Var
    end: loops.Var
    declarations: tuple[loops.Stmt, ...] = ()
    shift: loops.Expr = ZERO
    in_lanes: bool = False

    @classmethod
    def start(cls, low: Lowering, access: Access, env: Environment) -> Cursor:
        """The cursor of `access` on its current level."""
        place = place_of(low, access, env)
        in_lanes = sliced.is_in_lanes(low, access, place, env)
        reach = level_range(low, access, place, in_lanes=in_lanes)
        name = f"p{access.tensor}{place.levels + 1}"
        again = repeats(low, access, place.levels)
        nothing = loops.Var("", loops.INT)
        parent = place.position.start
        cursor = cls(access, place.levels, name, parent, reach, again, nothing, nothing, in_lanes=in_lanes)
        mode = low.declaration(access.tensor).format.levels[place.levels].expression.mode
        index = access.indices[mode]
        return cursor if isinstance(index, Index) else cursor._in_window(low, mode, env)

    def _in_window(self, low: Lowering, mode: int, env: Environment) -> Cursor:
        """Restricted to positions with coordinates, minus the known part of the index, equal to the loop variable."""
        stored = low.declaration(self.access.tensor).format.levels[self.level]
        variable = next_variable(low, self.access, stored, env)
        assert variable is not None, "a window is driven along one variable"
        known = numerator(low, self.access, mode, env, variable)
        assert known is not None, "the other variables have values"
        if not known.is_uniform:
            raise ScheduleError(f"the lanes of a vector loop shift {self.access}", "vectorise another index")
        if not stored.level.is_ordered:
            raise ScheduleError(f"{self.access} is a window of unordered coordinates", "an ordered level")
        shift = known.start
        begin, first = locate.first_from(low, self.access, self.level, self.parent, self.reach, shift)
        end, last = locate.first_from(
            low, self.access, self.level, self.parent, self.reach, plus(shift, low.bound(variable))
        )
        return replace(self, reach=Range(begin, end), declarations=(*first, *last), shift=shift)

    def between(self, low: Lowering, limits: Range | None) -> Cursor:
        """Restricted to positions with coordinates between limits of the loop variable."""
        if limits is None:
            return self
        ends = [
            locate.first_from(low, self.access, self.level, self.parent, self.reach, plus(self.shift, end))
            for end in (limits.begin, limits.end)
        ]
        (begin, first), (end, last) = ends
        return replace(self, reach=Range(begin, end), declarations=(*self.declarations, *first, *last))

    def within(self, limits: Range | None) -> Range:
        """The intersection of both ranges; a cursor outside of a window covers all positions of its level."""
        if limits is None or not self.declarations:
            return limits or self.reach
        begin, end = larger(limits.begin, self.reach.begin), smaller(limits.end, self.reach.end)
        return Range(begin, end)

    def declared(self, low: Lowering, reach: Range | None = None) -> Cursor:
        """With the two variables declared at the ends of `reach`."""
        reach = reach or self.reach
        var = loops.Var(low.fresh(self.name), loops.INT)
        end = loops.Var(low.fresh(f"{self.name}_end"), loops.INT)
        made = (*self.declarations, loops.Declare(var, reach.begin, True), loops.Declare(end, reach.end))
        return replace(self, reach=reach, var=var, end=end, declarations=made)

    @property
    def alive(self) -> loops.Expr:
        """`p < end`."""
        return compare("lt", self.var, self.end)

    def coordinate(self, low: Lowering) -> loops.Expr:
        """`crd[p]`."""
        return self.coordinate_of(low, self.var)

    def coordinate_of(self, low: Lowering, position: loops.Expr) -> loops.Expr:
        """The coordinate at a position, in terms of the loop variable."""
        found = coordinate_at(low, self.access, self.level, self.parent, scalar(position)).start
        return minus(found, self.shift)

    def here(self, low: Lowering, env: Environment, coordinate: loops.Expr) -> tuple[Lowered, Environment]:
        """The operand at `p`: the search for the end of the segment, and the environment inside."""
        if not self.repeats:
            place = Place(self.level + 1, scalar(self.var), segment=self.reach.begin)
            return [], advance(env, self.access, place)
        end = loops.Var(low.fresh(f"{self.name}_next"), loops.INT)
        same = compare("eq", self.coordinate_of(low, end), coordinate)
        search: Lowered = [
            loops.Declare(end, plus(self.var, ONE), True),
            loops.While(both(compare("lt", end, self.end), same), loops.Set(end, plus(end, ONE))),
        ]
        return search, advance(
            env, self.access, Place(self.level + 1, scalar(self.var), end, self.reach.begin)
        )

    def after(self, env: Environment) -> loops.Expr:
        """The next position: the end of the segment, or one further."""
        end = env.places[self.access].segment_end
        return end if self.repeats and end is not None else plus(self.var, ONE)


def _cursors(
    low: Lowering, loop: notation.Forall, found: list[Access], env: Environment, limits: Range | None
) -> Lowered:
    """`for j in 0..extent`: at each coordinate the operands stored at `j`, with a cursor on each."""
    cursors = [Cursor.start(low, access, env).declared(low) for access in found]
    visit = Visit(low, loop, cursors)
    reach = limits or env.ranges.get(loop.index) or Range(ZERO, low.bound(loop.index))
    lowered: Lowered = [stmt for cursor in cursors for stmt in cursor.declarations]
    if reach.begin != ZERO:
        lowered += [_skip(low, cursor, reach.begin) for cursor in cursors]
    points = [frozenset(c) for n in range(len(found), -1, -1) for c in combinations(found, n)]
    bodies = visit.bodies(points, env)
    if not bodies:
        return []
    block = loops.Block(tuple(visit.cases(bodies)))
    return [*lowered, loops.For(visit.coordinate, reach.begin, reach.end, block)]


def _skip(low: Lowering, cursor: Cursor, begin: loops.Expr) -> loops.Stmt:
    """`while p < end and crd[p] < begin: p += 1`, the start of a thread's part, or of a piece of a tile."""
    before = compare("lt", cursor.coordinate(low), begin)
    return loops.While(both(cursor.alive, before), loops.Set(cursor.var, plus(cursor.var, ONE)))
