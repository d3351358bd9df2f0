"""Cursors: one operand along one level, at a position that loops advance.

In: `A[i,j]`, A compressed by row, `i` entered. Out: `pA2` from `A2_pos[i]` to `A2_pos[i + 1]`, at `A2_crd[pA2]`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, both, compare, larger, minus, plus, smaller
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered, Place, Range, scalar
from sparsify.compiler.loops.lower.levels.places import (
    advance,
    coordinate_at,
    next_variable,
    numerator,
    place_of,
)
from sparsify.compiler.loops.lower.levels.search import first_from
from sparsify.compiler.loops.lower.levels.stored import level_range, repeats
from sparsify.errors import ScheduleError


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
    def start(cls, context: Context, access: Access, env: Environment) -> Cursor:
        """The cursor of `access` on its current level."""
        place = place_of(context, access, env)
        in_lanes = _is_in_lanes(context, access, place, env)
        reach = level_range(context, access, place, in_lanes=in_lanes)
        name = f"p{access.tensor}{place.levels + 1}"
        again = repeats(context, access, place.levels)
        nothing = loops.Var("", loops.INT)
        parent = place.position.start
        cursor = cls(access, place.levels, name, parent, reach, again, nothing, nothing, in_lanes=in_lanes)
        mode = context.levels(access.tensor)[place.levels].expression.mode
        index = access.indices[mode]
        return cursor if isinstance(index, Index) else cursor._in_window(context, mode, env)

    def _in_window(self, context: Context, mode: int, env: Environment) -> Cursor:
        """Restricted to positions with coordinates, minus the known part of the index, equal to the loop variable."""
        stored = context.levels(self.access.tensor)[self.level]
        variable = next_variable(context, self.access, stored, env)
        assert variable is not None, "a window is driven along one variable"
        known = numerator(context, self.access, mode, env, variable)
        assert known is not None, "the other variables have values"
        if not known.is_uniform:
            raise ScheduleError(f"the lanes of a vector loop shift {self.access}", "vectorise another index")
        if not stored.level.is_ordered:
            raise ScheduleError(f"{self.access} is a window of unordered coordinates", "an ordered level")
        shift = known.start
        begin, first = first_from(context, self.access, self.level, self.parent, self.reach, shift)
        end, last = first_from(
            context, self.access, self.level, self.parent, self.reach, plus(shift, context.bound(variable))
        )
        return replace(self, reach=Range(begin, end), declarations=(*first, *last), shift=shift)

    def between(self, context: Context, limits: Range | None) -> Cursor:
        """Restricted to positions with coordinates between limits of the loop variable."""
        if limits is None:
            return self
        ends = [
            first_from(context, self.access, self.level, self.parent, self.reach, plus(self.shift, end))
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

    def declared(self, context: Context, reach: Range | None = None) -> Cursor:
        """With the two variables declared at the ends of `reach`."""
        reach = reach or self.reach
        var = context.fresh_int(self.name)
        end = context.fresh_int(f"{self.name}_end")
        made = (*self.declarations, loops.Declare(var, reach.begin, True), loops.Declare(end, reach.end))
        return replace(self, reach=reach, var=var, end=end, declarations=made)

    @property
    def alive(self) -> loops.Expr:
        """`p < end`."""
        return compare("lt", self.var, self.end)

    def coordinate(self, context: Context) -> loops.Expr:
        """`crd[p]`."""
        return self.coordinate_of(context, self.var)

    def coordinate_of(self, context: Context, position: loops.Expr) -> loops.Expr:
        """The coordinate at a position, in terms of the loop variable."""
        found = coordinate_at(context, self.access, self.level, self.parent, scalar(position)).start
        return minus(found, self.shift)

    def here(self, context: Context, env: Environment, coordinate: loops.Expr) -> tuple[Lowered, Environment]:
        """The operand at `p`: the search for the end of the segment, and the environment inside."""
        if not self.repeats:
            place = Place(self.level + 1, scalar(self.var), segment=self.reach.begin)
            return [], advance(env, self.access, place)
        end = context.fresh_int(f"{self.name}_next")
        same = compare("eq", self.coordinate_of(context, end), coordinate)
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


def _is_in_lanes(context: Context, access: Access, place: Place, env: Environment) -> bool:
    """Whether the lanes of the enclosing loop are neighbouring parents of one slice."""
    levels = context.levels(access.tensor)
    stride, lane = levels[place.levels].level.stride, env.lane
    if stride == 1 or lane is None or stride % lane.lanes:
        return False
    if place.position.vector is not None or place.position.step != ONE:
        return False
    # Vectors of the parents of a slice start at multiples of the vector length.
    parents = context.level_variable(access, levels[place.levels - 1])
    return lane.index == parents and parents in env.ranges and env.ranges[parents].begin == ZERO
