"""Entries at known coordinates: windows, possibly outside of their tensor, and stored entries found by search.

In: `x[2*h+r-1]` with `h` and `r` entered. Out: `if 0 <= 2 * h + r - 1 < x_0_extent: body; else: body with the fill`.
In: `A[i,3]`, A compressed by row. Out: a binary search for 3 in row `i`, then the body with or without the entry.

In vector lanes the body is emitted for lanes all inside, and for partly masked lanes; the
assignment selects between the value with the entry and the value without. For an index never below 0, as
`j - i + extent(i) - 1`, the first lanes are inside: the others are loaded as 0, if unstored entries are 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.affine import Affine, affine
from sparsify.compiler.einsum.nodes import Access, Assign, Const, Expr, Index
from sparsify.compiler.ir.dtypes import BYTES
from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    both,
    compare,
    constant,
    convert,
    integer,
    larger,
    minus,
    plus,
    quotient,
    remainder,
    smaller,
    times,
)
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Place, Range, scalar
from sparsify.compiler.loops.lower.expression import evaluate, widen
from sparsify.compiler.loops.lower.iterate import coordinates
from sparsify.compiler.loops.lower.lattice import prune
from sparsify.compiler.loops.lower.level_access import (
    advance,
    coordinate_at,
    is_located,
    known_coordinate,
    numerator,
    place_of,
)
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]
Then = Callable[[Environment], Lowered]


def located(low: Lowering, node: Node, env: Environment, then: Then) -> Lowered:
    """The code of `then`, emitted once with and once without each searched entry of `node`."""
    for access in accesses_read(low, node, env):
        root = low.root_of(access)
        if root.tensor not in low.declarations or root in env.absent:
            continue
        declared = low.declaration(root.tensor)
        if len(root.indices) < declared.format.rank:
            continue  # a temporary inside of loops has the other modes, at plain index variables
        for stored in declared.format.levels:
            mode = stored.expression.mode
            index = root.indices[mode]
            if isinstance(index, Index | Const) or (root, mode) in env.inside | env.masked:
                continue
            if is_located(stored) and (at := numerator(low, root, mode, env)) is not None:
                low.count_bodies(root)
                return _in_bounds(low, node, root, mode, at, env, then)
        if (place := _to_search(low, root, env)) is not None:
            low.count_bodies(root)
            return _searched(low, node, root, place, env, then)
    return then(env)


def accesses_read(low: Lowering, node: Node, env: Environment) -> tuple[Access, ...]:
    """The accesses that affect the values of a statement, given the absent ones."""
    key = id(node), env.absent
    if key not in low.read:
        low.read[key] = node, _accesses_read(low, node, env)
    return low.read[key][1]


def _accesses_read(low: Lowering, node: Node, env: Environment) -> tuple[Access, ...]:
    values = [prune(n.value, env.absent, low) for n in find(node, Assign)]
    conditions = [n.condition for n in find(node, notation.If)]
    return tuple(dict.fromkeys(n for value in (*values, *conditions) for n in find(value, Access)))


def _in_bounds(
    low: Lowering, node: Node, access: Access, mode: int, at: Coordinate, env: Environment, then: Then
) -> Lowered:
    """`if 0 <= index < extent: then; else: then with the fill`."""
    extent = low.extent(low.declaration(access.tensor).extents[mode])
    inside = replace(env, inside=env.inside | {(access, mode)})
    outside = env.without(frozenset({access}))
    form = affine(access.indices[mode])
    assert form is not None, "indices are affine"
    if not at.is_uniform:
        return _lanes_in_bounds(low, node, access, mode, at, env, then)
    index, limit = at.start, times(extent, integer(form.divisor))
    condition = both(compare("ge", index, ZERO), compare("lt", index, limit))
    if form.divisor > 1:
        condition = both(condition, compare("eq", remainder(index, integer(form.divisor)), ZERO))
    return _either(condition, located(low, node, inside, then), located(low, node, outside, then))


def _lanes_in_bounds(
    low: Lowering, node: Node, access: Access, mode: int, at: Coordinate, env: Environment, then: Then
) -> Lowered:
    """The body for lanes all inside; else, if any value is read, the body under a mask."""
    assert env.lane is not None, "coordinates differ in lanes alone"
    form = affine(access.indices[mode])
    step = constant(at.step)
    if at.vector is not None or step is None or form is None or form.divisor != 1:
        raise ScheduleError(
            f"the lanes of {env.lane.index} are no steps along {access}", "vectorise another index"
        )
    extent = low.extent(low.declaration(access.tensor).extents[mode])
    known = replace(env, inside=env.inside | {(access, mode)})
    last = minus(integer(env.lane.lanes) if env.lane.count is None else env.lane.count, ONE)
    ends = (at.start, plus(at.start, times(last, at.step)))
    least, most = ends if step > 0 else ends[::-1]
    inside = located(low, node, known, then)
    if step == 1 and _is_never_below(low, form) and low.fill_of(access) == 0:
        cut = located(low, node, replace(known, cut=env.cut | {(access, mode)}), then)
        return _either(compare("lt", most, extent), inside, cut)
    whole = both(compare("ge", least, ZERO), compare("lt", most, extent))
    masked = located(low, node, replace(env, masked=env.masked | {(access, mode)}), then)
    outside = located(low, node, env.without(frozenset({access})), then)
    return _either(whole, inside, _either(compare("gt", extent, ZERO), masked, outside))


def _is_never_below(low: Lowering, form: Affine) -> bool:
    """Whether a form is at least 0 for all coordinates: subtracted variables are bounded by added extents."""
    factors = Counter[str]()
    for name, factor in form.extents:
        factors[low.extents.get(name, name)] += factor
    least = form.offset
    for name, factor in form.terms:
        if factor < 0:  # times the extent less 1
            factors[low.extents.get(name, name)] += factor
            least -= factor
    return least >= 0 and all(factor >= 0 for factor in factors.values())


def _either(condition: loops.Expr, then: Lowered, otherwise: Lowered) -> Lowered:
    """`if condition: then; else: otherwise`."""
    if not then and not otherwise:
        return []
    other = loops.Block(tuple(otherwise)) if otherwise else None
    return [loops.If(condition, loops.Block(tuple(then)), other)]


def _to_search(low: Lowering, access: Access, env: Environment) -> Place | None:
    """The place of an access with a next level to be searched, as no loop runs over the level."""
    levels = low.declaration(access.tensor).format.levels
    if all(isinstance(index, Index) for index in access.indices):
        return None  # reached by loops in level order
    place = place_of(low, access, env)
    if place.levels == len(levels) or is_located(levels[place.levels]):
        return None
    return None if known_coordinate(low, access, levels[place.levels], env) is None else place


def _searched(
    low: Lowering, node: Node, access: Access, place: Place, env: Environment, then: Then
) -> Lowered:
    """A search for the coordinate in the segment, then the body for a found and for a missing entry."""
    stored = low.declaration(access.tensor).format.levels[place.levels]
    wanted = known_coordinate(low, access, stored, env)
    form = affine(access.indices[stored.expression.mode])
    assert wanted is not None and form is not None, "what is searched is known"
    if not wanted.is_uniform:
        raise ScheduleError(f"the lanes of a vector loop search {access}", "vectorise another index")
    reach = coordinates.level_range(low, access, place)
    parent = place.position.start
    found, lowered = first_from(low, access, place.levels, parent, reach, wanted.start)

    def stored_at(position: loops.Expr) -> loops.Expr:
        return coordinate_at(low, access, place.levels, parent, scalar(position)).start

    here = compare("eq", stored_at(found), wanted.start)
    condition = both(compare("lt", found, reach.end), here)
    if form.divisor > 1 and (at := numerator(low, access, stored.expression.mode, env)) is not None:
        divides = compare("eq", remainder(at.start, integer(form.divisor)), ZERO)
        condition = both(divides, condition)
    after: loops.Var | None = None
    ahead: Lowered = []
    if coordinates.repeats(low, access, place.levels):
        after = loops.Var(low.fresh(f"{found.name}_next"), loops.INT)
        same = compare("eq", stored_at(after), wanted.start)
        ahead = [
            loops.Declare(after, plus(found, ONE), True),
            loops.While(both(compare("lt", after, reach.end), same), loops.Set(after, plus(after, ONE))),
        ]
    inner = advance(env, access, Place(place.levels + 1, scalar(found), after, reach.begin))
    body = located(low, node, inner, then)
    gone = located(low, node, env.without(frozenset({access})), then)
    chosen = _either(condition, [*ahead, *body] if body else [], gone)
    return [*lowered, *chosen] if chosen else []


def first_from(
    low: Lowering, access: Access, level: int, parent: loops.Expr, reach: Range, wanted: loops.Expr
) -> tuple[loops.Var, Lowered]:
    """The first position of a segment with a coordinate of at least `wanted`, by bisection; the end if none."""
    stored = low.declaration(access.tensor).format.levels[level]
    found = loops.Var(low.fresh(f"p{access.tensor}{level + 1}"), loops.INT)
    if not stored.level.is_ordered:
        other = compare("ne", coordinate_at(low, access, level, parent, scalar(found)).start, wanted)
        step = loops.While(both(compare("lt", found, reach.end), other), loops.Set(found, plus(found, ONE)))
        return found, [loops.Declare(found, reach.begin, True), step]
    end = loops.Var(low.fresh(f"{found.name}_end"), loops.INT)
    middle = loops.Var(low.fresh(f"{found.name}_middle"), loops.INT)
    before = compare("lt", coordinate_at(low, access, level, parent, scalar(middle)).start, wanted)
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


def evaluate_masked(low: Lowering, value: Expr, env: Environment, dtype: str) -> loops.Expr:
    """The value of an expression, with entries masked by lane to the bounds of their tensors."""
    for access in find(value, Access):
        root = low.root_of(access)
        modes = [mode for found, mode in env.masked if found == root]
        if not modes or env.lane is None or root in env.absent:
            continue
        masks = [_mask(low, root, mode, env, dtype) for mode in sorted(modes)]
        known = replace(env, masked=frozenset(m for m in env.masked if m[0] != root))
        lanes = env.lane.lanes
        kind = loops.Type("bool", lanes)
        mask = masks[0]
        for other in masks[1:]:
            mask = loops.Op("logical_and", (mask, other), kind)
        clamped = replace(known, clamped=env.clamped | {(root, mode) for mode in modes})
        there = widen(evaluate_masked(low, value, clamped, dtype), lanes)
        gone = known.without(frozenset({root}))
        absent = widen(evaluate_masked(low, prune(value, gone.absent, low), gone, dtype), lanes)
        return loops.Op("where", (mask, there, absent), loops.Type(dtype, lanes))
    return evaluate(low, value, env, dtype)


def _mask(low: Lowering, access: Access, mode: int, env: Environment, dtype: str) -> loops.Expr:
    """Mask of lanes inside: from the first to the last lane with a coordinate of the mode."""
    assert env.lane is not None, "masks are of lanes"
    at = numerator(low, access, mode, env)
    assert at is not None, "windows are masked when their coordinates are known"
    extent = low.extent(low.declaration(access.tensor).extents[mode])
    lanes, step = env.lane.lanes, constant(at.step) or 1
    size = integer(abs(step))
    below, above = at.start, minus(extent, at.start)
    if step < 0:
        below, above = minus(extent, plus(at.start, ONE)), plus(at.start, ONE)
    up = integer(abs(step) - 1)
    first = quotient(plus(larger(minus(ZERO, below), ZERO), up), size)
    end = quotient(plus(larger(above, ZERO), up), size)
    kind = loops.Type("int64" if BYTES[dtype] == 8 else "int32", lanes)
    number = loops.Lanes(loops.Literal(0, loops.Type(kind.dtype)), kind)

    def bound(value: loops.Expr) -> loops.Expr:
        return loops.Broadcast(convert(smaller(value, integer(lanes)), kind.dtype), kind)

    truth = loops.Type("bool", lanes)
    inside = (
        loops.Op("ge", (number, bound(first)), truth),
        loops.Op("lt", (number, bound(end)), truth),
    )
    return loops.Op("logical_and", inside, truth)
