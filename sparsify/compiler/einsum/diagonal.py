"""Repeated indices of sparse operands, expanded to a search.

In: `y[i] = A[i,i] * x[i]`, A sparse. Out: `y[i] = sum(i1, where(i == i1, A[i,i1], 0)) * x[i]`.

In indexable levels `A[i,i]` is one access; stored coordinates have to be searched by a loop with a condition. At most
one term of the sum is nonzero, so the sum is exact; sums of integers and of truth values are int64 and need a cast to
the dtype of the entries: `int16(sum(...))`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from sparsify.compiler.einsum.infer.extents import mode_extents
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Program,
    Reduce,
    Stored,
)
from sparsify.compiler.einsum.rename import all_indices, fresh
from sparsify.compiler.ir.dtypes import FLOATING, category
from sparsify.compiler.ir.node import Node, map_children


def search_diagonals(program: Program) -> Program:
    """`program` without repeated indices on sparse operands."""
    sparse = {d.name: d.dtype for d in program.declarations if not d.format.is_dense}
    statements = tuple(_statement(statement, sparse) for statement in program.statements)
    if statements == program.statements:
        return program
    extents = mode_extents(statements, {d.name: d.format.rank for d in program.declarations})
    declarations = tuple(replace(d, extents=extents[d.name]) for d in program.declarations)
    return replace(program, statements=statements, declarations=declarations)


def _statement(statement: Assign, sparse: Mapping[str, str]) -> Assign:
    taken = set(all_indices((statement,)))

    def visit(node: Node) -> Node:
        match node:
            case Stored(access) if _is_repeated(access, sparse):
                found, distinct = spread(access, taken)
                return Reduce("or", distinct, _and(found, access, Stored(found)))
            case Access() if _is_repeated(node, sparse):
                found, distinct = spread(node, taken)
                entry = Reduce("sum", distinct, Call("where", (_equal(found, node), found, Const(0))))
                dtype = sparse[node.tensor]
                is_kept = category(dtype) >= FLOATING or dtype == "int64"
                return entry if is_kept else Cast(dtype, entry)
        return map_children(node, visit)

    value = cast(Expr, visit(statement.value))
    return statement if value is statement.value else Assign(statement.target, statement.monoid, value)


def _is_repeated(access: Access, sparse: Mapping[str, str]) -> bool:
    names = [index.name for index in access.indices if isinstance(index, Index)]
    return access.tensor in sparse and len(set(names)) < len(names)


def spread(access: Access, taken: set[str]) -> tuple[Access, tuple[str, ...]]:
    """The access with a fresh index variable for each repetition, and the fresh variables."""
    seen: set[str] = set()
    indices: list[Expr] = []
    added: list[str] = []
    for index in access.indices:
        if isinstance(index, Index) and index.name in seen:
            added.append(fresh(index.name, taken))
            taken.add(added[-1])
            index = Index(added[-1])
        elif isinstance(index, Index):
            seen.add(index.name)
        indices.append(index)
    return Access(access.tensor, tuple(indices)), tuple(added)


def _equal(found: Access, access: Access) -> Expr:
    """`i == i1`, conjoined over all repetitions."""
    pairs = [
        Call("eq", (old, new)) for old, new in zip(access.indices, found.indices, strict=True) if old != new
    ]
    condition: Expr = pairs[0]
    for pair in pairs[1:]:
        condition = Call("logical_and", (condition, pair))
    return condition


def _and(found: Access, access: Access, value: Expr) -> Expr:
    return Call("logical_and", (_equal(found, access), value))
