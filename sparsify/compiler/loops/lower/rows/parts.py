"""Results appended at all levels by several threads: parts of the outermost loop, counted, then filled.

In: `parallel forall i: forall j: C[i,j] = A[i,j] + B[i,j]`, all stored `dcsr`. Out: a parallel loop over 64 parts of
coordinates of i, counting the entries of each level in each part; a prefix sum of the counts to the start of each part;
the arrays; and the same loop again, writing each part from its start on.

Source: Blelloch, Prefix sums and their applications, 1990; phases as in two-pass SpGEMM.
"""

from __future__ import annotations

from typing import Final

from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, integer, plus, quotient, times
from sparsify.compiler.loops.lower.assembly import Assembly
from sparsify.compiler.loops.lower.environment import Lowered

# Parts of the outermost loop: enough to balance threads, few enough for a cheap prefix sum.
PARTS: Final = integer(64)


def memory(assembly: Assembly) -> Lowered:
    """The counts of each part, part `n` at `n + 1`."""
    return [
        loops.Comment("count the entries of each part"),
        *(
            loops.Allocate(_begins(assembly, level), "int64", plus(PARTS, ONE), 0)
            for level in _counted(assembly)
        ),
    ]


def sum_up(assembly: Assembly) -> Lowered:
    """Prefix sum of the counts to starts; fresh counters hold the numbers of all entries."""
    lowered: Lowered = []
    for level in _counted(assembly):
        begins = _begins(assembly, level)
        part = assembly.fresh_int(f"{assembly.name}_part")
        both = plus(loops.Load(begins, plus(part, ONE), loops.INT), loops.Load(begins, part, loops.INT))
        lowered.append(loops.For(part, ZERO, PARTS, loops.Store(begins, plus(part, ONE), both)))
    assembly.renew_counters()
    return [
        *lowered,
        *(
            loops.Declare(assembly.counters[level], loops.Load(_begins(assembly, level), PARTS, loops.INT))
            for level in _counted(assembly)
        ),
    ]


def each(
    assembly: Assembly, begin: loops.Var, end: loops.Var, extent: loops.Expr, body: Lowered
) -> tuple[loops.Var, loops.Var, loops.Stmt]:
    """A loop over the parts of a thread, and its ends; `body` covers the iterations `begin` to `end`."""
    first, last, part = (
        assembly.fresh_int(f"{assembly.name}_{name}") for name in ("parts_begin", "parts_end", "part")
    )
    counters = {level: assembly.counters[level] for level in _counted(assembly)}
    starts = [
        loops.Declare(
            counter, loops.Load(_begins(assembly, level), part, loops.INT) if assembly.filling else ZERO, True
        )
        for level, counter in counters.items()
    ]
    left = (
        []
        if assembly.filling
        else [
            loops.Store(_begins(assembly, level), plus(part, ONE), counter)
            for level, counter in counters.items()
        ]
    )
    block = (
        loops.Declare(begin, quotient(times(extent, part), PARTS)),
        loops.Declare(end, quotient(times(extent, plus(part, ONE)), PARTS)),
        *starts,
        *body,
        *left,
    )
    return first, last, loops.For(part, first, last, loops.Block(block))


def _counted(assembly: Assembly) -> list[int]:
    """The levels with a counter; only the last level for repeated coordinates."""
    last = len(assembly.levels) - 1
    return [last] if assembly.repeating else list(range(last + 1))


def _begins(assembly: Assembly, level: int) -> str:
    """The name of the array with the starts of the parts in a level."""
    return f"{assembly.name}{level + 1}_parts"
