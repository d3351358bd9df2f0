"""Marked workspaces: the pattern of rows is collected as marks, counted first.

In: `let w[k] in thread marked: (forall j: forall k: w[k] += A[i,j] * B[j,k]); forall k: Y[i,k] = w[k]`.
Out: two loops over the rows. Marks are counted, unless all products fit in the available room; then marks and sums are
made together, marks become coordinates, and `Y[p] = w[k]; w[k] = 0` for each coordinate k of the row. Neither loop
branches on the entries in use. For a known pattern of the result, one loop computes the sums alone.

Source: two-phase Gustavson, as in Nagasaka et al., Performance optimization, modeling and analysis of sparse
matrix-matrix products on multi-core and many-core processors, 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.node import find, holds
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, compare, integer, plus
from sparsify.compiler.loops.bitset import marks_bytes
from sparsify.compiler.loops.lower.access import store
from sparsify.compiler.loops.lower.assemble import remarked, upper_bound
from sparsify.compiler.loops.lower.environment import Environment, scalar
from sparsify.compiler.loops.lower.iterate import ranges
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.assemble.assemble import Assembly
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]
BOUND, COUNT, FILL, VALUES = "bound", "count", "fill", "values"
# Maximum entries with room for every product: no row is counted then, and gaps between threads are closed.
MOST_ROOM: Final = 2**23
NO_MARKS: Final = 0


def is_marked(low: Lowering) -> bool:
    """Whether the program has a marked workspace."""
    return any(t.marked for n in find(low.program.body, notation.Let) for t in n.temporaries)


def begin(low: Lowering, temporary: notation.Temporary) -> Lowered:
    """The memory of a workspace, once a thread: entries at the identity, no marks."""
    name = temporary.name
    if holds(low.program.body, notation.If):
        raise ScheduleError(f"{name} is marked where values may decide what is stored", "listed")
    if low.assembly is not None and low.assembly.declaration.drops:
        raise ScheduleError(f"{name} is marked, and values decide what of its entries is stored", "listed")
    if low.assembly is None or not low.assembly.by_rows:
        raise ScheduleError(
            f"{name} is marked, and its result has no rows that are assembled apart",
            "listed, or a csr result",
        )
    if name not in low.memory:
        extent = low.bound(temporary.indices[0])
        low.memory[name] = temporary
        # The counting of products needs no workspace.
        low.setups[-1] += (
            []
            if low.assembly.phase == BOUND
            else [
                loops.Allocate(name, temporary.dtype, extent, low.starts[name]),
                loops.Allocate(f"{name}_marks", "int8", marks_bytes(extent), NO_MARKS),
            ]
        )
    low.marked.add(name)
    return []


def add(low: Lowering, target: Access, combined: loops.Expr, env: Environment) -> Lowered:
    """Sets a mark in the pattern phases, adds to the sum in the value phases."""
    index = target.indices[0]
    assert isinstance(index, Index)
    coordinate = env.coordinates[index.name]
    if env.lane is not None or not coordinate.is_uniform:
        raise ScheduleError(
            f"{target.tensor} marks its entries one by one", f"no vector loop around {target}"
        )
    assert low.assembly is not None, "marked workspaces belong to assembled results"
    phase, counter = low.assembly.phase, low.assembly.counters[-1]
    if phase == BOUND:
        return [loops.Set(counter, plus(counter, ONE))]
    marks = [loops.Mark(f"{target.tensor}_marks", coordinate.start, low.bound(index.name))]
    sums = [store(low, target, combined, env)]
    return [*(sums if phase != COUNT else []), *(marks if phase != VALUES else [])]


def read_by(low: Lowering, loop: notation.Forall) -> str | None:
    """The workspace with marked entries read by `loop`."""
    written = {n.target.tensor for n in find(loop.body, Assign)}
    for access in find(loop.body, Access):
        is_marked = access.tensor in low.marked and access.tensor not in written
        if is_marked and access.indices == (Index(loop.index),):
            return access.tensor
    return None


def iterate(low: Lowering, loop: notation.Forall, name: str, env: Environment) -> Lowered:
    """Counts or takes the marks of a row, and moves the values at the coordinates, leaving the identity."""
    access, assembly = Access(name, (Index(loop.index),)), low.assembly
    points = statement_points(loop.body, frozenset({access}), low, env.absent)
    is_row = isinstance(loop.body, Assign) and isinstance(loop.kind, notation.Serial)
    if assembly is None or points != frozenset({frozenset({access})}) or not is_row:
        raise ScheduleError(
            f"{loop.index} runs over the marks of {name} and does more than the row", "listed"
        )
    counter, crd = assembly.counters[-1], assembly.coordinates
    marks, extent = f"{name}_marks", low.bound(loop.index)
    if assembly.phase == BOUND:
        return []
    if assembly.phase == COUNT:
        return [loops.TakeMarks(counter, None, marks, extent, extent)]
    first, after = assembly.row_range(env)
    end = plus(first, upper_bound.row_room(assembly, assembly.row(env)))
    taken = [loops.TakeMarks(counter, crd, marks, extent, end)] if assembly.phase == FILL else []
    place = loops.Var(low.fresh(f"p{assembly.name}"), loops.INT)
    coordinate = loops.Var(low.fresh(loop.index), loops.INT)
    bound, inner = ranges.bind(low, loop.index, scalar(coordinate), loop.body, env)
    assembly.place = place
    value = loops.Literal(low.starts[name], loops.Type(low.dtype(name)))
    block = loops.Block(
        (
            loops.Declare(coordinate, assembly.read_coordinate(place)),
            *bound,
            *low.body(loop, inner),
            loops.Store(name, coordinate, value),
        )
    )
    return [*taken, loops.For(place, first, after, block)]


def phases(low: Lowering, assembly: Assembly) -> Lowered:
    """Bound, count if the bound is too large, and fill; or values alone if the pattern of the result is given."""
    known = loops.Var(f"{assembly.name}_nnz", loops.INT)
    bodies = {}
    for assembly.phase in (BOUND, COUNT, FILL):
        bodies[assembly.phase] = assembly.lowered_body()
        if assembly.phase == BOUND:
            for name in low.marked:
                low.memory.pop(name, None)
    room, summed = upper_bound.sum_up(assembly)
    again, counted = upper_bound.sum_up(assembly)
    is_much = compare("gt", room, integer(MOST_ROOM))
    pattern = [
        *assembly.allocate_positions(),
        upper_bound.memory(assembly),
        loops.Comment("products in each row"),
        *bodies[BOUND],
        *summed,
        *remarked.flags(low),
        loops.Comment("entries in each row"),
        loops.If(
            is_much,
            loops.Block((upper_bound.no_room(assembly), *bodies[COUNT], *counted, loops.Set(room, again))),
        ),
        loops.Comment("rows"),
        *assembly.allocate_entries(room),
        *upper_bound.filled(assembly, bodies[FILL]),
    ]
    assembly.phase = VALUES
    is_unknown = loops.Op("lt", (known, ZERO), loops.BOOL)
    values = [loops.Comment("values"), assembly.allocate_values(known), *assembly.lowered_body()]
    return [loops.If(is_unknown, loops.Block(tuple(pattern)), loops.Block(tuple(values)))]
