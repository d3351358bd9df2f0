"""Levels: which loop a level of a tensor belongs to, and how far an access has got into its levels.

In: `A[i,j]` stored dense(i) compressed(j), with `i` entered. Out: one level done, at position `i`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Access, Const, Index
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, integer, plus, quotient
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, LaneContext, Place, scalar
from sparsify.compiler.loops.lower.numbers import LevelNumbers, Number
from sparsify.errors import UnsupportedProgramError
from sparsify.storage.format import StoredLevel

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering


def level_variable(low: Lowering, access: Access, stored: StoredLevel) -> str:
    """The loop variable whose coordinate a level stores: `j`, or `jo`, `ji` of a blocked mode."""
    expression = stored.expression
    index = access.indices[expression.mode]
    if not isinstance(index, Index):
        raise UnsupportedProgramError(
            f"{access} has the index {index}", "a plain index variable for each mode"
        )
    if expression.kind == "whole":
        return index.name
    split = low.split_of_index(index.name, expression.size)
    return split.outer if expression.kind == "block" else split.inner


def level_extent(low: Lowering, tensor: str, stored: StoredLevel) -> loops.Expr:
    """How many coordinates a level has."""
    expression = stored.expression
    whole = low.extent(low.declaration(tensor).extents[expression.mode])
    if expression.kind == "block":
        return quotient(plus(whole, integer(expression.size - 1)), integer(expression.size))
    return integer(expression.size) if expression.kind == "within" else whole


def place_of(low: Lowering, access: Access, env: Environment) -> Place:
    """How far `access` gets with the coordinates known: dense levels are located, others must be iterated."""
    access = low.root_of(access)
    declaration = low.declaration(access.tensor)
    place = env.places.get(access, Place(0, scalar(ZERO)))
    levels = declaration.format.levels
    while place.levels < len(levels) and is_located(levels[place.levels]):
        stored = levels[place.levels]
        index = access.indices[stored.expression.mode]
        if isinstance(index, Const) and stored.expression.kind == "whole":
            coordinate = scalar(integer(int(index.value)))
        else:
            name = level_variable(low, access, stored)
            if name not in env.coordinates:
                break
            coordinate = env.coordinates[name]
        at = numbers_of(low, access, place.levels)
        found = stored.level.locate(at, Number(place.position), Number(coordinate))
        place = Place(place.levels + 1, found.value)
    return place


def is_located(stored: StoredLevel) -> bool:
    """Whether loops over all coordinates find their positions in the level; else its stored ones are iterated."""
    return stored.level.is_full and stored.level.can_locate


def numbers_of(low: Lowering, access: Access, number: int, lane: LaneContext | None = None) -> LevelNumbers:
    """What the functions of a level read in the kernel."""
    stored = low.declaration(access.tensor).format.levels[number]
    return LevelNumbers(low, access, number, level_extent(low, access.tensor, stored), lane)


def first_below(low: Lowering, access: Access, number: int, parent: loops.Expr) -> loops.Expr:
    """The first position of a level below a parent."""
    level = low.declaration(access.tensor).format.levels[number].level
    found = level.begin(numbers_of(low, access, number), Number(scalar(parent)))
    position: loops.Expr = found.value.start
    return position


def coordinate_at(
    low: Lowering,
    access: Access,
    number: int,
    parent: loops.Expr,
    position: Coordinate,
    lane: LaneContext | None = None,
) -> Coordinate:
    """The coordinate at a position of a level below a parent, one a lane where positions differ."""
    level = low.declaration(access.tensor).format.levels[number].level
    at = numbers_of(low, access, number, lane)
    found = level.coordinate(at, Number(scalar(parent)), Number(position))
    coordinate: Coordinate = found.value
    return coordinate


def advance(env: Environment, access: Access, place: Place) -> Environment:
    """`env` with `access` one level further."""
    return replace(env, places={**env.places, access: place})
