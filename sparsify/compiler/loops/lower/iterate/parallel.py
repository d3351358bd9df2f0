"""Loops over threads: rows in equal parts, or balanced by stored positions, static or handed out in chunks.

In: `parallel i dynamic A`. Out: `parallel for i in chunks of A2_pos, 32 a thread, dynamic`. Rows too long for
a thread are shared before (`heavy_rows.py`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, both, compare, integer, minus, plus, quotient, times
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Range, scalar
from sparsify.compiler.loops.lower.iterate import coordinates, heavy_rows
from sparsify.compiler.loops.lower.iterate.bind import range_of
from sparsify.compiler.loops.lower.iterate.tiles import tiles
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.levels.places import coordinate_at, is_located, place_of
from sparsify.compiler.loops.lower.levels.stored import drivers, level_range, repeats
from sparsify.compiler.loops.lower.rows import parts, upper_bound
from sparsify.compiler.loops.lower.work import DYNAMIC_CHUNKS, work
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

# Fixed cost of a row, in entries.
ROW_COST = 4


def parallel(context: Context, loop: notation.Forall, env: Environment) -> list[loops.Stmt]:
    """The loop with iterations shared by the threads; serial inside another parallel loop."""
    assert isinstance(loop.kind, notation.Parallel)
    alone = replace(loop, kind=notation.Serial())
    if env.in_parallel:
        return context.statement(alone, env)
    if context.assembly is not None:
        context.assembly.check_parallel(loop)
    begin = context.fresh_int(f"{loop.index}_begin")
    end = context.fresh_int(f"{loop.index}_end")
    context.setups.append([])
    shared = dict(context.memory)
    here = replace(env, in_parallel=True)
    read = {access.tensor for access in find(loop, Access)}
    for own in env.own:
        if any(temporary.name in read for temporary in own.temporaries):
            context.setups[-1] += context.statement(own, here)
    if loop.kind.hubs:
        extent, body = heavy_rows.others(context, loop, begin, end, here)
    else:
        extent, body = _part(context, alone, begin, end, here)
    setup = loops.Block(tuple(context.setups.pop()))
    context.memory = shared
    dynamic = loop.kind.policy == "dynamic"
    chunks = loop.kind.chunks if loop.kind.chunks > 1 or not dynamic else DYNAMIC_CHUNKS
    if not body:
        return []
    context.is_parallel = True
    if context.assembly is not None and context.assembly.is_running:
        body = [upper_bound.part(context.assembly), *body]
    if context.assembly is not None and context.assembly.by_parts:
        first, last, whole = parts.each(context.assembly, begin, end, extent, body)
        return [
            loops.ParallelFor(
                first,
                last,
                parts.PARTS,
                setup,
                whole,
                work(context, loop),
                chunks_per_thread=DYNAMIC_CHUNKS,
                dynamic=True,
            )
        ]
    return [
        *(heavy_rows.shared(context, loop, env) if loop.kind.hubs else []),
        loops.ParallelFor(
            begin,
            end,
            extent,
            setup,
            loops.Block(tuple(body)),
            work(context, loop),
            balance=_balance(context, loop, extent),
            row_cost=_row_cost(context, loop.kind.by),
            chunks_per_thread=chunks,
            dynamic=dynamic,
        ),
    ]


def _part(
    context: Context, loop: notation.Forall, begin: loops.Var, end: loops.Var, env: Environment
) -> tuple[loops.Expr, list[loops.Stmt]]:
    """The number of iterations, and the code for the iterations from `begin` to `end`."""
    index = loop.index
    if index not in context.positions and (found := drivers(context, loop, env)):
        points = statement_points(loop.body, frozenset(found), context, env.absent)
        if frozenset() in points:
            extent, part = _range_part(context, loop, begin, end, env)
            return extent, coordinates.iterate(context, loop, found, env, part)
        if len(found) == 1:
            return _stored_part(context, loop, found[0], begin, end, env)
        # The threads share the coordinates; in each operand the ends of a part are found by search.
        extent, part = _range_part(context, loop, begin, end, env)
        return extent, coordinates.iterate(context, loop, found, env, part)
    split = context.split_by_outer.get(index)
    if split is not None:
        return _tile_part(context, split, loop, begin, end, env)
    extent, part = _range_part(context, loop, begin, end, env)
    return extent, context.statement(loop, env.with_range(index, part))


def _range_part(
    context: Context, loop: notation.Forall, begin: loops.Var, end: loops.Var, env: Environment
) -> tuple[loops.Expr, Range]:
    """The number of iterations of the loop, fewer in a cut tile, and the range from `begin` to `end`."""
    reach = range_of(context, loop.index, loop.body, env)
    return minus(reach.end, reach.begin), Range(plus(reach.begin, begin), plus(reach.begin, end))


def _stored_part(
    context: Context,
    loop: notation.Forall,
    access: Access,
    begin: loops.Var,
    end: loops.Var,
    env: Environment,
) -> tuple[loops.Expr, list[loops.Stmt]]:
    """A part of the positions of a level; whole segments for repeated coordinates."""
    place = place_of(context, access, env)
    reach = level_range(context, access, place)
    extent = minus(reach.end, reach.begin)
    first, last = plus(reach.begin, begin), plus(reach.begin, end)
    if not repeats(context, access, place.levels):
        return extent, coordinates.iterate(context, loop, [access], env, Range(first, last))
    ends: list[loops.Var] = []
    lowered: list[loops.Stmt] = []
    for start, name in ((first, f"{loop.index}_first"), (last, f"{loop.index}_last")):
        var = context.fresh_int(name)
        inside = both(compare("gt", var, reach.begin), compare("lt", var, reach.end))
        same = compare(
            "eq",
            *(
                coordinate_at(context, access, place.levels, place.position.start, scalar(p)).start
                for p in (var, minus(var, ONE))
            ),
        )
        lowered.append(loops.Declare(var, start, True))
        lowered.append(loops.While(both(inside, same), loops.Set(var, plus(var, ONE))))
        ends.append(var)
    return extent, [*lowered, *coordinates.iterate(context, loop, [access], env, Range(ends[0], ends[1]))]


def _tile_part(
    context: Context,
    split: notation.Split,
    loop: notation.Forall,
    begin: loops.Var,
    end: loops.Var,
    env: Environment,
) -> tuple[loops.Expr, list[loops.Stmt]]:
    """Tiles `begin` to `end`: the whole ones, and the cut one at the end if included."""
    reach = range_of(context, split.index, loop.body, env)
    size = integer(split.size)
    count = quotient(plus(minus(reach.end, reach.begin), integer(split.size - 1)), size)
    first = plus(reach.begin, times(begin, size))
    part = Range(first, _smaller_end(reach, end, size), origin=reach.begin)
    return count, tiles(context, split, loop, env.with_range(split.index, part))


def _smaller_end(reach: Range, end: loops.Expr, size: loops.Expr) -> loops.Expr:
    """The end of tile `end - 1`, cut at the end of the range."""
    return loops.Op("min", (plus(reach.begin, times(end, size)), reach.end), loops.INT)


def _balance(context: Context, loop: notation.Forall, extent: loops.Expr) -> str | None:
    """The position array with the work of each iteration; `None` if its rows are not the iterations."""
    assert isinstance(loop.kind, notation.Parallel)
    if not loop.kind.by:
        return None
    if loop.kind.by not in context.declarations:
        raise ScheduleError(
            f"parallel {loop.index} by {loop.kind.by}: there is no such tensor", "a sparse operand"
        )
    levels = context.levels(loop.kind.by)
    read = [n for n in find(loop, Access) if n.tensor == loop.kind.by]
    if not any(context.level_variable(access, levels[0]) == loop.index for access in read if levels):
        raise ScheduleError(
            f"parallel {loop.index} by {loop.kind.by}: {loop.index} is not its outermost level",
            "the operand that is stored by it, or none",
        )
    if len(levels) < 2 or not is_located(levels[0]) or "pos" not in levels[1].level.arrays:
        return None
    return f"{loop.kind.by}2_pos" if extent == context.level_extent(loop.kind.by, levels[0]) else None


def _row_cost(context: Context, by: str) -> int:
    """The cost of an iteration besides the positions, in positions; rows of blocks have whole blocks."""
    levels = context.levels(by) if by else ()
    inside = [stored.expression for stored in levels if stored.expression.kind == "within"]
    widths = [expression.size for expression in inside if expression.mode != levels[0].expression.mode]
    return -(-ROW_COST // prod(widths))
