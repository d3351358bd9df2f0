"""Loops over stored coordinates: one operand, several merged, or all coordinates with cursors alongside.

In: `forall j: C[i,j] = A[i,j] + B[i,j]`, both compressed. Out: a cursor on each, advanced by `merge.py`.
"""

from __future__ import annotations

from itertools import combinations

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, both, compare, plus
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered, Range
from sparsify.compiler.loops.lower.iterate import bitmap, compressed, sliced
from sparsify.compiler.loops.lower.iterate.cursor import Cursor
from sparsify.compiler.loops.lower.iterate.intersect import intersection
from sparsify.compiler.loops.lower.iterate.merge import Visit, merge
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.levels.stored import note_skipping
from sparsify.compiler.notation import nodes as notation


def iterate(
    context: Context,
    loop: notation.Forall,
    found: list[Access],
    env: Environment,
    limits: Range | None = None,
) -> Lowered:
    """The loop over the coordinates stored in `found`, by the lattice points of the body.

    `limits`: the thread's part of the positions (one operand) or coordinates (several, cursors).
    """
    points = statement_points(loop.body, frozenset(found), context, env.absent)
    if frozenset() in points:
        return _cursors(context, loop, found, env, limits)
    note_skipping(context, loop.body, found)
    if not points:
        return []
    if points == frozenset({frozenset(found)}) and len(found) == 1:
        return _alone(context, loop, Cursor.start(context, found[0], env), env, limits)
    cursors = [
        Cursor.start(context, access, env).between(context, limits).declared(context) for access in found
    ]
    if points == frozenset({frozenset(found)}):
        return intersection(context, loop, cursors, env)
    return merge(context, loop, cursors, points, env)


def _alone(
    context: Context, loop: notation.Forall, cursor: Cursor, env: Environment, limits: Range | None
) -> Lowered:
    """The loop over the coordinates of one operand, by the kind of its level."""
    level = context.levels(cursor.access.tensor)[cursor.level].level
    if level.has_bits:
        return bitmap.iterate(context, loop, cursor, env, limits)
    if level.stride > 1:
        return sliced.iterate(context, loop, cursor, env, limits)
    return compressed.iterate(context, loop, cursor, env, limits)


def _cursors(
    context: Context, loop: notation.Forall, found: list[Access], env: Environment, limits: Range | None
) -> Lowered:
    """`for j in 0..extent`: at each coordinate the operands stored at `j`, with a cursor on each."""
    cursors = [Cursor.start(context, access, env).declared(context) for access in found]
    visit = Visit(context, loop, cursors)
    reach = limits or env.ranges.get(loop.index) or Range(ZERO, context.bound(loop.index))
    lowered: Lowered = [stmt for cursor in cursors for stmt in cursor.declarations]
    if reach.begin != ZERO:
        lowered += [_skip(context, cursor, reach.begin) for cursor in cursors]
    points = [frozenset(c) for n in range(len(found), -1, -1) for c in combinations(found, n)]
    bodies = visit.bodies(points, env)
    if not bodies:
        return []
    block = loops.Block(tuple(visit.cases(bodies)))
    return [*lowered, loops.For(visit.coordinate, reach.begin, reach.end, block)]


def _skip(context: Context, cursor: Cursor, begin: loops.Expr) -> loops.Stmt:
    """`while p < end and crd[p] < begin: p += 1`, the start of a thread's part, or of a piece of a tile."""
    before = compare("lt", cursor.coordinate(context), begin)
    return loops.While(both(cursor.alive, before), loops.Set(cursor.var, plus(cursor.var, ONE)))
