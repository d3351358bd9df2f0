"""Temporaries in registers: one variable for each element, or for each vector of elements.

In: `let w[ki] in register`, `ki` of 16 coordinates in 8 lanes. Out: `w_0, w_1: float32x8 = 0`.
"""

from __future__ import annotations

from dataclasses import replace

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node, find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Register
from sparsify.compiler.loops.lower.program_facts import Start
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.provenance import Provenance
from sparsify.errors import ScheduleError


def register(
    context: Context, node: notation.Let, temporary: notation.Temporary, start: Start, env: Environment
) -> tuple[list[loops.Declare], Environment]:
    """One variable for each element of a temporary in registers."""
    lanes = context.lanes
    kinds = {index: _kinds(node, index) for index in temporary.indices}
    vectors = [i for i in temporary.indices if kinds[i] == {notation.Vector} or _is_table(node, i, kinds[i])]
    for index in temporary.indices:
        looping = kinds[index] & {notation.Serial, notation.Vector, notation.Parallel}
        if index not in vectors and looping and (lanes > 1 or notation.Serial in kinds[index]):
            raise ScheduleError(
                f"{temporary}: the loops over {index} are not all written out", f"unroll {index}"
            )
    if lanes == 1 or (not vectors and env.lane is None):
        vectors, width = [], 1
    elif len(vectors) > 1:
        raise ScheduleError(
            f"{temporary} has {' and '.join(vectors)} in its lanes", "vector only one of them"
        )
    else:
        width = lanes
    kind = loops.Type(temporary.dtype, width)
    lane = vectors[0] if vectors else None
    is_reduced = lane is not None and _is_reduced(context, node, temporary.name, lane)
    counts = {index: _static_bound(context, index, temporary, env) for index in temporary.indices}
    if lane is not None:
        counts[lane] = -(-counts[lane] // width)
    along = counts[lane] if lane is not None else 1
    register = Register(context.fresh(temporary.name), temporary.indices, lane, kind, is_reduced, along)
    names = [register.name]
    for index in temporary.indices:
        names = [f"{name}_{n}" for name in names for n in range(counts[index])]
    value = loops.Literal(context.fill_of(Access(temporary.name)) if start is None else start, kind)
    context.names.taken.update(names)
    declared = [loops.Declare(loops.Var(name, kind), value, True) for name in names]
    return declared, replace(env, registers={**env.registers, temporary.name: register})


def _is_reduced(context: Context, node: notation.Let, name: str, lane: str) -> bool:
    """Whether an assignment reads all lanes of a temporary into an entry without an index in the lanes."""
    provenance = Provenance(context.program.relations)
    for assign in find(node.body, Assign):
        if any(n.tensor == name for n in find(assign.value, Access)):
            written = {leaf for index in index_names(assign.target) for leaf in provenance.leaves(index)}
            if lane not in written:
                return True
    return False


def _is_table(node: Node, index: str, kinds: set[type[notation.Kind]]) -> bool:
    """Whether a temporary is written in vectors along `index`, and read at arbitrary coordinates in other lanes."""
    if kinds != {notation.Vector, notation.Serial}:
        return False
    around = [
        n for n in find(node, notation.Forall) if isinstance(n.kind, notation.Vector) and n.index != index
    ]
    loops_over = [n for n in find(node, notation.Forall) if n.index == index]
    within = {id(n) for outer in around for n in find(outer.body, notation.Forall)}
    return all(isinstance(n.kind, notation.Vector) or id(n) in within for n in loops_over)


def _kinds(node: Node, index: str) -> set[type[notation.Kind]]:
    """The kinds of the loops over `index` in `node`."""
    return {type(n.kind) for n in find(node, notation.Forall) if n.index == index}


def _static_bound(context: Context, index: str, temporary: notation.Temporary, env: Environment) -> int:
    """The constant bound of the iterations of `index`."""
    known = env.ranges.get(index)
    bound = known.bound if known is not None else None
    if bound is None and index in context.split_by_inner:
        bound = context.split_by_inner[index].size
    if bound is None:
        bound = context.constant_extent(index)
    if bound is None:
        raise ScheduleError(
            f"{temporary} is in registers and {index} has no constant extent", f"split {index}"
        )
    return bound
