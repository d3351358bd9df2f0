"""Loops over ranges: serial, written out, in vector lanes, in tiles, over threads.

In: `split k ko ki 64 tail 32`, `vector ki`. Out: a loop over whole tiles of 8 vectors, then a half tile, then
a masked rest; the body is lowered once for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Assign
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
    remainder,
    smaller,
    times,
)
from sparsify.compiler.loops.lower.assemble import bitset_workspace, dropped, hash_workspace, list_workspace
from sparsify.compiler.loops.lower.environment import (
    Coordinate,
    Environment,
    LaneContext,
    Range,
    scalar,
)
from sparsify.compiler.loops.lower.iterate import coordinates, enter, parallel, positions, transpose
from sparsify.compiler.loops.lower.iterate.padding import stays_in_padding
from sparsify.compiler.loops.lower.iterate.unroll import check_copies, is_long, is_written_out
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]
# The code for the iterations from a start on: a whole strip, or the number in the second argument.
Strip = Callable[[loops.Expr, loops.Expr | None], Lowered]


def forall(low: Lowering, loop: notation.Forall, env: Environment) -> Lowered:
    """The loop IR of `forall index: body`, by the kind of the loop and the storage of its coordinates."""
    if isinstance(loop.kind, notation.Parallel):
        return parallel.parallel(low, loop, env)
    if (marks := bitset_workspace.read_by(low, loop)) is not None:
        return bitset_workspace.iterate(low, loop, marks, env)
    if (table := hash_workspace.read_by(low, loop)) is not None:
        return hash_workspace.iterate(low, loop, table, env)
    if (listed := list_workspace.read_by(low, loop)) is not None:
        return list_workspace.iterate(low, loop, listed, env)
    if (row := dropped.row_of(low, loop)) is not None:
        return dropped.append(low, loop, row, env)
    split = low.split_by_outer.get(loop.index)
    if loop.index not in low.positions and (drivers := coordinates.drivers(low, loop, env)):
        return coordinates.iterate(low, loop, drivers, env)
    if split is not None:
        if not isinstance(loop.kind, notation.Serial):
            raise ScheduleError(
                f"{loop.index} runs over tiles, which are not written out", f"unroll or vector {split.inner}"
            )
        return tiles(low, split, loop, env)
    match loop.kind:
        case notation.Vector():
            return _vector(low, loop, env)
        case notation.Unrolled():
            return _unrolled(low, loop, env)
        case notation.Transposed():
            return transpose.transposed(low, loop, env)
    return serial(low, loop, env)


def range_of(low: Lowering, index: str, body: notation.Statement | Assign, env: Environment) -> Range:
    """The iterations of a loop variable in the current environment."""
    if index in env.ranges:
        return env.ranges[index]
    if index in low.positions:
        return positions.position_range(low, low.positions[index], body, env)
    if index in low.fused:
        relation = low.fused[index]
        return Range(ZERO, times(low.bound(relation.first), low.bound(relation.second)))
    end = low.bound(index)
    return Range(ZERO, end, constant(end), constant(end) is not None)


def bind(
    low: Lowering, index: str, value: Coordinate, body: notation.Statement | Assign, env: Environment
) -> tuple[Lowered, Environment]:
    """Sets `index` to `value`, together with derived index variables and the block numbered by `index`."""
    if (numbered := low.split_by_outer.get(index)) is not None:
        env = enter.at_block(low, numbered, value, env, whole=stays_in_padding(low, numbered, body))
    env = env.with_coordinate(index, value)
    split = low.split_by_inner.get(index)
    # Outside the loop over tiles, a temporary of the tile's extent is still indexed by the inner variable.
    if split is not None and split.index in env.bases:
        whole = scalar(env.bases[split.index]).plus(value)
        return bind(low, split.index, whole, body, env)
    if index in low.splits and value.is_uniform:
        env = _with_tile(low, low.splits[index], value, env)
    if (relation := low.positions.get(index)) is not None:
        return positions.bind_position(low, relation, value, body, env)
    if (fuse := low.fused.get(index)) is not None:
        if not value.is_uniform:
            raise ScheduleError(f"vector {index}: it is fused of two loops", "vector a loop inside")
        inner = low.bound(fuse.second)
        first = loops.Var(low.fresh(fuse.first), loops.INT)
        second = loops.Var(low.fresh(fuse.second), loops.INT)
        declared: Lowered = [
            loops.Declare(first, quotient(value.start, inner)),
            loops.Declare(second, remainder(value.start, inner)),
        ]
        more, env = bind(low, fuse.first, scalar(first), body, env)
        rest, env = bind(low, fuse.second, scalar(second), body, env)
        return [*declared, *more, *rest], env
    return [], env


def _with_tile(low: Lowering, split: notation.Split, value: Coordinate, env: Environment) -> Environment:
    """`env` with the tile of a value, and the offset in the tile, if not set by loops."""
    if split.outer in env.coordinates or split.inner in env.coordinates:
        return env
    number, size = quotient(value.start, integer(split.size)), integer(split.size)
    env = env.with_coordinate(split.outer, scalar(number))
    # In a loop over a part of the tiles, tiles are counted from the start of the part.
    part = low.splits.get(split.outer)
    if part is not None and part.index in env.bases and part.inner not in env.coordinates:
        env = env.with_coordinate(part.inner, scalar(minus(number, env.bases[part.index])))
    return env.with_coordinate(split.inner, scalar(remainder(value.start, size)))


def serial(low: Lowering, loop: notation.Forall, env: Environment) -> Lowered:
    """`for index in begin..end: body`."""
    reach = range_of(low, loop.index, loop.body, env)
    var = loops.Var(low.fresh(loop.index), loops.INT)
    body = inside(low, loop, scalar(var), env)
    return [loops.For(var, reach.begin, reach.end, loops.Block(tuple(body)))] if body else []


def inside(low: Lowering, loop: notation.Forall, value: Coordinate, env: Environment) -> Lowered:
    """The body of `loop` at one value of the loop variable."""
    bound, inner = bind(low, loop.index, value, loop.body, env)
    body = low.body(loop, inner)
    return [*bound, *body] if body else []


def _unrolled(low: Lowering, loop: notation.Forall, env: Environment) -> Lowered:
    """The body once for each iteration; iterations past the end are skipped at run time."""
    reach = range_of(low, loop.index, loop.body, env)
    if reach.bound is None:
        raise ScheduleError(f"unroll {loop.index}: its extent is no constant", f"split {loop.index} first")
    check_copies(loop.index, reach.bound)
    lowered: Lowered = []
    for number in range(reach.bound):
        body = inside(low, loop, scalar(plus(reach.begin, integer(number))), env)
        if not reach.exact:
            guard = compare("lt", plus(reach.begin, integer(number)), reach.end)
            body = [loops.If(guard, loops.Block(tuple(body)))] if body else []
        lowered += body
    return lowered


def _vector(low: Lowering, loop: notation.Forall, env: Environment) -> Lowered:
    """The body once for each vector of a constant extent, else a loop over vectors and a masked rest."""
    lanes = low.lanes
    reach = range_of(low, loop.index, loop.body, env)
    is_loop = reach.bound is None or (reach.exact and is_long(low, loop, reach.bound // lanes))
    if lanes == 1:
        return serial(low, loop, env) if is_loop else _unrolled(low, loop, env)
    if env.lane is not None:
        raise ScheduleError(f"vector {loop.index} inside vector {env.lane.index}", "vector one of them")
    if is_loop:
        return strips(
            low,
            loop.index,
            reach,
            lanes,
            lambda start, count: _lane_body(low, loop, start, lanes, count, env),
        )
    assert reach.bound is not None, "of a constant extent"
    check_copies(loop.index, reach.bound // lanes)
    lowered: Lowered = []
    extent = minus(reach.end, reach.begin)
    for start in range(0, reach.bound, lanes):
        count: loops.Expr | None = None
        if not reach.exact or start + lanes > reach.bound:
            count = larger(minus(extent, integer(start)), ZERO) if start else extent
        lowered += _lane_body(low, loop, plus(reach.begin, integer(start)), lanes, count, env)
    return lowered


def strips(low: Lowering, index: str, reach: Range, lanes: int, body: Strip) -> Lowered:
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
        rest = loops.Var(low.fresh(f"{index}_rest"), loops.INT)
        lowered.append(loops.Declare(rest, last))
        last = rest
    if known is None or known >= lanes:
        var = loops.Var(low.fresh(index), loops.INT)
        if not (whole := body(var, None)):
            return []
        lowered.append(loops.For(var, reach.begin, last, loops.Block(tuple(whole)), lanes))
    if known is None:
        left = loops.Var(low.fresh(f"{index}_left"), loops.INT)
        cut = loops.Block((loops.Declare(left, minus(reach.end, last)), *body(last, left)))
        lowered.append(loops.If(compare("lt", last, reach.end), cut))
    elif known % lanes:
        lowered += body(last, integer(known % lanes))
    return lowered


def _lane_body(
    low: Lowering,
    loop: notation.Forall,
    start: loops.Expr,
    lanes: int,
    count: loops.Expr | None,
    env: Environment,
) -> Lowered:
    """The body with one iteration in each lane from `start` on."""
    env = replace(env, lane=LaneContext(loop.index, lanes, count))
    return inside(low, loop, Coordinate(start, ONE), env)


def tiles(low: Lowering, split: notation.Split, loop: notation.Forall, env: Environment) -> Lowered:
    """A loop over the whole tiles of `split.index`, then the remainder in pieces of decreasing size."""
    reach = range_of(low, split.index, loop.body, env)
    size, begin, end = split.size, reach.begin, reach.end
    if reach.exact and reach.bound is not None:
        return _constant_tiles(low, split, loop, reach, env)
    base = loops.Var(low.fresh(f"{split.index}_0"), loops.INT)
    is_whole = stays_in_padding(low, split, loop.body) or low.is_whole(split)
    if is_whole or not is_written_out(low, loop, split.inner):
        inner = Range(ZERO, integer(size), size, True)
        if not is_whole:
            inner = Range(ZERO, smaller(integer(size), minus(end, base)))
        body = tile(low, split, loop, base, inner, env)
        return [loops.For(base, begin, end, loops.Block(tuple(body)), size)] if body else []
    if split.masked:
        return _masked_tiles(low, split, loop, base, reach, env)
    whole = tile(low, split, loop, base, Range(ZERO, integer(size), size, True), env)
    if not whole:
        return []
    last = loops.Var(low.fresh(f"{split.index}_last"), loops.INT)
    # The start of a thread without tiles may be past the end.
    extent = minus(end, begin) if reach.origin is None else larger(minus(end, begin), ZERO)
    first = plus(begin, times(quotient(extent, integer(size)), integer(size)))
    lowered: Lowered = [
        loops.Declare(last, first),
        loops.For(base, begin, last, loops.Block(tuple(whole)), size),
    ]
    return lowered + pieces(low, split, loop, last, end, env)


def _masked_tiles(
    low: Lowering,
    split: notation.Split,
    loop: notation.Forall,
    base: loops.Var,
    reach: Range,
    env: Environment,
) -> Lowered:
    """One body for every tile, with the length of the tile computed at run time."""
    left = loops.Var(low.fresh(f"{split.inner}_count"), loops.INT)
    body = tile(low, split, loop, base, Range(ZERO, left, split.size), env)
    if not body:
        return []
    count = smaller(integer(split.size), minus(reach.end, base))
    block = loops.Block((loops.Declare(left, count), *body))
    return [loops.For(base, reach.begin, reach.end, block, split.size)]


def pieces(
    low: Lowering,
    split: notation.Split,
    loop: notation.Forall,
    last: loops.Expr,
    end: loops.Expr,
    env: Environment,
) -> Lowered:
    """The cut tile from `last` on: pieces of the sizes in the tail, then the remainder under masks."""
    if not split.tail:
        return _rest(low, split, loop, last, end, ZERO, split.size, env)
    done = loops.Var(low.fresh(f"{split.index}_done"), loops.INT)
    lowered: Lowered = [loops.Declare(done, ZERO, True)]
    before = split.size
    for piece in split.tail:
        reach = Range(done, plus(done, integer(piece)), piece, True)
        body = tile(low, split, loop, last, reach, env)
        block = loops.Block((*body, loops.Set(done, plus(done, integer(piece)))))
        fits = compare("le", plus(plus(last, done), integer(piece)), end)
        # A piece repeats if the next larger one is more than twice its size.
        lowered.append(loops.If(fits, block) if before <= 2 * piece else loops.While(fits, block))
        before = piece
    return lowered + (_rest(low, split, loop, last, end, done, before, env) if before > 1 else [])


def _rest(
    low: Lowering,
    split: notation.Split,
    loop: notation.Forall,
    last: loops.Expr,
    end: loops.Expr,
    done: loops.Expr,
    bound: int,
    env: Environment,
) -> Lowered:
    """The rest of the cut tile after `done` iterations: fewer than `bound`, under masks."""
    left = loops.Var(low.fresh(f"{split.index}_left"), loops.INT)
    body = tile(low, split, loop, last, Range(done, left, bound), env)
    block = loops.Block((loops.Declare(left, minus(end, last)), *body))
    return [loops.If(compare("lt", plus(last, done), end), block)]


def _constant_tiles(
    low: Lowering, split: notation.Split, loop: notation.Forall, reach: Range, env: Environment
) -> Lowered:
    """Tiles of a constant extent: masks only in the last vector of the remainder."""
    assert reach.bound is not None
    size, whole = split.size, reach.bound // split.size * split.size
    lowered: Lowered = []
    if whole == size:
        lowered += tile(low, split, loop, reach.begin, Range(ZERO, integer(size), size, True), env)
    elif whole:
        base = loops.Var(low.fresh(f"{split.index}_0"), loops.INT)
        body = tile(low, split, loop, base, Range(ZERO, integer(size), size, True), env)
        lowered.append(
            loops.For(base, reach.begin, plus(reach.begin, integer(whole)), loops.Block(tuple(body)), size)
        )
    if left := reach.bound - whole:
        inner = Range(ZERO, integer(left), left, True)
        lowered += tile(low, split, loop, plus(reach.begin, integer(whole)), inner, env)
    return lowered


def tile(
    low: Lowering,
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
        var = loops.Var(low.fresh(split.outer), loops.INT)
        declared, number = [loops.Declare(var, number)], var
    inner_env = env.with_base(split.index, base).with_range(split.inner, inner)
    inner_env = inner_env.with_coordinate(split.outer, scalar(number))
    tiled = low.split_by_outer.get(split.index)
    if tiled is not None and tiled.index not in env.ranges:
        # A part of the tiles of an index variable is a part of its range.
        first, last = (times(tile, integer(tiled.size)) for tile in (base, plus(base, inner.end)))
        inner_env = inner_env.with_range(tiled.index, Range(first, smaller(last, low.bound(tiled.index))))
    body = low.body(loop, inner_env)
    return [*declared, *body] if body else []
