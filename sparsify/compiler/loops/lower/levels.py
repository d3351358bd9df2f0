"""Levels: which loop a level of a tensor belongs to, and how far an access has got into its levels.

In: `A[i,j]` stored dense(i) compressed(j), with `i` entered. Out: one level done, at position `i`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Access, Const, Index
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, integer, plus, quotient
from sparsify.compiler.loops.lower.environment import Environment, Place, scalar
from sparsify.errors import UnsupportedProgramError
from sparsify.storage.format import StoredLevel
from sparsify.storage.levels import Dense

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
    while place.levels < len(levels) and isinstance(levels[place.levels].level, Dense):
        stored = levels[place.levels]
        index = access.indices[stored.expression.mode]
        if isinstance(index, Const) and stored.expression.kind == "whole":
            coordinate = scalar(integer(int(index.value)))
        else:
            name = level_variable(low, access, stored)
            if name not in env.coordinates:
                break
            coordinate = env.coordinates[name]
        extent = level_extent(low, access.tensor, stored)
        place = Place(place.levels + 1, place.position.times(extent).plus(coordinate))
    return place


def advance(env: Environment, access: Access, place: Place) -> Environment:
    """`env` with `access` one level further."""
    return replace(env, places={**env.places, access: place})
