"""Entries at known coordinates: windows, possibly outside of their tensor, and stored entries found by search.

In: `x[2*h+r-1]` with `h` and `r` entered. Out: `if 0 <= 2 * h + r - 1 < x_0_extent: body; else: body with the fill`.
In: `A[i,3]`, A compressed by row. Out: a binary search for 3 in row `i`, then the body with or without the entry.

In vector lanes the body is emitted for lanes all inside, and for partly masked lanes; the
assignment selects between the value with the entry and the value without. For an index never below 0, as
`j - i + extent(i) - 1`, the first lanes are inside: the others are loaded as 0, if unstored entries are 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sparsify.compiler.einsum.affine import Affine, affine
from sparsify.compiler.einsum.nodes import Access, Assign, Const, Index
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    both,
    compare,
    constant,
    integer,
    minus,
    plus,
    quotient,
    remainder,
    times,
)
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Lowered, Place, Range, scalar
from sparsify.compiler.loops.lower.levels import hash_table
from sparsify.compiler.loops.lower.levels.places import (
    advance,
    coordinate_at,
    is_always_inside,
    is_located,
    known_coordinate,
    numerator,
    place_of,
)
from sparsify.compiler.loops.lower.levels.stored import accesses_read, level_range, repeats
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError


def located(context: Context, node: notation.Statement | Assign, env: Environment) -> Lowered:
    """The loop IR of a statement, emitted once with and once without each window and each searched entry."""
    for access in accesses_read(context, node, env):
        root = context.root_of(access)
        if root.tensor not in context.declarations or root in env.absent:
            continue
        declared = context.declaration(root.tensor)
        if len(root.indices) < declared.format.rank:
            continue  # a temporary inside of loops has the other modes, at plain index variables
        for stored in declared.format.levels:
            mode = stored.expression.mode
            index = root.indices[mode]
            if isinstance(index, Index | Const) or (root, mode) in env.inside | env.masked:
                continue
            if is_located(stored) and (at := numerator(context, root, mode, env)) is not None:
                context.count_bodies(root)
                return _in_bounds(context, node, root, mode, at, env)
        if (place := _to_search(context, root, env)) is not None:
            context.count_bodies(root)
            return _searched(context, node, root, place, env)
    return context.statement(node, env)


def _in_bounds(
    context: Context,
    node: notation.Statement | Assign,
    access: Access,
    mode: int,
    at: Coordinate,
    env: Environment,
) -> Lowered:
    """`if 0 <= index < extent: then; else: then with the fill`."""
    extent = context.extent(context.declaration(access.tensor).extents[mode])
    inside = replace(env, inside=env.inside | {(access, mode)})
    outside = env.without(frozenset({access}))
    form = affine(access.indices[mode])
    assert form is not None, "indices are affine"
    if is_always_inside(context, access, mode):
        return located(context, node, inside)
    if not at.is_uniform:
        return _lanes_in_bounds(context, node, access, mode, at, env)
    index, limit = at.start, times(extent, integer(form.divisor))
    condition = both(compare("ge", index, ZERO), compare("lt", index, limit))
    if form.divisor > 1:
        condition = both(condition, compare("eq", remainder(index, integer(form.divisor)), ZERO))
    return _either(condition, located(context, node, inside), located(context, node, outside))


def _lanes_in_bounds(
    context: Context,
    node: notation.Statement | Assign,
    access: Access,
    mode: int,
    at: Coordinate,
    env: Environment,
) -> Lowered:
    """The body for lanes all inside; else, if any value is read, the body under a mask."""
    assert env.lane is not None, "coordinates differ in lanes alone"
    form = affine(access.indices[mode])
    step = constant(at.step)
    if at.vector is not None or step is None or form is None or form.divisor != 1:
        raise ScheduleError(
            f"the lanes of {env.lane.index} are no steps along {access}", "vectorise another index"
        )
    extent = context.extent(context.declaration(access.tensor).extents[mode])
    known = replace(env, inside=env.inside | {(access, mode)})
    last = minus(integer(env.lane.lanes) if env.lane.count is None else env.lane.count, ONE)
    ends = (at.start, plus(at.start, times(last, at.step)))
    least, most = ends if step > 0 else ends[::-1]
    inside = located(context, node, known)
    if step == 1 and _is_never_below(context, form) and context.fill_of(access) == 0:
        cut = located(context, node, replace(known, cut=env.cut | {(access, mode)}))
        return _either(compare("lt", most, extent), inside, cut)
    whole = both(compare("ge", least, ZERO), compare("lt", most, extent))
    masked = located(context, node, replace(env, masked=env.masked | {(access, mode)}))
    outside = located(context, node, env.without(frozenset({access})))
    return _either(whole, inside, _either(compare("gt", extent, ZERO), masked, outside))


def _is_never_below(context: Context, form: Affine) -> bool:
    """Whether a form is at least 0 for all coordinates: subtracted variables are bounded by added extents."""
    factors = Counter[str]()
    for name, factor in form.extents:
        factors[context.extents.get(name, name)] += factor
    least = form.offset
    for name, factor in form.terms:
        if factor < 0:  # times the extent less 1
            factors[context.extents.get(name, name)] += factor
            least -= factor
    return least >= 0 and all(factor >= 0 for factor in factors.values())


def _either(condition: loops.Expr, then: Lowered, otherwise: Lowered) -> Lowered:
    """`if condition: then; else: otherwise`."""
    if not then and not otherwise:
        return []
    other = loops.Block(tuple(otherwise)) if otherwise else None
    return [loops.If(condition, loops.Block(tuple(then)), other)]


def _to_search(context: Context, access: Access, env: Environment) -> Place | None:
    """The place of an access with a next level to be searched, as no loop runs over the level."""
    levels = context.levels(access.tensor)
    place = place_of(context, access, env)
    is_table = hash_table.is_hashed(context, access, env)
    if not is_table and all(isinstance(index, Index) for index in access.indices):
        return None  # reached by loops in level order
    if place.levels == len(levels) or is_located(levels[place.levels]):
        return None
    return None if known_coordinate(context, access, levels[place.levels], env) is None else place


def _searched(
    context: Context, node: notation.Statement | Assign, access: Access, place: Place, env: Environment
) -> Lowered:
    """A search for the coordinate in the segment, then the body for a found and for a missing entry."""
    stored = context.levels(access.tensor)[place.levels]
    wanted = known_coordinate(context, access, stored, env)
    form = affine(access.indices[stored.expression.mode])
    assert wanted is not None and form is not None, "what is searched is known"
    if not wanted.is_uniform:
        raise ScheduleError(f"the lanes of a vector loop search {access}", "vectorise another index")
    reach = level_range(context, access, place)
    parent = place.position.start
    is_table = stored.level.has_empty_slots
    if is_table:
        found, lowered = hash_table.lookup(context, access, place.levels, reach, wanted.start)
    else:
        found, lowered = first_from(context, access, place.levels, parent, reach, wanted.start)

    def stored_at(position: loops.Expr) -> loops.Expr:
        if is_table:
            return hash_table.slot(context, access, place.levels, position)
        return coordinate_at(context, access, place.levels, parent, scalar(position)).start

    here = compare("eq", stored_at(found), wanted.start)
    condition = both(compare("lt", found, reach.end), here)
    if form.divisor > 1 and (at := numerator(context, access, stored.expression.mode, env)) is not None:
        divides = compare("eq", remainder(at.start, integer(form.divisor)), ZERO)
        condition = both(divides, condition)
    after: loops.Var | None = None
    ahead: Lowered = []
    if repeats(context, access, place.levels):
        after = context.fresh_int(f"{found.name}_next")
        same = compare("eq", stored_at(after), wanted.start)
        ahead = [
            loops.Declare(after, plus(found, ONE), True),
            loops.While(both(compare("lt", after, reach.end), same), loops.Set(after, plus(after, ONE))),
        ]
    inner = advance(env, access, Place(place.levels + 1, scalar(found), after, reach.begin))
    body = located(context, node, inner)
    gone = located(context, node, env.without(frozenset({access})))
    chosen = _either(condition, [*ahead, *body] if body else [], gone)
    return [*lowered, *chosen] if chosen else []


def first_from(
    context: Context, access: Access, level: int, parent: loops.Expr, reach: Range, wanted: loops.Expr
) -> tuple[loops.Var, Lowered]:
    """The first position of a segment with a coordinate of at least `wanted`, by bisection; the end if none."""
    stored = context.levels(access.tensor)[level]
    found = context.fresh_int(f"p{access.tensor}{level + 1}")
    if not stored.level.is_ordered:
        other = compare("ne", coordinate_at(context, access, level, parent, scalar(found)).start, wanted)
        step = loops.While(both(compare("lt", found, reach.end), other), loops.Set(found, plus(found, ONE)))
        return found, [loops.Declare(found, reach.begin, True), step]
    end = context.fresh_int(f"{found.name}_end")
    middle = context.fresh_int(f"{found.name}_middle")
    before = compare("lt", coordinate_at(context, access, level, parent, scalar(middle)).start, wanted)
    halve = loops.Block(
        (
            loops.Declare(middle, quotient(plus(found, end), integer(2))),
            loops.If(
                before,
                loops.Block((loops.Set(found, plus(middle, ONE)),)),
                loops.Block((loops.Set(end, middle),)),
            ),
        )
    )
    return found, [
        loops.Declare(found, reach.begin, True),
        loops.Declare(end, reach.end, True),
        loops.While(compare("lt", found, end), halve),
    ]
