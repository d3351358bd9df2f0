"""Statements split into several if one loop nest cannot compute them: sums become separate tensors.

In: `Y[i,k] = relu(sum(j, A[i,j] * A[j,k]) - A[i,k])`, all compressed by row.
Out: `w[i,k] = sum(j, A[i,j] * A[j,k])` and `Y[i,k] = relu(w[i,k] - A[i,k])`, w compressed by row too.

A workspace of scattered sums records which entries are in use, and cannot be co-iterated with an operand; and the
nests of several sums rarely agree on a loop order.
"""

from dataclasses import replace
from typing import cast

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.infer.sparsity import infer_sparsity
from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Expr, Index, Program, Reduce
from sparsify.compiler.einsum.rename import all_indices, fresh
from sparsify.compiler.einsum.rewrite.factor import factor
from sparsify.compiler.ir.node import Node, children, find, holds, map_children, walk


def cut(program: Program) -> Program:
    """`program` with temporaries for sums that cannot be computed in place; the same object without any."""
    taken = {declared.name for declared in program.declarations} | set(all_indices(program.statements))
    declarations = {declared.name: declared for declared in program.declarations}
    statements: list[Assign] = []
    for statement in program.statements:
        statements += _cut(program, statement, declarations, taken)
    if len(statements) == len(program.statements):
        return program
    return infer_format(replace(program, statements=tuple(statements)))


def _cut(
    program: Program, statement: Assign, declarations: dict[str, Declaration], taken: set[str]
) -> list[Assign]:
    """The statement, preceded by the statements of its sums; equal sums share a statement."""
    if statement.monoid is not None or not holds(statement.value, Reduce):
        return [statement]
    (factored,) = factor(replace(program, statements=(statement,))).statements
    sums = _sums(factored.value, declarations)
    if declarations[statement.target.tensor].drops:
        sums = [part for part in walk(factored.value) if isinstance(part, Reduce)]
    elif not sums or (len(sums) == 1 and not _meets_operands(factored, sums[0], declarations)):
        return [statement]
    found: list[Assign] = []
    known: dict[Node, Access] = {}
    order = free_indices(statement.target)

    def visit(node: Node) -> Node:
        is_sum = any(node is part for part in sums)
        node = map_children(node, visit)
        if not is_sum:
            return node
        if node in known:
            return known[node]
        names = sorted(free_indices(node), key=lambda n: order.index(n) if n in order else len(order))
        name = fresh("w", taken)
        taken.add(name)
        target = known[node] = Access(name, tuple(map(Index, names)))
        found.append(Assign(target, None, cast(Expr, node)))
        return target

    value = cast(Expr, visit(factored.value))
    return [*found, replace(factored, value=value)]


def _sums(value: Expr, declarations: dict[str, Declaration]) -> list[Reduce]:
    """The sums inside a value that need a loop nest of their own, without an outermost sum."""
    is_sparse = infer_sparsity(value, declarations).fill is not None
    found: list[Reduce] = []

    def visit(node: Node, is_sparse: bool) -> None:
        if isinstance(node, Reduce):
            alone = not holds(node.body, Reduce)
            is_inner = is_sparse and alone and infer_sparsity(node, declarations).fill is None
            if not is_inner:
                found.append(node)
            is_sparse = infer_sparsity(node.body, declarations).fill is not None
        for child in children(node):
            visit(child, is_sparse)

    visit(value.body if isinstance(value, Reduce) else value, is_sparse)
    return found


def _meets_operands(statement: Assign, part: Reduce, declarations: dict[str, Declaration]) -> bool:
    """Whether a sum is co-iterated with sparse operands while the entries of the result are computed."""
    output = declarations[statement.target.tensor]
    if isinstance(statement.value, Reduce):
        return True
    if output.format.is_dense or output.pattern_of is not None:
        return False
    inside = {id(node) for node in walk(part)}
    others = (n for n in find(statement.value, Access) if id(n) not in inside)
    return any(not declarations[access.tensor].format.is_dense for access in others)
