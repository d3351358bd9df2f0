"""Sparse results with an unknown pattern: the phases of the kernel, and the entries that its loops append.

In: `C[i,j] = A[i,j] + B[i,j]` with C stored `dcsr`. Out: the merge twice, as in `two_phases.py`. Rows bounded by their
operands are written at once (`upper_bound.py`).
"""

from __future__ import annotations

from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, convert, plus
from sparsify.compiler.loops.lower.assemble import bitset_workspace, dropped
from sparsify.compiler.loops.lower.assemble.two_phases import counted
from sparsify.compiler.loops.lower.assembly import FILL, VALUES, Assembly, loops_around
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.rows import upper_bound
from sparsify.errors import UnsupportedProgramError


def phases(context: Context, names: list[str]) -> Lowered:
    """The whole kernel body: count, allocate, fill."""
    if len(names) > 1:
        raise UnsupportedProgramError(
            f"the patterns of {' and '.join(names)} are not known", "one such result"
        )
    others = [name for name in context.program.outputs if name not in names]
    if others:
        raise UnsupportedProgramError(
            f"{', '.join(others)} in one kernel with {names[0]}, whose pattern is not known",
            "compile the program without a schedule for all of it",
        )
    context.assembly = Assembly(context, context.fresh_int, names[0])
    lowered = _phases(context, context.assembly)
    context.assembly = None
    return lowered


def _phases(context: Context, assembly: Assembly) -> Lowered:
    """The phases of one result, by what is known of the entries of its rows."""
    if bitset_workspace.is_marked(context):
        return bitset_workspace.phases(context, assembly)
    assembly.bounds = upper_bound.bounding(assembly, loops_around(context.program.body, assembly.name)[-1])
    if assembly.bounds:
        assembly.is_running = True
        return upper_bound.phases(context, assembly)
    if dropped.is_known_by_rows(assembly):
        return dropped.phases(context, assembly)
    return counted(context, assembly)


def append(context: Context, assembly: Assembly, value: loops.Expr, env: Environment) -> Lowered:
    """Appends the entry at the current coordinates."""
    if assembly.phase in (FILL, VALUES):
        return [
            loops.Store(f"{assembly.name}_vals", assembly.place, convert(value, assembly.declaration.dtype))
        ]
    if assembly.declaration.drops:
        found = loops.Var(context.fresh(f"{assembly.name}_entry"), loops.type_of(value))
        entry = _entry(assembly, found, env)
        return [loops.Declare(found, value), *dropped.kept(assembly, found, entry)]
    return _entry(assembly, value, env)


def _entry(assembly: Assembly, value: loops.Expr, env: Environment) -> Lowered:
    """Stores or counts an entry, and advances the position."""
    last = len(assembly.levels) - 1
    counter = assembly.counters[last]
    step = loops.Set(counter, plus(counter, ONE))
    if not assembly.filling:
        return [step]
    levels = range(len(assembly.levels)) if assembly.repeating else [last]
    coordinates = [env.coordinates[assembly.variables[level]].start for level in levels]
    puts = [assembly.put(level, "crd", counter, c) for level, c in zip(levels, coordinates, strict=True)]
    return [
        *puts,
        loops.Store(f"{assembly.name}_vals", counter, convert(value, assembly.declaration.dtype)),
        step,
    ]
