"""Levels: the loop of each level of a tensor, and the number of levels already reached by an access.

In: `A[i,j]` stored dense(i) compressed(j), with `i` entered. Out: one level done, at position `i`.
"""

from __future__ import annotations

from dataclasses import replace

from sparsify.compiler.einsum.affine import affine
from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, integer, minus, quotient, remainder, times
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, LaneContext, Place, scalar
from sparsify.compiler.loops.lower.levels.functions import LevelNumbers, Number
from sparsify.compiler.loops.lower.program_facts import ProgramFacts
from sparsify.errors import ScheduleError
from sparsify.storage.format import StoredLevel


def next_variable(facts: ProgramFacts, access: Access, stored: StoredLevel, env: Environment) -> str | None:
    """The loop variable that gives a level its coordinates: `r` in `x[h+r-1]` with known `h`."""
    index = access.indices[stored.expression.mode]
    if isinstance(index, Index):
        return facts.level_variable(access, stored)
    form = affine(index)
    if form is None or form.divisor != 1 or stored.expression.kind != "whole":
        return None
    unknown = [(name, factor) for name, factor in form.terms if name not in env.coordinates]
    return unknown[0][0] if len(unknown) == 1 and unknown[0][1] == 1 else None


def numerator(
    facts: ProgramFacts, access: Access, mode: int, env: Environment, without: str = ""
) -> Coordinate | None:
    """The value of an index before division; `None` while a variable other than `without` is unknown."""
    form = affine(access.indices[mode])
    assert form is not None, "indices are affine"
    total = scalar(integer(form.offset))
    for name, factor in form.extents:
        total = total.plus(scalar(times(facts.extent(name), integer(factor))))
    for name, factor in form.terms:
        if name == without:
            continue
        if name not in env.coordinates:
            return None
        total = total.plus(env.coordinates[name].times(integer(factor)))
    return total


def known_coordinate(
    facts: ProgramFacts, access: Access, stored: StoredLevel, env: Environment
) -> Coordinate | None:
    """The coordinate of a level, if set by the loops so far, else `None`."""
    expression = stored.expression
    index = access.indices[expression.mode]
    if isinstance(index, Index):
        return env.coordinates.get(facts.level_variable(access, stored))
    found, form = numerator(facts, access, expression.mode, env), affine(index)
    if found is None or form is None:
        return None
    if (access, expression.mode) in env.clamped:
        return _clamped(facts, access, expression.mode, found, env)
    if form.divisor == 1 and expression.kind == "whole":
        return found
    if not found.is_uniform:
        raise ScheduleError(
            f"the lanes of a vector loop divide {index} of {access}", "vectorise another index"
        )
    start = quotient(found.start, integer(form.divisor))
    if expression.kind == "block":
        return scalar(quotient(start, integer(expression.size)))
    return scalar(start if expression.kind == "whole" else remainder(start, integer(expression.size)))


def _clamped(
    facts: ProgramFacts, access: Access, mode: int, found: Coordinate, env: Environment
) -> Coordinate:
    """The coordinates of lanes, clamped to the ends of the mode."""
    assert env.lane is not None, "masks are of lanes"
    kind = loops.Type("int64", env.lane.lanes)
    extent = facts.extent(facts.declaration(access.tensor).extents[mode])
    last = loops.Broadcast(minus(extent, ONE), kind)
    below = loops.Op("min", (found.as_vector(env.lane.lanes), last), kind)
    return Coordinate(ZERO, ZERO, loops.Op("max", (below, loops.Broadcast(ZERO, kind)), kind))


def is_always_inside(facts: ProgramFacts, access: Access, mode: int, beyond: int = 0) -> bool:
    """Whether `0 <= c + sum(f_i * i) < extent - beyond` for all coordinates, by constant extents alone."""
    form = affine(access.indices[mode])
    limit = facts.constant_extent(facts.declaration(access.tensor).extents[mode])
    if limit is None or form is None or form.divisor != 1 or form.extents:
        return False
    extents = [facts.constant_extent(name) for name in form.names]
    if not all(extents):
        return False
    ends = [factor * (extent - 1) for (_, factor), extent in zip(form.terms, extents, strict=True) if extent]
    least, most = (form.offset + sum(end for end in ends if (end < 0) == is_low) for is_low in (True, False))
    return least >= 0 and most + beyond < limit


def place_of(facts: ProgramFacts, access: Access, env: Environment) -> Place:
    """The place of `access` at the known coordinates: dense levels are located, others must be iterated."""
    root = facts.root_of(access)
    place = _located(facts, root, env.places.get(root, Place(0, scalar(ZERO))), env)
    if root == access or access.tensor not in facts.declarations:
        return place
    if place.levels < len(facts.levels(root.tensor)):
        return place
    return _located(facts, access, place, env)


def _located(facts: ProgramFacts, access: Access, place: Place, env: Environment) -> Place:
    """The place after all following dense levels with known coordinates."""
    levels = facts.levels(access.tensor)
    while place.levels < len(levels) and is_located(levels[place.levels]):
        stored = levels[place.levels]
        coordinate = known_coordinate(facts, access, stored, env)
        if coordinate is None:
            break
        stride = facts.stride(access.tensor, stored)
        if stride is None:
            at = numbers_of(facts, access, place.levels)
            found = stored.level.locate(at, Number(place.position), Number(coordinate))
        else:
            found = Number(place.position) + Number(coordinate) * stride
        place = Place(place.levels + 1, found.value)
    return place


def is_located(stored: StoredLevel) -> bool:
    """Whether loops over all coordinates locate positions in the level; otherwise stored coordinates are iterated."""
    return stored.level.is_full and stored.level.can_locate


def numbers_of(
    facts: ProgramFacts, access: Access, number: int, lane: LaneContext | None = None
) -> LevelNumbers:
    """Arguments of a level's functions in the kernel."""
    stored = facts.levels(access.tensor)[number]
    return LevelNumbers(facts, access, number, facts.level_extent(access.tensor, stored), lane)


def first_below(facts: ProgramFacts, access: Access, number: int, parent: loops.Expr) -> loops.Expr:
    """The first position of a level below a parent."""
    level = facts.levels(access.tensor)[number].level
    found = level.begin(numbers_of(facts, access, number), Number(scalar(parent)))
    position: loops.Expr = found.value.start
    return position


def coordinate_at(
    facts: ProgramFacts,
    access: Access,
    number: int,
    parent: loops.Expr,
    position: Coordinate,
    lane: LaneContext | None = None,
) -> Coordinate:
    """The coordinate at a position of a level below a parent, one a lane if positions differ.

    Raises:
        ScheduleError: a level of bits or of slots, without a coordinate at each position.
    """
    stored = facts.levels(access.tensor)[number]
    level = stored.level
    if level.has_bits:
        index = facts.level_variable(access, stored)
        raise ScheduleError(
            f"a position along {index} of {access}, whose coordinates are bits, not a list",
            f"a loop over {index} that {access} alone drives",
        )
    if level.has_empty_slots:
        index = facts.level_variable(access, stored)
        raise ScheduleError(
            f"a position along {index} of {access}, whose slots have no order", f"a serial loop over {index}"
        )
    at = numbers_of(facts, access, number, lane)
    found = level.coordinate(at, Number(scalar(parent)), Number(position))
    coordinate: Coordinate = found.value
    return coordinate


def advance(env: Environment, access: Access, place: Place) -> Environment:
    """`env` with `access` at `place`."""
    return replace(env, places={**env.places, access: place})
