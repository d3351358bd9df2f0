"""Marked workspaces: the pattern of rows is collected as marks, counted first.

In: `let w[k] in thread marked: (forall j: forall k: w[k] += A[i,j] * B[j,k]); forall k: Y[i,k] = w[k]`.
Out: two loops over the rows. Marks are counted, unless all products fit in the available room; then marks and sums are
made together, marks become coordinates, and `Y[p] = w[k]; w[k] = 0` for each coordinate k of the row. Neither loop
branches on the entries in use. For a known pattern of the result, one loop computes the sums alone.

Source: two-phase Gustavson, as in Nagasaka et al., Performance optimization, modeling and analysis of sparse
matrix-matrix products on multi-core and many-core processors, 2019.
"""

from __future__ import annotations

from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import find, holds
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, compare, integer, plus
from sparsify.compiler.loops.bitset import marks_bytes
from sparsify.compiler.loops.lower.assembly import BOUND, COUNT, FILL, VALUES, Assembly
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered, scalar
from sparsify.compiler.loops.lower.iterate.bind import bind
from sparsify.compiler.loops.lower.iterate.body import lower_body
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.levels.search import located
from sparsify.compiler.loops.lower.rows import remarked, upper_bound
from sparsify.compiler.loops.lower.values.access import store
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

# Maximum entries with room for every product: no row is counted then, and gaps between threads are closed.
MOST_ROOM: Final = 2**23
NO_MARKS: Final = 0


def is_marked(context: Context) -> bool:
    """Whether the program has a marked workspace."""
    return any(t.marked for n in find(context.program.body, notation.Let) for t in n.temporaries)


def begin(context: Context, temporary: notation.Temporary) -> Lowered:
    """The memory of a workspace, once a thread: entries at the identity, no marks."""
    name = temporary.name
    if holds(context.program.body, notation.If):
        raise ScheduleError(f"{name} is marked where values may decide what is stored", "listed")
    if context.assembly is not None and context.assembly.declaration.drops:
        raise ScheduleError(f"{name} is marked, and values decide what of its entries is stored", "listed")
    if context.assembly is None or not context.assembly.by_rows:
        raise ScheduleError(
            f"{name} is marked, and its result has no rows that are assembled apart",
            "listed, or a csr result",
        )
    if name not in context.memory:
        extent = context.bound(temporary.indices[0])
        context.memory[name] = temporary
        # The counting of products needs no workspace.
        context.setups[-1] += (
            []
            if context.assembly.phase == BOUND
            else [
                loops.Allocate(name, temporary.dtype, extent, context.starts[name]),
                loops.Allocate(f"{name}_marks", "int8", marks_bytes(extent), NO_MARKS),
            ]
        )
    context.marked.add(name)
    return []


def add(context: Context, target: Access, combined: loops.Expr, env: Environment) -> Lowered:
    """Sets a mark in the pattern phases, adds to the sum in the value phases."""
    index = target.indices[0]
    assert isinstance(index, Index)
    coordinate = env.coordinates[index.name]
    if env.lane is not None or not coordinate.is_uniform:
        raise ScheduleError(
            f"{target.tensor} marks its entries one by one", f"no vector loop around {target}"
        )
    assert context.assembly is not None, "marked workspaces belong to assembled results"
    phase, counter = context.assembly.phase, context.assembly.counters[-1]
    if phase == BOUND:
        return [loops.Set(counter, plus(counter, ONE))]
    marks = [loops.Mark(f"{target.tensor}_marks", coordinate.start, context.bound(index.name))]
    sums = [store(context, target, combined, env)]
    return [*(sums if phase != COUNT else []), *(marks if phase != VALUES else [])]


def iterate(context: Context, loop: notation.Forall, access: Access, env: Environment) -> Lowered:
    """Counts or takes the marks of a row, and moves the values at the coordinates, leaving the identity."""
    name, assembly = access.tensor, context.assembly
    points = statement_points(loop.body, frozenset({access}), context, env.absent)
    is_row = isinstance(loop.body, Assign) and isinstance(loop.kind, notation.Serial)
    if assembly is None or points != frozenset({frozenset({access})}) or not is_row:
        raise ScheduleError(
            f"{loop.index} runs over the marks of {name} and does more than the row", "listed"
        )
    counter, crd = assembly.counters[-1], assembly.coordinates
    marks, extent = f"{name}_marks", context.bound(loop.index)
    if assembly.phase == BOUND:
        return []
    if assembly.phase == COUNT:
        return [loops.TakeMarks(counter, None, marks, extent, extent)]
    first, after = assembly.row_range(env)
    end = plus(first, upper_bound.row_room(assembly, assembly.row(env)))
    taken = [loops.TakeMarks(counter, crd, marks, extent, end)] if assembly.phase == FILL else []
    place = context.fresh_int(f"p{assembly.name}")
    coordinate = context.fresh_int(loop.index)
    bound, inner = bind(context, loop.index, scalar(coordinate), loop.body, env)
    assembly.place = place
    value = loops.Literal(context.starts[name], loops.Type(context.dtype(name)))
    block = loops.Block(
        (
            loops.Declare(coordinate, assembly.read_coordinate(place)),
            *bound,
            *lower_body(context, loop, inner),
            loops.Store(name, coordinate, value),
        )
    )
    return [*taken, loops.For(place, first, after, block)]


def phases(context: Context, assembly: Assembly) -> Lowered:
    """Bound, count if the bound is too large, and fill; or values alone if the pattern of the result is given."""
    known = loops.Var(f"{assembly.name}_nnz", loops.INT)
    bodies = {}
    for phase in (BOUND, COUNT, FILL):
        bodies[phase] = _lowered_body(context, assembly, phase)
        if phase == BOUND:
            for name in context.marked:
                context.memory.pop(name, None)
    room, summed = upper_bound.sum_up(assembly)
    again, counted = upper_bound.sum_up(assembly)
    is_much = compare("gt", room, integer(MOST_ROOM))
    pattern = [
        *assembly.allocate_positions(),
        upper_bound.memory(assembly),
        loops.Comment("products in each row"),
        *bodies[BOUND],
        *summed,
        *remarked.flags(context),
        loops.Comment("entries in each row"),
        loops.If(
            is_much,
            loops.Block((upper_bound.no_room(assembly), *bodies[COUNT], *counted, loops.Set(room, again))),
        ),
        loops.Comment("rows"),
        *assembly.allocate_entries(room),
        *upper_bound.filled(context, assembly, bodies[FILL]),
    ]
    is_unknown = loops.Op("lt", (known, ZERO), loops.BOOL)
    values = [
        loops.Comment("values"),
        assembly.allocate_values(known),
        *_lowered_body(context, assembly, VALUES),
    ]
    return [loops.If(is_unknown, loops.Block(tuple(pattern)), loops.Block(tuple(values)))]


def _lowered_body(context: Context, assembly: Assembly, phase: str) -> Lowered:
    """The whole program in a phase."""
    assembly.begin_phase(phase)
    return located(context, context.program.body, Environment())
