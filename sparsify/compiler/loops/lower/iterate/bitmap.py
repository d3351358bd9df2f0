"""Loops over the bits of a level: set bits one after the other, or all bits in the lanes of vectors.

In: `forall j: y[i] += A[i,j] * x[j]`, a bit for each `j`. Out: for every eight bytes of row `i` the number of the
lowest bit, then dropped, until none is left. In: `vector forall ji: ...`, `ji` in tiles of 64. Out: for every
vector of `ji` the bits, the entries of A expanded to the lanes with a set bit, and a sum under the mask.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    compare,
    constant,
    integer,
    larger,
    minus,
    plus,
    quotient,
    times,
)
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import (
    Coordinate,
    Environment,
    LaneContext,
    Lowered,
    Place,
    Range,
    scalar,
)
from sparsify.compiler.loops.lower.iterate.bind import range_of
from sparsify.compiler.loops.lower.iterate.body import body_at, bound_body
from sparsify.compiler.loops.lower.iterate.cursor import Cursor
from sparsify.compiler.loops.lower.levels.places import advance
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

BYTE: Final = 8
WORD: Final = 64


def iterate(
    context: Context, loop: notation.Forall, cursor: Cursor, env: Environment, limits: Range | None
) -> Lowered:
    """The body at every set bit below the cursor's parent."""
    if limits is not None or cursor.shift != ZERO:
        raise ScheduleError(f"parts of the bits of {cursor.access}", f"a loop around {loop.index}")
    stored = context.levels(cursor.access.tensor)[cursor.level]
    extent = context.level_extent(cursor.access.tensor, stored)
    rows = quotient(plus(extent, integer(BYTE - 1)), integer(BYTE))
    first = times(cursor.parent, rows)
    if isinstance(loop.kind, notation.Vector) and context.lanes > 1:
        return _lanes(context, loop, cursor, first, env)
    return _one_by_one(context, loop, cursor, first, extent, env)


def _buffer(cursor: Cursor) -> str:
    return f"{cursor.access.tensor}{cursor.level + 1}_crd"


def _one_by_one(
    context: Context,
    loop: notation.Forall,
    cursor: Cursor,
    first: loops.Expr,
    extent: loops.Expr,
    env: Environment,
) -> Lowered:
    """`while bits: j = word + lowest_bit(bits); body; p += 1; bits = drop_bit(bits)`, word by word."""
    known = constant(extent)
    step = WORD if known is not None and known % WORD == 0 else BYTE
    position = context.fresh_int(cursor.name)
    word = context.fresh_int(f"{loop.index}_word")
    left = context.fresh_int(f"{loop.index}_bits")
    coordinate = context.fresh_int(loop.index)
    place = Place(cursor.level + 1, scalar(position), segment=cursor.reach.begin)
    body = body_at(context, loop, coordinate, advance(env, cursor.access, place))
    if not body:
        return []
    lowest = loops.Op("lowest_bit", (left,), loops.INT)
    inside = loops.Block(
        (
            loops.Declare(coordinate, plus(word, lowest)),
            *body,
            loops.Set(position, plus(position, ONE)),
            loops.Set(left, loops.Op("drop_bit", (left,), loops.INT)),
        )
    )
    words = loops.Block(
        (
            loops.Declare(
                left, loops.Bits(_buffer(cursor), plus(first, quotient(word, integer(BYTE))), step), True
            ),
            loops.While(compare("ne", left, ZERO), inside),
        )
    )
    return [
        loops.Declare(position, cursor.reach.begin, True),
        loops.For(word, ZERO, extent, words, step),
    ]


def _lanes(
    context: Context, loop: notation.Forall, cursor: Cursor, first: loops.Expr, env: Environment
) -> Lowered:
    """The body for each vector of coordinates, masked by the bits."""
    if env.lane is not None:
        raise ScheduleError(f"vector {loop.index} inside vector {env.lane.index}", "vector one of them")
    lanes, reach = context.lanes, range_of(context, loop.index, loop.body, env)
    if reach.bound is None or reach.bound % max(lanes, BYTE) or reach.begin != ZERO:
        raise ScheduleError(
            f"vector {loop.index}: {cursor.access} has no bits for whole vectors", f"blocks of {WORD}"
        )
    position = context.fresh_int(cursor.name)
    place = Place(cursor.level + 1, scalar(position), segment=cursor.reach.begin)
    inner = advance(env, cursor.access, place)
    lowered: Lowered = [loops.Declare(position, cursor.reach.begin, True)]
    for start in range(0, reach.bound, lanes):
        count = None if reach.exact else larger(minus(reach.end, integer(start)), ZERO)
        bits = context.fresh_int(f"{loop.index}_bits")
        lane = LaneContext(loop.index, lanes, count, bits, cursor.access)
        body = bound_body(context, loop, Coordinate(integer(start), ONE), replace(inner, lane=lane))
        if not body:
            return []
        found = loops.Bits(_buffer(cursor), plus(first, integer(start // BYTE)), lanes, start % BYTE)
        more = loops.Op("count_bits", (bits,), loops.INT)
        lowered += [loops.Declare(bits, found), *body, loops.Set(position, plus(position, more))]
    return lowered
