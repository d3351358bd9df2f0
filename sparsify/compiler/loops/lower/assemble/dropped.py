"""Results without stored fill values: the pattern depends on values.

In: `forall i: let w[k]: (forall k: w[k] = relu(T[i,k])); forall k: Y[i,k] = w[k]` with Y stored csr, dropping fills.
Out: a row of w, and `Y2_crd, Y_vals[next ..] and next += entries of w[0 ..k_extent] that are not 0.0`. The arrays have
room for all coordinates of each row, and gaps between the rows of threads are closed; a result too large for full
rows is counted first. Other loops compare entries one by one.

A result with the largest entries of each row, or of blocks of a row, is compressed in the same way: `next +=
largest 2 of 4 entries of w[0 ..k_extent]`. Rows of half precision are computed in float32 and rounded first.
"""

from __future__ import annotations

from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.dtypes import STORED_HALVES
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, compare, integer, minus, plus, times
from sparsify.compiler.loops.lower.assemble.two_phases import counted
from sparsify.compiler.loops.lower.assembly import Assembly
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered, Range, scalar
from sparsify.compiler.loops.lower.rows import upper_bound
from sparsify.compiler.loops.lower.values.masked import evaluate_masked
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.errors import ScheduleError

# Maximum entries with room for all coordinates; unwritten memory takes no space.
MOST_ROOM: Final = 2**28


def phases(context: Context, assembly: Assembly) -> Lowered:
    """One pass if whole rows have room, else two passes with a count of the rows."""
    assembly.is_running = True
    once = upper_bound.phases(context, assembly)
    assembly.renew()
    twice = counted(context, assembly)
    is_much = compare("gt", assembly.whole_room(), integer(MOST_ROOM))
    return [loops.If(is_much, loops.Block(tuple(twice)), loops.Block(tuple(once)))]


def kept(assembly: Assembly, value: loops.Expr, entry: Lowered) -> Lowered:
    """Stores an entry only if different from the fill."""
    if (selection := assembly.declaration.selection) is not None:
        raise ScheduleError(
            f"{assembly.name} appends entries one by one, and stores the {selection} of a row",
            "a row at once: `precompute row_Y = Y at i in thread`",
        )
    fill = loops.Literal(assembly.declaration.fill, loops.type_of(value))
    return [loops.If(compare("ne", value, fill), loops.Block(tuple(entry)))]


def row_of(context: Context, loop: notation.Forall) -> Access | None:
    """The contiguous row copied by a loop; `None` for other loops."""
    assembly = context.assembly
    if assembly is None or not assembly.declaration.drops or not assembly.by_rows or assembly.bounds:
        return None
    match loop:
        case notation.Forall(
            index, Assign(Access(name), None, Access(tensor, indices) as row), kind=notation.Serial()
        ):
            pass
        case _:
            return None
    derived = (
        context.splits,
        context.split_by_inner,
        context.split_by_outer,
        context.positions,
        context.fused,
    )
    is_whole = index == assembly.variables[-1] and name == assembly.name and not assembly.phase
    is_whole = is_whole and not any(index in relations for relations in derived)
    dtype = context.dtype(tensor)
    wanted = assembly.declaration.dtype
    if assembly.declaration.selection is not None:
        is_known = wanted in upper_bound.WHOLE or wanted in STORED_HALVES
        is_known = is_known and dtype == ("float32" if wanted in STORED_HALVES else wanted)
    else:
        is_known = wanted in upper_bound.WHOLE and dtype == wanted
    if not is_whole or not is_known:
        return None
    if tensor in context.memory:
        last = len(indices) - 1
    elif tensor in context.declarations and context.declaration(tensor).format.is_dense and indices:
        last = context.declaration(tensor).format.ordering[-1]
    else:
        return None
    others = [
        n for mode, place in enumerate(indices) if mode != last for n in index_names(Access("", (place,)))
    ]
    is_listed = tensor in context.listed or tensor in context.marked
    return row if indices[last] == Index(index) and index not in others and not is_listed else None


def append(context: Context, loop: notation.Forall, row: Access, env: Environment) -> Lowered:
    """Writes or counts the entries of a row different from the fill."""
    assembly = context.assembly
    assert assembly is not None, "rows are those of an assembled result"
    reach = env.ranges.get(loop.index, Range(ZERO, context.bound(loop.index)))
    inner = env.with_coordinate(loop.index, scalar(reach.begin))
    first = evaluate_masked(context, row, inner, context.dtype(row.tensor))
    assert isinstance(first, loops.Load), "rows lie in memory"
    number = assembly.row(env)
    end = (
        times(plus(number, ONE), assembly.row_room())
        if assembly.is_running
        else assembly.position(plus(number, ONE))
    )
    return [
        loops.Compress(
            assembly.counters[-1],
            assembly.coordinates if assembly.filling else None,
            f"{assembly.name}_vals",
            first.buffer,
            first.index,
            minus(reach.end, reach.begin),
            reach.begin,
            loops.Literal(assembly.declaration.fill, loops.Type(assembly.declaration.dtype)),
            end,
            assembly.declaration.selection,
        ),
    ]


def is_known_by_rows(assembly: Assembly) -> bool:
    """Whether rows of a result are written in one pass although no operand bounds the number of entries."""
    temporaries = [t for n in find(assembly.facts.program.body, notation.Let) for t in n.temporaries]
    return assembly.declaration.drops and assembly.by_rows and not any(t.marked for t in temporaries)
