"""Loops over lists of coordinates, as compressed and coordinate levels have them.

In: `forall j: y[i] += A[i,j] * x[j]`, A compressed by row. Out:
`for p in A2_pos[i]..A2_pos[i + 1]: j = A2_crd[p]; ...`; if the level repeats coordinates, a loop over segments.
"""

from __future__ import annotations

from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered, Place, Range, scalar
from sparsify.compiler.loops.lower.iterate import prefetch
from sparsify.compiler.loops.lower.iterate.body import body_at
from sparsify.compiler.loops.lower.iterate.cursor import Cursor
from sparsify.compiler.loops.lower.levels import hash_table
from sparsify.compiler.loops.lower.levels.places import advance
from sparsify.compiler.loops.lower.rows import remarked
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError


def iterate(
    context: Context, loop: notation.Forall, cursor: Cursor, env: Environment, limits: Range | None
) -> Lowered:
    """`for p in pos[q]..pos[q + 1]: j = crd[p]; body`."""
    reach = cursor.within(limits)
    if cursor.repeats:
        return _segments(context, loop, cursor, reach, env)
    var = context.fresh_int(cursor.name)
    coordinate = context.fresh_int(loop.index)
    inner = advance(env, cursor.access, Place(cursor.level + 1, scalar(var), segment=cursor.reach.begin))

    def ahead(here: Environment) -> Lowered:
        if cursor.shift != ZERO:
            return []
        return prefetch.prefetches(context, cursor.access, cursor.level, var, loop.index, loop.body, here)

    body = body_at(context, loop, coordinate, inner, ahead)
    if not body:
        return []
    if context.levels(cursor.access.tensor)[cursor.level].level.has_empty_slots:
        if cursor.shift != ZERO:
            raise ScheduleError(f"a window of {cursor.access}, whose slots have no order", "an ordered level")
        declared = loops.Declare(coordinate, hash_table.slot(context, cursor.access, cursor.level, var))
        body = hash_table.if_used(coordinate, body)
    else:
        declared = loops.Declare(coordinate, cursor.coordinate_of(context, var))
    block = loops.Block((declared, *body))
    made = [*cursor.declarations, loops.For(var, reach.begin, reach.end, block)]
    return remarked.once(
        context, loop, cursor.access, env, made, lambda: iterate(context, loop, cursor, env, limits)
    )


def _segments(
    context: Context, loop: notation.Forall, cursor: Cursor, reach: Range, env: Environment
) -> Lowered:
    """`while p < end: i = crd[p]; q = end of the entries with i; body; p = q`."""
    cursor = cursor.declared(context, reach)
    coordinate = context.fresh_int(loop.index)
    step, inner = cursor.here(context, env, coordinate)
    body = body_at(context, loop, coordinate, inner)
    if not body:
        return []
    block = loops.Block(
        (
            loops.Declare(coordinate, cursor.coordinate(context)),
            *step,
            *body,
            loops.Set(cursor.var, cursor.after(inner)),
        )
    )
    return [*cursor.declarations, loops.While(cursor.alive, block)]
