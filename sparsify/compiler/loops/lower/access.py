"""Accesses: where the entry of a tensor lies, how it is read and written.

In: `T[j,k]` with `k` at `k0 + lane`. Out: `T_vals[j * k_extent + k0 ..8]`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Access, Const, Index
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, constant, integer, plus, quotient
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Place, scalar
from sparsify.compiler.notation.nodes import Temporary
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError
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
    declaration = low.declaration(access.tensor)
    if declaration.pattern_of is not None:
        return place_of(low, Access(declaration.pattern_of, access.indices), env)
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


def position_of(low: Lowering, access: Access, env: Environment) -> tuple[str, Coordinate]:
    """The buffer and the position in it of a tensor entry whose loops are all entered."""
    memory = low.memory.get(access.tensor)
    if memory is not None:
        return access.tensor, _memory_position(low, memory, access, env)
    place = place_of(low, access, env)
    levels = low.declaration(access.tensor).format.levels
    if place.levels < len(levels):
        stuck = level_variable(low, access, levels[place.levels])
        raise DiscordantError(
            f"{access} stored {low.declaration(access.tensor).format}",
            f"the loop order that reaches {stuck} last",
        )
    return f"{access.tensor}_vals", place.position


def _memory_position(low: Lowering, memory: Temporary, access: Access, env: Environment) -> Coordinate:
    """The position in a temporary in memory: its modes folded in storage order."""
    position = scalar(ZERO)
    for mode in memory.layout or range(len(memory.indices)):
        index = access.indices[mode]
        if not isinstance(index, Index):
            raise UnsupportedProgramError(f"{access} has the index {index}", "plain index variables")
        position = position.times(low.bound(memory.indices[mode])).plus(env.coordinates[index.name])
    return position


def register_name(low: Lowering, access: Access, env: Environment) -> loops.Var:
    """The variable that holds an element of a temporary in registers."""
    register = env.registers[access.tensor]
    parts = [register.name]
    for index in register.indices:
        coordinate = env.coordinates[index]
        start = constant(low.register_offset(index, coordinate, env))
        if start is None:
            raise ScheduleError(
                f"{register.name} is in registers and {index} is no constant in {access}",
                f"unroll {index}; or vector {index}",
            )
        if index == register.vector_index:
            if env.lane is None or env.lane.index != index:
                raise ScheduleError(
                    f"{register.name} has {index} in its lanes", f"vector {index} in all its nests"
                )
            start //= env.lane.lanes
        parts.append(str(start))
    return loops.Var("_".join(parts), register.type)


def load(low: Lowering, access: Access, env: Environment) -> loops.Expr:
    """The value of an access: scalar when all lanes agree, else a vector."""
    if access.tensor in env.registers:
        return register_name(low, access, env)
    if (transposed := low.transposed.get(access)) is not None:
        return transposed
    buffer, position = position_of(low, access, env)
    dtype = low.dtype(access.tensor)
    if env.lane is None or position.is_uniform:
        return loops.Load(buffer, position.start, loops.Type(dtype))
    kind = loops.Type(dtype, env.lane.lanes)
    if position.vector is None and position.step == ONE:
        return loops.Load(buffer, position.start, kind, env.lane.count)
    return loops.Gather(buffer, position.as_vector(env.lane.lanes), kind, env.lane.count)


def store(low: Lowering, access: Access, value: loops.Expr, env: Environment) -> loops.Stmt:
    """The assignment of `value` to the entry."""
    if access.tensor in env.registers:
        return loops.Set(register_name(low, access, env), value)
    buffer, position = position_of(low, access, env)
    if env.lane is None or position.is_uniform:
        return loops.Store(buffer, position.start, value)
    if position.vector is None and position.step == ONE:
        return loops.Store(buffer, position.start, value, env.lane.count)
    return loops.Scatter(buffer, position.as_vector(env.lane.lanes), value, env.lane.count)


def advance(env: Environment, access: Access, place: Place) -> Environment:
    """`env` with `access` one level further."""
    return replace(env, places={**env.places, access: place})
