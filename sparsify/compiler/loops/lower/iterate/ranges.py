"""Loops over ranges: serial, unrolled, in vector lanes.

In: `vector forall k: ...`, 20 coordinates, 8 lanes. Out: two vectors, and a vector of which 4 lanes are in use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
    Range,
    scalar,
)
from sparsify.compiler.loops.lower.iterate.bind import range_of
from sparsify.compiler.loops.lower.iterate.body import bound_body
from sparsify.compiler.loops.lower.iterate.unroll import check_copies, is_long
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

# The code for the iterations from a start on: a whole strip, or the number in the second argument.
Strip = Callable[[loops.Expr, loops.Expr | None], Lowered]


def serial(context: Context, loop: notation.Forall, env: Environment) -> Lowered:
    """`for index in begin..end: body`."""
    reach = range_of(context, loop.index, loop.body, env)
    var = context.fresh_int(loop.index)
    body = bound_body(context, loop, scalar(var), env)
    return [loops.For(var, reach.begin, reach.end, loops.Block(tuple(body)))] if body else []


def unrolled(context: Context, loop: notation.Forall, env: Environment) -> Lowered:
    """The body once for each iteration; iterations past the end are skipped at run time."""
    reach = range_of(context, loop.index, loop.body, env)
    if reach.bound is None:
        raise ScheduleError(f"unroll {loop.index}: its extent is no constant", f"split {loop.index} first")
    check_copies(loop.index, reach.bound)
    lowered: Lowered = []
    for number in range(reach.bound):
        body = bound_body(context, loop, scalar(plus(reach.begin, integer(number))), env)
        if not reach.exact:
            guard = compare("lt", plus(reach.begin, integer(number)), reach.end)
            body = [loops.If(guard, loops.Block(tuple(body)))] if body else []
        lowered += body
    return lowered


def vector(context: Context, loop: notation.Forall, env: Environment) -> Lowered:
    """The body once for each vector of a constant extent, else a loop over vectors and a masked rest."""
    lanes = context.lanes
    reach = range_of(context, loop.index, loop.body, env)
    is_loop = reach.bound is None or (reach.exact and is_long(context, loop, reach.bound // lanes))
    if lanes == 1:
        return serial(context, loop, env) if is_loop else unrolled(context, loop, env)
    if env.lane is not None:
        raise ScheduleError(f"vector {loop.index} inside vector {env.lane.index}", "vector one of them")
    if is_loop:
        return strips(
            context,
            loop.index,
            reach,
            lanes,
            lambda start, count: _lane_body(context, loop, start, lanes, count, env),
        )
    assert reach.bound is not None, "of a constant extent"
    check_copies(loop.index, reach.bound // lanes)
    lowered: Lowered = []
    extent = minus(reach.end, reach.begin)
    for start in range(0, reach.bound, lanes):
        count: loops.Expr | None = None
        if not reach.exact or start + lanes > reach.bound:
            count = larger(minus(extent, integer(start)), ZERO) if start else extent
        lowered += _lane_body(context, loop, plus(reach.begin, integer(start)), lanes, count, env)
    return lowered


def strips(context: Context, index: str, reach: Range, lanes: int, body: Strip) -> Lowered:
    """`for x in begin..end step lanes: body(x, all)`, then `body(x, how many are left)`; nothing runs twice."""
    extent = (
        integer(reach.bound) if reach.exact and reach.bound is not None else minus(reach.end, reach.begin)
    )
    if reach.bound is not None and not reach.exact and reach.bound <= lanes:
        return body(reach.begin, extent)
    lowered: Lowered = []
    last = plus(reach.begin, times(quotient(extent, integer(lanes)), integer(lanes)))
    known = constant(extent)
    if known is None:
        rest = context.fresh_int(f"{index}_rest")
        lowered.append(loops.Declare(rest, last))
        last = rest
    if known is None or known >= lanes:
        var = context.fresh_int(index)
        if not (whole := body(var, None)):
            return []
        lowered.append(loops.For(var, reach.begin, last, loops.Block(tuple(whole)), lanes))
    if known is None:
        left = context.fresh_int(f"{index}_left")
        cut = loops.Block((loops.Declare(left, minus(reach.end, last)), *body(last, left)))
        lowered.append(loops.If(compare("lt", last, reach.end), cut))
    elif known % lanes:
        lowered += body(last, integer(known % lanes))
    return lowered


def _lane_body(
    context: Context,
    loop: notation.Forall,
    start: loops.Expr,
    lanes: int,
    count: loops.Expr | None,
    env: Environment,
) -> Lowered:
    """The body with one iteration in each lane from `start` on."""
    env = replace(env, lane=LaneContext(loop.index, lanes, count))
    return bound_body(context, loop, Coordinate(start, ONE), env)
