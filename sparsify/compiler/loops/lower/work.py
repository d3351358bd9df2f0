"""Estimated work of parallel loops: scalar operations, from the entries of sparse operands and dense extents.

In: `y[i] += A[i,j] * x[j]`. Out: `A_nnz`; loops with little work run on one thread.
"""

from __future__ import annotations

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, plus, product, quotient
from sparsify.compiler.loops.lower.program_facts import ProgramFacts
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names

DYNAMIC_CHUNKS = 32


def work(facts: ProgramFacts, loop: notation.Forall) -> loops.Expr:
    """Estimated scalar operations of the loop: entries of the sparse operands times the dense extents.

    Loops over the entries of a workspace are no longer than the loops that filled the workspace.
    """
    temporaries = [t for n in find(facts.program.body, notation.Let) for t in n.temporaries]
    kept = {t.name for t in temporaries if t.listed or t.marked}
    reads = [facts.root_of(n) for n in find(loop, Access)]
    sparse_reads = {a: set(index_names(a)) for a in reads if _is_sparse_input(facts, a.tensor)}
    total: loops.Expr = ZERO
    counted: set[tuple[str, ...]] = set()
    for assign in find(loop, Assign):
        found = [n for n in find(assign.value, Access) if n.tensor in kept]
        made = {name for access in found for name in index_names(access)}
        names = tuple(dict.fromkeys(_root(facts, name) for name in index_names(assign) if name not in made))
        if names in counted:
            continue
        counted.add(names)
        inside = {a: modes for a, modes in sparse_reads.items() if modes and modes <= set(names)}
        total = plus(total, _iterations(facts, names, inside))
    return total


def _iterations(facts: ProgramFacts, names: tuple[str, ...], stored: dict[Access, set[str]]) -> loops.Expr:
    """Estimated iterations of a nest over `names`: the entries of one operand, of others those below fixed indices."""
    factors: list[loops.Expr] = []
    left = list(names)
    for access, inside in stored.items():
        if not inside & set(left):
            continue
        entries = loops.Var(f"{access.tensor}_nnz", loops.INT)
        known = [facts.extent(name) for name in names if name in inside and name not in left]
        factors.append(plus(quotient(entries, plus(product(known), ONE)), ONE) if known else entries)
        left = [name for name in left if name not in inside]
    return product([*(facts.extent(name) for name in left), *factors])


def _is_sparse_input(facts: ProgramFacts, name: str) -> bool:
    return name in facts.program.inputs and not facts.declaration(name).format.is_dense


def _root(facts: ProgramFacts, index: str) -> str:
    """The original index variable of a derived one."""
    for inner, split in (*facts.split_by_inner.items(), *facts.split_by_outer.items()):
        if inner == index:
            return _root(facts, split.index)
    if index in facts.positions:
        return _root(facts, facts.positions[index].index)
    if index in facts.fused:
        return _root(facts, facts.fused[index].first)
    return index
