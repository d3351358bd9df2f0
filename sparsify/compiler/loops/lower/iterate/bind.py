"""Index variables at a value: the iterations of a loop variable, and the variables derived from its value.

In: `pos j p A`, `p` in `A2_pos[i]..A2_pos[i + 1]`. Out: `j = A2_crd[p]`, and `A` at position `p`.
In: `fuse e j f; pos f p E`, E in `dense, compressed, singleton`. Out: the same with `e = E2_crd[p]; j = E3_crd[p]`.
"""

from __future__ import annotations

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, constant, integer, minus, quotient, remainder, times
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Lowered, Place, Range, scalar
from sparsify.compiler.loops.lower.iterate import prefetch
from sparsify.compiler.loops.lower.iterate.blocks import at_block, padded_split
from sparsify.compiler.loops.lower.iterate.padding import stays_in_padding
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.levels.places import advance, coordinate_at, is_located, place_of
from sparsify.compiler.loops.lower.levels.stored import level_range, note_skipping, stored_accesses
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError


def range_of(context: Context, index: str, body: notation.Statement | Assign, env: Environment) -> Range:
    """The iterations of a loop variable in the current environment."""
    if index in env.ranges:
        return env.ranges[index]
    if index in context.positions:
        return _position_range(context, context.positions[index], body, env)
    if index in context.fused:
        relation = context.fused[index]
        return Range(ZERO, times(context.bound(relation.first), context.bound(relation.second)))
    end = context.bound(index)
    return Range(ZERO, end, constant(end), constant(end) is not None)


def bind(
    context: Context, index: str, value: Coordinate, body: notation.Statement | Assign, env: Environment
) -> tuple[Lowered, Environment]:
    """Sets `index` to `value`, together with derived index variables and the block numbered by `index`."""
    if (numbered := context.split_by_outer.get(index)) is not None:
        env = at_block(context, numbered, value, env, whole=stays_in_padding(context, numbered, body))
    env = env.with_coordinate(index, value)
    split = context.split_by_inner.get(index)
    # Outside the loop over tiles, a temporary of the tile's extent is still indexed by the inner variable.
    if split is not None and split.index in env.bases:
        whole = scalar(env.bases[split.index]).plus(value)
        return bind(context, split.index, whole, body, env)
    if index in context.splits and value.is_uniform:
        env = _with_tile(context, context.splits[index], value, env)
    if (relation := context.positions.get(index)) is not None:
        return _bind_position(context, relation, value, body, env)
    if (fuse := context.fused.get(index)) is not None:
        if not value.is_uniform:
            raise ScheduleError(f"vector {index}: it is fused of two loops", "vector a loop inside")
        inner = context.bound(fuse.second)
        first = context.fresh_int(fuse.first)
        second = context.fresh_int(fuse.second)
        declared: Lowered = [
            loops.Declare(first, quotient(value.start, inner)),
            loops.Declare(second, remainder(value.start, inner)),
        ]
        more, env = bind(context, fuse.first, scalar(first), body, env)
        rest, env = bind(context, fuse.second, scalar(second), body, env)
        return [*declared, *more, *rest], env
    return [], env


def _with_tile(context: Context, split: notation.Split, value: Coordinate, env: Environment) -> Environment:
    """`env` with the tile of a value, and the offset in the tile, if not set by loops."""
    if split.outer in env.coordinates or split.inner in env.coordinates:
        return env
    number, size = quotient(value.start, integer(split.size)), integer(split.size)
    env = env.with_coordinate(split.outer, scalar(number))
    # In a loop over a part of the tiles, tiles are counted from the start of the part.
    part = context.splits.get(split.outer)
    if part is not None and part.index in env.bases and part.inner not in env.coordinates:
        env = env.with_coordinate(part.inner, scalar(minus(number, env.bases[part.index])))
    return env.with_coordinate(split.inner, scalar(remainder(value.start, size)))


def _position_range(
    context: Context, relation: notation.Position, body: notation.Statement | Assign, env: Environment
) -> Range:
    """The positions of the current segment of the operand; `body` must not need other coordinates."""
    access, place = _driver_of_position(context, relation, body, env)
    points = statement_points(body, frozenset({access}), context, env.absent)
    if points != frozenset({frozenset({access})}):
        raise ScheduleError(
            f"the loop over {relation.position} would skip coordinates of {relation.index} that are not stored in "
            f"{access}, and they are needed",
            f"loop over {relation.index}",
        )
    note_skipping(context, body, [access])
    return level_range(context, access, place)


def _bind_position(
    context: Context,
    relation: notation.Position,
    value: Coordinate,
    body: notation.Statement | Assign,
    env: Environment,
) -> tuple[Lowered, Environment]:
    """The environment with the operand at position `value` and its index variable at the stored coordinate."""
    access, place = _driver_of_position(context, relation, body, env)
    begin = level_range(context, access, place).begin
    indices = context.parts(relation.index)
    env = advance(env, access, Place(place.levels + len(indices), value, segment=begin))
    if padded_split(context, relation.index) is not None:
        raise ScheduleError(
            f"{relation.position} runs over positions of {access}, some of which are padding",
            f"loop over {relation.index}",
        )
    lowered: Lowered = []
    for level, index in enumerate(indices, place.levels):
        more, env = _bind_coordinate(context, access, place, level, index, value, body, env)
        lowered += more
    return lowered, env


def _bind_coordinate(
    context: Context,
    access: Access,
    place: Place,
    level: int,
    index: str,
    value: Coordinate,
    body: notation.Statement | Assign,
    env: Environment,
) -> tuple[Lowered, Environment]:
    """Sets `index` to the coordinate stored at position `value` of a level, below the current place."""
    found = coordinate_at(context, access, level, place.position.start, value, env.lane)
    if value.is_uniform or env.lane is None:
        var = context.fresh_int(index)
        declared: Lowered = [loops.Declare(var, found.start)]
        more, env = bind(context, index, scalar(var), body, env)
        fetched = prefetch.prefetches(context, access, level, value.start, index, body, env)
        return [*declared, *fetched, *more], env
    lanes = env.lane.lanes
    name = loops.Var(context.fresh(index), loops.Type("int64", lanes))
    more, env = bind(context, index, Coordinate(ZERO, ZERO, name), body, env)
    return [loops.Declare(name, found.as_vector(lanes)), *more], env


def _driver_of_position(
    context: Context, relation: notation.Position, body: Node, env: Environment
) -> tuple[Access, Place]:
    """The access with the stored positions of a position loop, and its place.

    A part of a loop over positions may compute operands of another part: then the access is outside the loop body.
    """
    wanted, indices = context.root_of_name(relation.tensor), context.parts(relation.index)
    here = stored_accesses(context, body, env)
    for access in [*here, *stored_accesses(context, context.program.body, env)]:
        if access.tensor != wanted:
            continue
        place = place_of(context, access, env)
        levels = context.levels(access.tensor)
        if place.levels == len(levels) or is_located(levels[place.levels]):
            continue
        listed = levels[place.levels : place.levels + len(indices)]
        if all(stored.level.is_branchless for stored in listed[1:]) and indices == tuple(
            context.level_variable(access, stored) for stored in listed
        ):
            if levels[place.levels].level.stride > 1:
                raise ScheduleError(
                    f"{relation.position} runs over positions of {access}, which take turns with those of neighbours",
                    f"loop over {relation.index}",
                )
            return access, place
    raise ScheduleError(
        f"{relation.position} runs over positions of {relation.tensor}, which has not been entered up to "
        f"{relation.index}",
        "order the loops as its levels are stored",
    )
