"""Fusion of neighbouring loops over the same index variable.

In:  `(forall j: s += A[i,j] * x[j]); (forall j: m max= x[j])` and `merge j`
Out: `forall j: (s += A[i,j] * x[j]; m max= x[j])`
"""

from typing import TypeGuard

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.compiler.notation.nodes import Forall, Sequence, Serial, Statement
from sparsify.compiler.schedule.rewrite.nests import Body, sequence


def merge(body: Body, index: str) -> Statement:
    """`(forall j: a); (forall j: b) -> forall j: (a; b)` if neither accesses a tensor written by the other."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        return _merged(node, index) if isinstance(node, Sequence) else node

    result = visit(body)
    assert isinstance(result, Statement)
    return result


def _merged(statements: Sequence, index: str) -> Body:
    """The statements with runs of loops over the index fused."""
    found: list[Body] = []
    for statement in statements.statements:
        before = found[-1] if found else None
        if _is_loop(before, index) and _is_loop(statement, index) and not _meet(before, statement):
            found[-1] = Forall(index, sequence([before.body, statement.body]))
        else:
            found.append(statement)
    return statements if len(found) == len(statements.statements) else sequence(found)


def _is_loop(statement: Body | None, index: str) -> TypeGuard[Forall]:
    """Whether a statement is a serial loop over the index."""
    return isinstance(statement, Forall) and statement.index == index and isinstance(statement.kind, Serial)


def _meet(first: Node, second: Node) -> bool:
    """Whether two statements depend on each other: one accesses a tensor written by the other."""
    return bool(_written(first) & _touched(second) or _written(second) & _touched(first))


def _written(node: Node) -> set[str]:
    return {assign.target.tensor for assign in find(node, Assign)}


def _touched(node: Node) -> set[str]:
    return {access.tensor for access in find(node, Access)}
