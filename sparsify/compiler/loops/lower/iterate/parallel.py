"""Loops over threads: rows in equal parts, or balanced by stored positions, static or handed out in chunks.

In: `parallel i dynamic A`. Out: `parallel for i in chunks of A2_pos, 32 a thread, dynamic`. Rows too long for
a thread are shared before (`heavy_rows.py`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    ZERO,
    both,
    compare,
    integer,
    minus,
    plus,
    product,
    quotient,
    times,
)
from sparsify.compiler.loops.lower.assemble import parts, upper_bound
from sparsify.compiler.loops.lower.environment import Environment, Range, scalar
from sparsify.compiler.loops.lower.iterate import coordinates, heavy_rows, ranges
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.level_access import (
    coordinate_at,
    is_located,
    level_extent,
    level_variable,
    place_of,
)
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

DYNAMIC_CHUNKS = 32
# Fixed cost of a row, in entries.
ROW_COST = 4


def parallel(low: Lowering, loop: notation.Forall, env: Environment) -> list[loops.Stmt]:
    """The loop with iterations shared by the threads; serial inside another parallel loop."""
    assert isinstance(loop.kind, notation.Parallel)
    alone = replace(loop, kind=notation.Serial())
    if env.in_parallel:
        return ranges.forall(low, alone, env)
    if low.assembly is not None:
        low.assembly.check_parallel(loop)
    begin = loops.Var(low.fresh(f"{loop.index}_begin"), loops.INT)
    end = loops.Var(low.fresh(f"{loop.index}_end"), loops.INT)
    low.setups.append([])
    shared = dict(low.memory)
    here = replace(env, in_parallel=True)
    read = {access.tensor for access in find(loop, Access)}
    for own in env.own:
        if any(temporary.name in read for temporary in own.temporaries):
            low.setups[-1] += low.statement(own, here)
    if loop.kind.hubs:
        extent, body = heavy_rows.others(low, loop, begin, end, here)
    else:
        extent, body = _part(low, alone, begin, end, here)
    setup = loops.Block(tuple(low.setups.pop()))
    low.memory = shared
    dynamic = loop.kind.policy == "dynamic"
    chunks = loop.kind.chunks if loop.kind.chunks > 1 or not dynamic else DYNAMIC_CHUNKS
    if not body:
        return []
    low.is_parallel = True
    if low.assembly is not None and low.assembly.is_running:
        body = [upper_bound.part(low.assembly), *body]
    if low.assembly is not None and low.assembly.by_parts:
        first, last, whole = parts.each(low.assembly, begin, end, extent, body)
        return [
            loops.ParallelFor(
                first,
                last,
                parts.PARTS,
                setup,
                whole,
                work(low, loop),
                chunks_per_thread=DYNAMIC_CHUNKS,
                dynamic=True,
            )
        ]
    return [
        *(heavy_rows.shared(low, loop, env) if loop.kind.hubs else []),
        loops.ParallelFor(
            begin,
            end,
            extent,
            setup,
            loops.Block(tuple(body)),
            work(low, loop),
            balance=_balance(low, loop, extent),
            row_cost=_row_cost(low, loop.kind.by),
            chunks_per_thread=chunks,
            dynamic=dynamic,
        ),
    ]


def _part(
    low: Lowering, loop: notation.Forall, begin: loops.Var, end: loops.Var, env: Environment
) -> tuple[loops.Expr, list[loops.Stmt]]:
    """The number of iterations, and the code for the iterations from `begin` to `end`."""
    index = loop.index
    if index not in low.positions and (found := coordinates.drivers(low, loop, env)):
        points = statement_points(loop.body, frozenset(found), low, env.absent)
        if frozenset() in points:
            extent, part = _range_part(low, loop, begin, end, env)
            return extent, coordinates.iterate(low, loop, found, env, part)
        if len(found) == 1:
            return _stored_part(low, loop, found[0], begin, end, env)
        # The threads share the coordinates; in each operand the ends of a part are found by search.
        extent, part = _range_part(low, loop, begin, end, env)
        return extent, coordinates.iterate(low, loop, found, env, part)
    split = low.split_by_outer.get(index)
    if split is not None:
        return _tile_part(low, split, loop, begin, end, env)
    extent, part = _range_part(low, loop, begin, end, env)
    return extent, ranges.forall(low, loop, env.with_range(index, part))


def _range_part(
    low: Lowering, loop: notation.Forall, begin: loops.Var, end: loops.Var, env: Environment
) -> tuple[loops.Expr, Range]:
    """The number of iterations of the loop, fewer in a cut tile, and the range from `begin` to `end`."""
    reach = ranges.range_of(low, loop.index, loop.body, env)
    return minus(reach.end, reach.begin), Range(plus(reach.begin, begin), plus(reach.begin, end))


def _stored_part(
    low: Lowering, loop: notation.Forall, access: Access, begin: loops.Var, end: loops.Var, env: Environment
) -> tuple[loops.Expr, list[loops.Stmt]]:
    """A part of the positions of a level; whole segments for repeated coordinates."""
    place = place_of(low, access, env)
    reach = coordinates.level_range(low, access, place)
    extent = minus(reach.end, reach.begin)
    first, last = plus(reach.begin, begin), plus(reach.begin, end)
    if not coordinates.repeats(low, access, place.levels):
        return extent, coordinates.iterate(low, loop, [access], env, Range(first, last))
    ends: list[loops.Var] = []
    lowered: list[loops.Stmt] = []
    for start, name in ((first, f"{loop.index}_first"), (last, f"{loop.index}_last")):
        var = loops.Var(low.fresh(name), loops.INT)
        inside = both(compare("gt", var, reach.begin), compare("lt", var, reach.end))
        same = compare(
            "eq",
            *(
                coordinate_at(low, access, place.levels, place.position.start, scalar(p)).start
                for p in (var, minus(var, ONE))
            ),
        )
        lowered.append(loops.Declare(var, start, True))
        lowered.append(loops.While(both(inside, same), loops.Set(var, plus(var, ONE))))
        ends.append(var)
    return extent, [*lowered, *coordinates.iterate(low, loop, [access], env, Range(ends[0], ends[1]))]


def _tile_part(
    low: Lowering,
    split: notation.Split,
    loop: notation.Forall,
    begin: loops.Var,
    end: loops.Var,
    env: Environment,
) -> tuple[loops.Expr, list[loops.Stmt]]:
    """Tiles `begin` to `end`: the whole ones, and the cut one at the end if included."""
    reach = ranges.range_of(low, split.index, loop.body, env)
    size = integer(split.size)
    tiles = quotient(plus(minus(reach.end, reach.begin), integer(split.size - 1)), size)
    first = plus(reach.begin, times(begin, size))
    part = Range(first, smaller_end(reach, end, size), origin=reach.begin)
    return tiles, ranges.tiles(low, split, loop, env.with_range(split.index, part))


def smaller_end(reach: Range, end: loops.Expr, size: loops.Expr) -> loops.Expr:
    """The end of tile `end - 1`, cut at the end of the range."""
    return loops.Op("min", (plus(reach.begin, times(end, size)), reach.end), loops.INT)


def _balance(low: Lowering, loop: notation.Forall, extent: loops.Expr) -> str | None:
    """The position array with the work of each iteration; `None` if its rows are not the iterations."""
    assert isinstance(loop.kind, notation.Parallel)
    if not loop.kind.by:
        return None
    if loop.kind.by not in low.declarations:
        raise ScheduleError(
            f"parallel {loop.index} by {loop.kind.by}: there is no such tensor", "a sparse operand"
        )
    levels = low.declaration(loop.kind.by).format.levels
    read = [n for n in find(loop, Access) if n.tensor == loop.kind.by]
    if not any(level_variable(low, access, levels[0]) == loop.index for access in read if levels):
        raise ScheduleError(
            f"parallel {loop.index} by {loop.kind.by}: {loop.index} is not its outermost level",
            "the operand that is stored by it, or none",
        )
    if len(levels) < 2 or not is_located(levels[0]) or "pos" not in levels[1].level.arrays:
        return None
    return f"{loop.kind.by}2_pos" if extent == level_extent(low, loop.kind.by, levels[0]) else None


def _row_cost(low: Lowering, by: str) -> int:
    """The cost of an iteration besides the positions, in positions; rows of blocks have whole blocks."""
    levels = low.declaration(by).format.levels if by else ()
    inside = [stored.expression for stored in levels if stored.expression.kind == "within"]
    widths = [expression.size for expression in inside if expression.mode != levels[0].expression.mode]
    return -(-ROW_COST // prod(widths))


def work(low: Lowering, loop: notation.Forall) -> loops.Expr:
    """Estimated scalar operations of the loop: entries of the sparse operands times the dense extents.

    Loops over the entries of a workspace are no longer than the loops that filled the workspace.
    """
    temporaries = [t for n in find(low.program.body, notation.Let) for t in n.temporaries]
    kept = {t.name for t in temporaries if t.listed or t.marked}
    reads = [low.root_of(n) for n in find(loop, Access)]
    sparse_reads = {a: set(index_names(a)) for a in reads if _is_sparse_input(low, a.tensor)}
    total: loops.Expr = ZERO
    counted: set[tuple[str, ...]] = set()
    for assign in find(loop, Assign):
        found = [n for n in find(assign.value, Access) if n.tensor in kept]
        made = {name for access in found for name in index_names(access)}
        names = tuple(dict.fromkeys(_root(low, name) for name in index_names(assign) if name not in made))
        if names in counted:
            continue
        counted.add(names)
        inside = {a: modes for a, modes in sparse_reads.items() if modes and modes <= set(names)}
        total = plus(total, _iterations(low, names, inside))
    return total


def _iterations(low: Lowering, names: tuple[str, ...], stored: dict[Access, set[str]]) -> loops.Expr:
    """Estimated iterations of a nest over `names`: the entries of one operand, of others those below fixed indices."""
    factors: list[loops.Expr] = []
    left = list(names)
    for access, inside in stored.items():
        if not inside & set(left):
            continue
        entries = loops.Var(f"{access.tensor}_nnz", loops.INT)
        known = [low.extent(name) for name in names if name in inside and name not in left]
        factors.append(plus(quotient(entries, plus(product(known), ONE)), ONE) if known else entries)
        left = [name for name in left if name not in inside]
    return product([*(low.extent(name) for name in left), *factors])


def _is_sparse_input(low: Lowering, name: str) -> bool:
    return name in low.program.inputs and not low.declaration(name).format.is_dense


def _root(low: Lowering, index: str) -> str:
    """The original index variable of a derived one."""
    for inner, split in (*low.split_by_inner.items(), *low.split_by_outer.items()):
        if inner == index:
            return _root(low, split.index)
    if index in low.positions:
        return _root(low, low.positions[index].index)
    if index in low.fused:
        return _root(low, low.fused[index].first)
    return index
