"""Accesses: the position of a tensor entry in memory, loads and stores.

In: `T[j,k]` with `k` at `k0 + lane`. Out: `T_vals[j * k_extent + k0 ..8]`.
"""

from __future__ import annotations

from dataclasses import replace

from sparsify.compiler.einsum.affine import affine
from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.ir.dtypes import computing
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    constant,
    convert,
    integer,
    larger,
    minus,
    plus,
    smaller,
)
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, LaneContext, scalar
from sparsify.compiler.loops.lower.levels.places import is_always_inside, numerator, place_of
from sparsify.compiler.loops.lower.values import temporary_places
from sparsify.compiler.loops.nodes import MOST_LOOKED_UP
from sparsify.errors import DiscordantError, ScheduleError


def position_of(context: Context, access: Access, env: Environment) -> tuple[str, Coordinate]:
    """The buffer and the position of a tensor entry inside all its loops."""
    if (table := context.tables.get(access.tensor)) is not None:
        return access.tensor, scalar(table.place)
    memory = context.memory.get(access.tensor)
    if memory is not None:
        return access.tensor, temporary_places.position(context, memory, access, env)
    place = place_of(context, access, env)
    levels = context.levels(access.tensor)
    if place.levels < len(levels):
        stuck = context.level_variable(access, levels[place.levels])
        raise DiscordantError(
            f"{access} stored {context.declaration(access.tensor).format}",
            f"the loop order that reaches {stuck} last",
        )
    return f"{access.tensor}_vals", place.position


def register_name(context: Context, access: Access, env: Environment) -> loops.Var:
    """The variable of an element of a temporary in registers."""
    register = env.registers[access.tensor]
    parts = [register.name]
    for index in register.indices:
        coordinate = env.coordinates[index]
        known = env.ranges.get(index)
        start = constant(coordinate.start if known is None else minus(coordinate.start, known.begin))
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


def lookup(context: Context, access: Access, env: Environment) -> loops.Expr | None:
    """Lookup of a temporary in registers, one element a lane; `None` if all lanes have the same coordinate."""
    register = env.registers[access.tensor]
    index = register.vector_index
    if index is None or env.lane is None or env.coordinates[index].vector is None:
        return None
    if register.type.dtype == "bool":
        raise ScheduleError(
            f"{register.name} is a table of bool in registers, where bool is a mask",
            f"pack it in thread, or {access} in a number",
        )
    if register.vectors > MOST_LOOKED_UP:
        raise ScheduleError(
            f"{register.name} is a table of {register.vectors} vectors, in registers",
            f"at most {MOST_LOOKED_UP}: split {index}, or pack it in thread",
        )
    lanes, known = env.lane.lanes, env.ranges.get(index)
    begin = ZERO if known is None else known.begin
    places = env.coordinates[index].plus(scalar(minus(ZERO, begin))).as_vector(lanes)
    along = replace(env, lane=replace(env.lane, index=index))
    table = [
        register_name(context, access, along.with_coordinate(index, scalar(plus(begin, integer(n * lanes)))))
        for n in range(register.vectors)
    ]
    return loops.Op("lookup", (places, *table), register.type)


def lanes_in_use(
    context: Context, access: Access, env: Environment, *, is_read: bool = False
) -> loops.Expr | None:
    """The number of lanes of a vector at `access` within the lane range and the modes; `None` for all.

    A temporary along a tile has room for whole vectors: reads and writes of lanes past a cut tile are harmless. So are
    reads of a tensor that goes on past the last lane, if the first lane is in use.
    """
    assert env.lane is not None
    free = temporary_places.has_room(context, access.tensor, env.lane.index, env.lane.lanes)
    free = free or (is_read and _goes_on(context, access, env.lane))
    count = None if free else env.lane.count
    for mode in (mode for found, mode in env.cut if found == access):
        at, extent = (
            numerator(context, access, mode, env),
            context.extent(context.declaration(access.tensor).extents[mode]),
        )
        assert at is not None, "what is cut has coordinates"
        left = larger(minus(extent, at.start), ZERO)
        count = smaller(left, integer(env.lane.lanes) if count is None else count)
    return count


def _goes_on(context: Context, access: Access, lane: LaneContext) -> bool:
    """Whether a dense tensor has entries for all lanes of a vector.

    The vector begins at a coordinate of the loop: the number of lanes in use is a constant. Vectors of a part of a tile
    with an unknown end may begin past the end.
    """
    if lane.count is not None and not constant(lane.count):
        return False
    if access.tensor not in context.declarations or not context.declaration(access.tensor).format.is_dense:
        return False
    index = lane.index
    while (split := context.split_by_inner.get(index)) is not None:
        index = split.index
    forms = [(mode, affine(found)) for mode, found in enumerate(access.indices)]
    modes = [mode for mode, form in forms if form is not None and (index, 1) in form.terms]
    return any(is_always_inside(context, access, mode, lane.lanes - 1) for mode in modes)


def load(context: Context, access: Access, env: Environment) -> loops.Expr:
    """The value of an access in its computing dtype: scalar if all lanes agree, else a vector."""
    return convert(_load(context, access, env), computing(context.dtype(access.tensor)))


def _load(context: Context, access: Access, env: Environment) -> loops.Expr:
    """The value of an access in its storage dtype."""
    if access.tensor in env.registers:
        return lookup(context, access, env) or register_name(context, access, env)
    if (transposed := context.transposed.get(access)) is not None:
        return transposed
    buffer, position = position_of(context, access, env)
    dtype = context.dtype(access.tensor)
    if env.lane is not None and env.lane.bits is not None and context.root_of(access) == env.lane.expanded:
        end = loops.Var(f"{access.tensor}_nnz", loops.INT)
        kind = loops.Type(dtype, env.lane.lanes)
        return loops.Expand(buffer, position.start, env.lane.bits, end, kind)
    if env.lane is None or position.is_uniform:
        return loops.Load(buffer, position.start, loops.Type(dtype))
    kind = loops.Type(dtype, env.lane.lanes)
    if position.vector is None and position.step == ONE:
        return loops.Load(buffer, position.start, kind, lanes_in_use(context, access, env, is_read=True))
    return loops.Gather(buffer, position.as_vector(env.lane.lanes), kind, lanes_in_use(context, access, env))


def store(context: Context, access: Access, value: loops.Expr, env: Environment) -> loops.Stmt:
    """The assignment of `value` to the entry."""
    if access.tensor in env.registers:
        return loops.Set(register_name(context, access, env), value)
    value = convert(value, context.dtype(access.tensor))
    buffer, position = position_of(context, access, env)
    if env.lane is None or position.is_uniform:
        return loops.Store(buffer, position.start, value)
    if position.vector is None and position.step == ONE:
        count = (
            None
            if temporary_places.ends_a_strip(context, access.tensor, env.lane)
            else lanes_in_use(context, access, env)
        )
        return loops.Store(buffer, position.start, value, count)
    return loops.Scatter(
        buffer, position.as_vector(env.lane.lanes), value, lanes_in_use(context, access, env)
    )
