"""Loops over levels of slices, with interleaved positions of neighbouring parents.

In: `vector forall ii: forall ji: y[ii] += A[i,j] * x[ji]`, 16 rows `ii` a slice. Out: one loop over the slots of the
slice, `p` in steps of 16: the entries from `p` on, and as many coordinates, in the lanes.
"""

from __future__ import annotations

from dataclasses import replace

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, Lowered, Place, Range, scalar
from sparsify.compiler.loops.lower.iterate.bind import bind
from sparsify.compiler.loops.lower.iterate.blocks import padded_split
from sparsify.compiler.loops.lower.iterate.body import body_at, lower_body
from sparsify.compiler.loops.lower.iterate.cursor import Cursor
from sparsify.compiler.loops.lower.levels.places import advance, coordinate_at
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.errors import ScheduleError


def iterate(
    context: Context, loop: notation.Forall, cursor: Cursor, env: Environment, limits: Range | None
) -> Lowered:
    """`for p in begin..end step n: j = crd[p]; body`, for one parent or for a vector of parents."""
    if limits is not None or cursor.shift != ZERO:
        raise ScheduleError(f"parts of the slices of {cursor.access}", f"a loop around {loop.index}")
    stride = context.levels(cursor.access.tensor)[cursor.level].level.stride
    var = context.fresh_int(cursor.name)
    position = Coordinate(var, ONE) if cursor.in_lanes else scalar(var)
    inner = advance(env, cursor.access, Place(cursor.level + 1, position))
    if cursor.in_lanes:
        block = _lanes(context, loop, cursor, position, inner)
    else:
        coordinate = context.fresh_int(loop.index)
        body = body_at(context, loop, coordinate, inner)
        block = [loops.Declare(coordinate, cursor.coordinate_of(context, var)), *body] if body else []
    if not block:
        return []
    return [loops.For(var, cursor.reach.begin, cursor.reach.end, loops.Block(tuple(block)), stride)]


def _lanes(
    context: Context, loop: notation.Forall, cursor: Cursor, position: Coordinate, env: Environment
) -> Lowered:
    """The body at the coordinates of a slot, one a lane."""
    assert env.lane is not None, "parents are in lanes"
    if (padded := padded_split(context, loop.index)) is not None:
        _check_padding(context, loop, cursor, padded, env)
    lanes = env.lane.lanes
    # Slices are whole, even if the last parents are outside of the tensor.
    whole = replace(env.lane, count=None)
    found = coordinate_at(context, cursor.access, cursor.level, cursor.parent, position, whole)
    name = loops.Var(context.fresh(loop.index), loops.Type("int64", lanes))
    bound, env = bind(context, loop.index, Coordinate(ZERO, ZERO, name), loop.body, env)
    body = lower_body(context, loop, env)
    return [loops.Declare(name, found.as_vector(lanes)), *bound, *body] if body else []


def _check_padding(
    context: Context, loop: notation.Forall, cursor: Cursor, padded: notation.Split, env: Environment
) -> None:
    """Checks that operands read at coordinates possibly outside of the tensor have room for whole blocks.

    Raises:
        ScheduleError: another operand is read at padding coordinates.
    """
    for access in find(loop.body, Access):
        if context.root_of(access) == cursor.access or access.tensor in env.registers:
            continue
        if {padded.index, padded.inner} & set(index_names(access)):
            raise ScheduleError(
                f"{access} is read at {padded.inner} in lanes, where {cursor.access} may have padding: "
                f"{padded.inner} is of blocks of {padded.size}, of which the extent of {padded.index} is not known "
                "to be a multiple",
                f"pack it at {padded.outer} in register",
            )
