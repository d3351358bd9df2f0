"""Loops over stored positions: `p` runs over a segment of an operand, and coordinates are loaded at `p`.

In: `pos j p A`, `forall p: y[i] += A[i,j] * x[j]`. Out: `for p in A2_pos[i]..A2_pos[i + 1]: j = A2_crd[p]; ...`.
In: `fuse e j f; pos f p E`, E in `dense, compressed, singleton`. Out: the same with `e = E2_crd[p]; j = E3_crd[p]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Place, Range, scalar
from sparsify.compiler.loops.lower.iterate import coordinates, prefetch, ranges
from sparsify.compiler.loops.lower.iterate.enter import padded_split
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.level_access import (
    advance,
    coordinate_at,
    is_located,
    level_variable,
    place_of,
)
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]


def driver_of_position(
    low: Lowering, relation: notation.Position, body: Node, env: Environment
) -> tuple[Access, Place]:
    """The access with the stored positions of a position loop, and its place.

    A part of a loop over positions may compute operands of another part: then the access is outside the loop body.
    """
    wanted, indices = low.root_of_name(relation.tensor), low.parts(relation.index)
    here = coordinates.stored_accesses(low, body, env)
    for access in [*here, *coordinates.stored_accesses(low, low.program.body, env)]:
        if access.tensor != wanted:
            continue
        place = place_of(low, access, env)
        levels = low.declaration(access.tensor).format.levels
        if place.levels == len(levels) or is_located(levels[place.levels]):
            continue
        listed = levels[place.levels : place.levels + len(indices)]
        if all(stored.level.is_branchless for stored in listed[1:]) and indices == tuple(
            level_variable(low, access, stored) for stored in listed
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


def position_range(
    low: Lowering, relation: notation.Position, body: notation.Statement | Assign, env: Environment
) -> Range:
    """The positions of the current segment of the operand; `body` must not need other coordinates."""
    access, place = driver_of_position(low, relation, body, env)
    points = statement_points(body, frozenset({access}), low, env.absent)
    if points != frozenset({frozenset({access})}):
        raise ScheduleError(
            f"the loop over {relation.position} would skip coordinates of {relation.index} that are not stored in "
            f"{access}, and they are needed",
            f"loop over {relation.index}",
        )
    coordinates.note_skipping(low, body, [access])
    return coordinates.level_range(low, access, place)


def bind_position(
    low: Lowering,
    relation: notation.Position,
    value: Coordinate,
    body: notation.Statement | Assign,
    env: Environment,
) -> tuple[Lowered, Environment]:
    """The environment with the operand at position `value` and its index variable at the stored coordinate."""
    access, place = driver_of_position(low, relation, body, env)
    begin = coordinates.level_range(low, access, place).begin
    indices = low.parts(relation.index)
    env = advance(env, access, Place(place.levels + len(indices), value, segment=begin))
    if padded_split(low, relation.index) is not None:
        raise ScheduleError(
            f"{relation.position} runs over positions of {access}, some of which are padding",
            f"loop over {relation.index}",
        )
    lowered: Lowered = []
    for level, index in enumerate(indices, place.levels):
        more, env = _bind_coordinate(low, access, place, level, index, value, body, env)
        lowered += more
    return lowered, env


def _bind_coordinate(
    low: Lowering,
    access: Access,
    place: Place,
    level: int,
    index: str,
    value: Coordinate,
    body: notation.Statement | Assign,
    env: Environment,
) -> tuple[Lowered, Environment]:
    """Sets `index` to the coordinate stored at position `value` of a level, below the current place."""
    found = coordinate_at(low, access, level, place.position.start, value, env.lane)
    if value.is_uniform or env.lane is None:
        var = loops.Var(low.fresh(index), loops.INT)
        declared: Lowered = [loops.Declare(var, found.start)]
        more, env = ranges.bind(low, index, scalar(var), body, env)
        fetched = prefetch.prefetches(low, access, level, value.start, index, body, env)
        return [*declared, *fetched, *more], env
    lanes = env.lane.lanes
    name = loops.Var(low.fresh(index), loops.Type("int64", lanes))
    more, env = ranges.bind(low, index, Coordinate(ZERO, ZERO, name), body, env)
    return [loops.Declare(name, found.as_vector(lanes)), *more], env
