"""Intersection co-iteration by leapfrog search: each operand jumps to the next common candidate coordinate.

In: `forall j: y[i] += A[i,j] * B[i,j]`, both compressed. Out: `while both have entries left: j = the larger of their
coordinates; A and B seek j; if both are at j: body`.

A cursor seeks a coordinate in steps that double and halve again, so intersecting a list of n entries with one of m
costs m log(n / m) comparisons, not n + m.

Source: Bentley and Yao, An almost optimal algorithm for unbounded searching, 1976; leapfrog joins, Veldhuizen, 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    both,
    compare,
    integer,
    larger,
    plus,
    quotient,
    times,
)
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.iterate.body import body_at
from sparsify.compiler.loops.lower.iterate.cursor import Cursor
from sparsify.compiler.notation import nodes as notation

# Entries passed one by one before steps double: enough for lists of similar lengths.
NEAR = 3


def intersection(
    context: Context, loop: notation.Forall, cursors: Sequence[Cursor], env: Environment
) -> Lowered:
    """The loop over the common coordinates of all cursors."""
    context.count_cases(loop, 1)
    coordinate = context.fresh_int(loop.index)
    places, search = env, list[loops.Stmt]()
    for cursor in cursors:
        found, places = cursor.here(context, places, coordinate)
        search += found
    body = body_at(context, loop, coordinate, places)
    if not body:
        return []
    after = [loops.Set(cursor.var, cursor.after(places)) for cursor in cursors]
    alive = reduce(both, (cursor.alive for cursor in cursors))
    most = reduce(larger, (cursor.coordinate(context) for cursor in cursors))
    seeks = [stmt for cursor in cursors for stmt in seek(context, cursor, coordinate)]
    at = (compare("eq", cursor.coordinate(context), coordinate) for cursor in cursors)
    together = loops.If(both(alive, reduce(both, at)), loops.Block((*search, *body, *after)))
    step = loops.Block((loops.Declare(coordinate, most), *seeks, together))
    return [*(stmt for cursor in cursors for stmt in cursor.declarations), loops.While(alive, step)]


def seek(context: Context, cursor: Cursor, coordinate: loops.Var) -> Lowered:
    """Advances the cursor to the first entry not before `coordinate`."""

    def is_before(position: loops.Expr) -> loops.Expr:
        inside = compare("lt", position, cursor.end)
        return both(inside, compare("lt", cursor.coordinate_of(context, position), coordinate))

    step = context.fresh_int(f"{cursor.name}_step")
    ahead = plus(cursor.var, step)
    far: Lowered = [
        loops.Declare(step, ONE, True),
        loops.While(
            is_before(ahead),
            loops.Block((loops.Set(cursor.var, ahead), loops.Set(step, times(step, integer(2))))),
        ),
        loops.While(
            compare("lt", ZERO, step),
            loops.Block(
                (
                    loops.If(is_before(ahead), loops.Set(cursor.var, ahead)),
                    loops.Set(step, quotient(step, integer(2))),
                )
            ),
        ),
        loops.Set(cursor.var, plus(cursor.var, ONE)),
    ]
    seek: loops.Stmt = loops.If(is_before(cursor.var), loops.Block(tuple(far)))
    for near in range(NEAR, 0, -1):
        # In the loop around, every cursor is at an entry.
        first = compare("lt", cursor.coordinate(context), coordinate)
        condition = first if near == 1 else is_before(cursor.var)
        seek = loops.If(condition, loops.Block((loops.Set(cursor.var, plus(cursor.var, ONE)), seek)))
    return [seek]
