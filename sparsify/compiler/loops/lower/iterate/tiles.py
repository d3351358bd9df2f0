"""Loops over tiles: whole tiles, then the rest in pieces.

In: `split k ko ki 64 tail 32`, `vector ki`. Out: a loop over whole tiles of 8 vectors, then a half tile, then
a masked rest; the body is lowered once for each.
"""

from __future__ import annotations

from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ZERO,
    compare,
    constant,
    integer,
    larger,
    minus,
    plus,
    quotient,
    smaller,
    times,
)
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered, Range, scalar
from sparsify.compiler.loops.lower.iterate.bind import range_of
from sparsify.compiler.loops.lower.iterate.body import lower_body
from sparsify.compiler.loops.lower.iterate.padding import stays_in_padding
from sparsify.compiler.loops.lower.iterate.unroll import is_written_out
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError


def tiles(context: Context, split: notation.Split, loop: notation.Forall, env: Environment) -> Lowered:
    """A loop over the whole tiles of `split.index`, then the remainder in pieces of decreasing size."""
    reach = range_of(context, split.index, loop.body, env)
    size, begin, end = split.size, reach.begin, reach.end
    if reach.exact and reach.bound is not None:
        return _constant_tiles(context, split, loop, reach, env)
    base = context.fresh_int(f"{split.index}_0")
    is_whole = stays_in_padding(context, split, loop.body) or context.is_whole(split)
    if is_whole or not is_written_out(context, loop, split.inner):
        inner = Range(ZERO, integer(size), size, True)
        if not is_whole:
            inner = Range(ZERO, smaller(integer(size), minus(end, base)))
        body = _tile(context, split, loop, base, inner, env)
        return [loops.For(base, begin, end, loops.Block(tuple(body)), size)] if body else []
    if split.masked:
        return _masked_tiles(context, split, loop, base, reach, env)
    whole = _tile(context, split, loop, base, Range(ZERO, integer(size), size, True), env)
    if not whole:
        return []
    last = context.fresh_int(f"{split.index}_last")
    # The start of a thread without tiles may be past the end.
    extent = minus(end, begin) if reach.origin is None else larger(minus(end, begin), ZERO)
    first = plus(begin, times(quotient(extent, integer(size)), integer(size)))
    lowered: Lowered = [
        loops.Declare(last, first),
        loops.For(base, begin, last, loops.Block(tuple(whole)), size),
    ]
    return lowered + _pieces(context, split, loop, last, end, env)


def _masked_tiles(
    context: Context,
    split: notation.Split,
    loop: notation.Forall,
    base: loops.Var,
    reach: Range,
    env: Environment,
) -> Lowered:
    """One body for every tile, with the length of the tile computed at run time."""
    left = context.fresh_int(f"{split.inner}_count")
    body = _tile(context, split, loop, base, Range(ZERO, left, split.size), env)
    if not body:
        return []
    count = smaller(integer(split.size), minus(reach.end, base))
    block = loops.Block((loops.Declare(left, count), *body))
    return [loops.For(base, reach.begin, reach.end, block, split.size)]


def _pieces(
    context: Context,
    split: notation.Split,
    loop: notation.Forall,
    last: loops.Expr,
    end: loops.Expr,
    env: Environment,
) -> Lowered:
    """The cut tile from `last` on: pieces of the sizes in the tail, then the remainder under masks."""
    if not split.tail:
        return _rest(context, split, loop, last, end, ZERO, split.size, env)
    done = context.fresh_int(f"{split.index}_done")
    lowered: Lowered = [loops.Declare(done, ZERO, True)]
    before = split.size
    for piece in split.tail:
        reach = Range(done, plus(done, integer(piece)), piece, True)
        body = _tile(context, split, loop, last, reach, env)
        block = loops.Block((*body, loops.Set(done, plus(done, integer(piece)))))
        fits = compare("le", plus(plus(last, done), integer(piece)), end)
        # A piece repeats if the next larger one is more than twice its size.
        lowered.append(loops.If(fits, block) if before <= 2 * piece else loops.While(fits, block))
        before = piece
    return lowered + (_rest(context, split, loop, last, end, done, before, env) if before > 1 else [])


def _rest(
    context: Context,
    split: notation.Split,
    loop: notation.Forall,
    last: loops.Expr,
    end: loops.Expr,
    done: loops.Expr,
    bound: int,
    env: Environment,
) -> Lowered:
    """The rest of the cut tile after `done` iterations: fewer than `bound`, under masks."""
    left = context.fresh_int(f"{split.index}_left")
    body = _tile(context, split, loop, last, Range(done, left, bound), env)
    block = loops.Block((loops.Declare(left, minus(end, last)), *body))
    return [loops.If(compare("lt", plus(last, done), end), block)]


def _constant_tiles(
    context: Context, split: notation.Split, loop: notation.Forall, reach: Range, env: Environment
) -> Lowered:
    """Tiles of a constant extent: masks only in the last vector of the remainder."""
    assert reach.bound is not None
    size, whole = split.size, reach.bound // split.size * split.size
    lowered: Lowered = []
    if whole == size:
        lowered += _tile(context, split, loop, reach.begin, Range(ZERO, integer(size), size, True), env)
    elif whole:
        base = context.fresh_int(f"{split.index}_0")
        body = _tile(context, split, loop, base, Range(ZERO, integer(size), size, True), env)
        lowered.append(
            loops.For(base, reach.begin, plus(reach.begin, integer(whole)), loops.Block(tuple(body)), size)
        )
    if left := reach.bound - whole:
        inner = Range(ZERO, integer(left), left, True)
        lowered += _tile(context, split, loop, plus(reach.begin, integer(whole)), inner, env)
    return lowered


def _tile(
    context: Context,
    split: notation.Split,
    loop: notation.Forall,
    base: loops.Expr,
    inner: Range,
    env: Environment,
) -> Lowered:
    """The body for the tile of `split.index` starting at `base`; the rest of a tile has the number of the tile."""
    if split.inner in env.coordinates or split.inner in env.bases:
        raise ScheduleError(f"the loop over {split.inner} is around the one over {split.outer}", "order them")
    reach = env.ranges.get(split.index)
    start = ZERO if reach is None else reach.begin if reach.origin is None else reach.origin
    number = quotient(minus(base, start), integer(split.size))
    declared: Lowered = []
    if constant(number) is None:
        # Once for the tile: a division in every address is slow to compile.
        var = context.fresh_int(split.outer)
        declared, number = [loops.Declare(var, number)], var
    inner_env = env.with_base(split.index, base).with_range(split.inner, inner)
    inner_env = inner_env.with_coordinate(split.outer, scalar(number))
    tiled = context.split_by_outer.get(split.index)
    if tiled is not None and tiled.index not in env.ranges:
        # A part of the tiles of an index variable is a part of its range.
        first, last = (times(tile, integer(tiled.size)) for tile in (base, plus(base, inner.end)))
        inner_env = inner_env.with_range(tiled.index, Range(first, smaller(last, context.bound(tiled.index))))
    body = lower_body(context, loop, inner_env)
    return [*declared, *body] if body else []
