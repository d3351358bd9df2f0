"""Rows of a growing result: statements before and after the entries below one coordinate of a loop.

In: the entries of row `i` of `C`, stored csr. Out: `C2_next = 0; ...; C2_pos[i + 1] = C2_next` while counting.
"""

from __future__ import annotations

from sparsify.compiler.einsum.nodes import Assign
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, compare, plus
from sparsify.compiler.loops.lower.assembly import VALUES, Assembly
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.rows import repeated, upper_bound
from sparsify.compiler.notation import nodes as notation


def around(context: Context, loop: notation.Forall, body: Lowered, env: Environment) -> Lowered:
    """The body of a loop, wrapped in the code of the growing result."""
    assembly = context.assembly
    if assembly is None or not body or assembly.repeating or loop.index not in assembly.variables[:-1]:
        return body
    if not any(n.target.tensor == assembly.name for n in find(loop, Assign)):
        return body  # for a temporary computed before
    level = assembly.variables.index(loop.index)
    if not assembly.by_rows:
        return _around_parent(assembly, level, body, env)
    if level != len(assembly.levels) - 2:
        return body
    if assembly.phase:
        body = repeated.rows(context, assembly, loop, body, env)
    return _around_row(assembly, body, env)


def _around_row(assembly: Assembly, body: Lowered, env: Environment) -> Lowered:
    """Starts a row at its position and, while counting, stores the number of entries."""
    last, row = len(assembly.levels) - 1, assembly.row(env)
    if assembly.phase == VALUES:
        return body
    if assembly.is_running:
        return upper_bound.around_row(assembly, body, env)
    counter = assembly.counters[last]
    if assembly.phase:
        return [loops.Declare(counter, ZERO, True), *body, upper_bound.put_room(assembly, row, counter)]
    if assembly.filling:
        return [loops.Declare(counter, assembly.read_position(last, row), True), *body]
    return [loops.Declare(counter, ZERO, True), *body, assembly.put(last, "pos", plus(row, ONE), counter)]


def _around_parent(assembly: Assembly, level: int, body: Lowered, env: Environment) -> Lowered:
    """Appends a coordinate to a level if the level below gained entries."""
    below, counter, first = assembly.counters[level + 1], assembly.counters[level], assembly.starts[level + 1]
    start = assembly.fresh_int(first.name)
    then: Lowered = []
    if assembly.filling:
        then.append(assembly.put(level, "crd", counter, env.coordinates[assembly.variables[level]].start))
        then.append(assembly.put(level + 1, "pos", plus(counter, ONE), below))
    then.append(loops.Set(counter, plus(counter, ONE)))
    added = loops.If(compare("gt", below, start), loops.Block(tuple(then)))
    return [loops.Declare(start, below), *body, added]
