"""Sums at stored entries under elementary functions, as separate statements.

In:  `P[h,i,j] = exp(where(stored(A[i,j]), 0.5 * sum(k, Q[i,h,k] * K[j,h,k]), -inf) - m[h,i])`, A compressed by row.
Out: `w[h,i,j] = where(stored(A[i,j]), sum(k, Q[i,h,k] * K[j,h,k]), 0)` and
     `P[h,i,j] = exp(where(stored(A[i,j]), 0.5 * w[h,i,j], -inf) - m[h,i])`.

A sum yields one entry after the other; elementary functions then run on vectors of entries. In blocks both run in the
same vectors, and stay in one statement.
"""

from dataclasses import replace

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.infer.patterns import pattern_access
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Program, Reduce, Stored
from sparsify.compiler.einsum.rename import all_indices, fresh
from sparsify.compiler.einsum.rename import replace as replaced
from sparsify.compiler.ir.node import find


def sums_apart(program: Program) -> Program:
    """`program` with a statement for each sum under an elementary function; the same object without any."""
    taken = {d.name for d in program.declarations} | set(all_indices(program.statements))
    statements: list[Assign] = []
    for statement in program.statements:
        root = _entries(program, statement)
        summed = None if root is None else _sum_inside(statement.value, root)
        if root is None or summed is None:
            statements.append(statement)
            continue
        name = fresh("w", taken)
        taken.add(name)
        target = Access(name, statement.target.indices)
        statements.append(Assign(target, None, Call("where", (Stored(root), summed, Const(0)))))
        statements.append(replace(statement, value=replaced(statement.value, summed, target)))
    if len(statements) == len(program.statements):
        return program
    return infer_format(replace(program, statements=tuple(statements)))


def _entries(program: Program, statement: Assign) -> Access | None:
    """The unblocked input whose stored entries a statement runs over; `None` for other statements."""
    target = statement.target
    is_plain = all(isinstance(index, Index) for index in target.indices)
    if statement.monoid is not None or not is_plain or program.declaration(target.tensor).format.is_dense:
        return None
    root = pattern_access(program, target)
    if root.tensor not in program.inputs:
        return None
    levels = program.declaration(root.tensor).format.levels
    return root if all(stored.expression.kind == "whole" for stored in levels) else None


def _sum_inside(value: Expr, root: Access) -> Reduce | None:
    """The only sum of a value, if under an elementary function and distinct for each entry."""
    sums = find(value, Reduce)
    if len(sums) != 1 or not set(free_indices(root)) <= set(free_indices(sums[0])):
        return None
    slow = [call for call in find(value, Call) if _is_elementary(call)]
    return sums[0] if any(sums[0] in find(call, Reduce) for call in slow) else None


def _is_elementary(call: Call) -> bool:
    """Whether a function takes many instructions: exponentials, logarithms and the like."""
    return (
        call.function in FUNCTIONS and FUNCTIONS[call.function].result == "float" and call.function != "div"
    )
