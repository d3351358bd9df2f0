"""Loops over levels of slices, with interleaved positions of neighbouring parents.

In: `vector forall ii: forall ji: y[ii] += A[i,j] * x[ji]`, 16 rows `ii` a slice. Out: one loop over the slots of the
slice, `p` in steps of 16: the entries from `p` on, and as many coordinates, in the lanes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Place, Range, scalar
from sparsify.compiler.loops.lower.iterate import ranges
from sparsify.compiler.loops.lower.iterate.enter import body_at, padded_split
from sparsify.compiler.loops.lower.level_access import advance, coordinate_at, level_variable
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.iterate.coordinates import Cursor
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]


def is_in_lanes(low: Lowering, access: Access, place: Place, env: Environment) -> bool:
    """Whether the lanes of the enclosing loop are neighbouring parents of one slice."""
    levels = low.declaration(access.tensor).format.levels
    stride, lane = levels[place.levels].level.stride, env.lane
    if stride == 1 or lane is None or stride % lane.lanes:
        return False
    if place.position.vector is not None or place.position.step != ONE:
        return False
    # Vectors of the parents of a slice start at multiples of the vector length.
    parents = level_variable(low, access, levels[place.levels - 1])
    return lane.index == parents and parents in env.ranges and env.ranges[parents].begin == ZERO


def iterate(
    low: Lowering, loop: notation.Forall, cursor: Cursor, env: Environment, limits: Range | None
) -> Lowered:
    """`for p in begin..end step n: j = crd[p]; body`, for one parent or for a vector of parents."""
    if limits is not None or cursor.shift != ZERO:
        raise ScheduleError(f"parts of the slices of {cursor.access}", f"a loop around {loop.index}")
    stride = low.declaration(cursor.access.tensor).format.levels[cursor.level].level.stride
    var = loops.Var(low.fresh(cursor.name), loops.INT)
    position = Coordinate(var, ONE) if cursor.in_lanes else scalar(var)
    inner = advance(env, cursor.access, Place(cursor.level + 1, position))
    if cursor.in_lanes:
        block = _lanes(low, loop, cursor, position, inner)
    else:
        coordinate = loops.Var(low.fresh(loop.index), loops.INT)
        body = body_at(low, loop, coordinate, inner)
        block = [loops.Declare(coordinate, cursor.coordinate_of(low, var)), *body] if body else []
    if not block:
        return []
    return [loops.For(var, cursor.reach.begin, cursor.reach.end, loops.Block(tuple(block)), stride)]


def _lanes(
    low: Lowering, loop: notation.Forall, cursor: Cursor, position: Coordinate, env: Environment
) -> Lowered:
    """The body at the coordinates of a slot, one a lane."""
    assert env.lane is not None, "parents are in lanes"
    if (padded := padded_split(low, loop.index)) is not None:
        _check_padding(low, loop, cursor, padded, env)
    lanes = env.lane.lanes
    # Slices are whole, even if the last parents are outside of the tensor.
    whole = replace(env.lane, count=None)
    found = coordinate_at(low, cursor.access, cursor.level, cursor.parent, position, whole)
    name = loops.Var(low.fresh(loop.index), loops.Type("int64", lanes))
    bound, env = ranges.bind(low, loop.index, Coordinate(ZERO, ZERO, name), loop.body, env)
    body = low.body(loop, env)
    return [loops.Declare(name, found.as_vector(lanes)), *bound, *body] if body else []


def _check_padding(
    low: Lowering, loop: notation.Forall, cursor: Cursor, padded: notation.Split, env: Environment
) -> None:
    """Checks that operands read at coordinates possibly outside of the tensor have room for whole blocks.

    Raises:
        ScheduleError: another operand is read at padding coordinates.
    """
    for access in find(loop.body, Access):
        if low.root_of(access) == cursor.access or access.tensor in env.registers:
            continue
        if {padded.index, padded.inner} & set(index_names(access)):
            raise ScheduleError(
                f"{access} is read at {padded.inner} in lanes, where {cursor.access} may have padding: "
                f"{padded.inner} is of blocks of {padded.size}, of which the extent of {padded.index} is not known "
                "to be a multiple",
                f"pack it at {padded.outer} in register",
            )
