"""Two phases of an assembled result: entries are counted, the arrays allocated, then the entries written.

In: `C[i,j] = A[i,j] + B[i,j]` with C stored `dcsr`. Out: the merge twice, first counting entries, then, behind
allocated arrays, writing coordinates and values.

Source: phases as in two-pass SpGEMM.
"""

from __future__ import annotations

from sparsify.compiler.einsum.nodes import Assign
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO
from sparsify.compiler.loops.lower.assemble import hash_workspace, workspace
from sparsify.compiler.loops.lower.assembly import Assembly
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.levels.search import located
from sparsify.compiler.loops.lower.rows import parts
from sparsify.compiler.notation import nodes as notation


def counted(context: Context, assembly: Assembly) -> Lowered:
    """Two phases: counts the entries, allocates the arrays, then writes the entries."""
    if (whole := hash_workspace.around_all(context.program.body)) is not None:
        return _counted_once(context, assembly, *whole)
    counted = located(context, context.program.body, Environment())
    allocated = _allocate(assembly)
    assembly.filling = True
    filled = located(context, context.program.body, Environment())
    return [*_before(assembly), *counted, *allocated, *filled, *assembly.close()]


def _counted_once(
    context: Context,
    assembly: Assembly,
    let: notation.Let,
    made: notation.Statement | Assign,
    read: notation.Statement | Assign,
) -> Lowered:
    """Fills a workspace of the whole kernel once; the entries are counted, then written."""
    env = Environment()
    assembly.keeps_workspace = True
    opened = workspace.begin(context, let, let.temporaries[0])
    summed, counted = located(context, made, env), located(context, read, env)
    allocated = _allocate(assembly)
    assembly.filling = True
    filled = located(context, read, env)
    closed = workspace.end(context, let.temporaries[0])
    return [*opened, *summed, *_before(assembly), *counted, *allocated, *filled, *closed, *assembly.close()]


def _before(assembly: Assembly) -> Lowered:
    """Declarations of the counting phase."""
    if assembly.by_parts:
        return parts.memory(assembly)
    if not assembly.by_rows:
        return [loops.Declare(counter, ZERO, True) for counter in assembly.counters]
    return [loops.Comment("count the entries of each row"), *assembly.allocate_positions()]


def _allocate(assembly: Assembly) -> Lowered:
    """Between the phases: prefix sums of the positions, allocation of the arrays, reset of the counters."""
    last = len(assembly.levels) - 1
    lowered: Lowered = [loops.Comment("allocate, then fill")]
    if assembly.by_rows:
        lowered += assembly.positions()
        assembly.counters[last] = assembly.fresh_int(assembly.counters[last].name)
    else:
        if assembly.by_parts:
            lowered += parts.sum_up(assembly)
        assembly.total = assembly.counters[last]
        lowered += assembly.allocate_levels()
    lowered.append(assembly.allocate_values(assembly.total))
    if assembly.by_parts:
        assembly.totals = assembly.counters
        assembly.renew_counters()
    elif not assembly.by_rows:
        lowered += [loops.Set(counter, ZERO) for counter in assembly.counters]
    return lowered
