"""Substitution in expressions.

In: `A[i,j] * x[j]` and `{"i": j, "j": k}`. Out: `A[j,k] * x[k]`.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar, cast

from sparsify.compiler.einsum.nodes import Access, Expr, Index, Program, Reduce
from sparsify.compiler.ir.node import Node, find, map_children

N = TypeVar("N", bound=Node)


def rename_indices(node: N, names: Mapping[str, str]) -> N:
    """`node` with index variables renamed simultaneously, including variables bound by reductions."""

    def visit(current: Node) -> Node:
        current = map_children(current, visit)
        match current:
            case Index(name) if names.get(name, name) != name:
                return Index(names[name])
            case Reduce(monoid, indices, body) if any(names.get(n, n) != n for n in indices):
                return Reduce(monoid, tuple(names.get(n, n) for n in indices), body)
        return current

    return cast(N, visit(node))


def rename_accesses(node: N, names: Mapping[str, str]) -> N:
    """`node` with renamed tensors."""

    def visit(current: Node) -> Node:
        current = map_children(current, visit)
        if isinstance(current, Access) and current.tensor in names:
            return Access(names[current.tensor], current.indices)
        return current

    return cast(N, visit(node))


def rename_tensors(program: Program, names: Mapping[str, str]) -> Program:
    """`program` with renamed results; the declarations carry the new names already."""
    return dataclasses.replace(
        program,
        statements=tuple([rename_accesses(statement, names) for statement in program.statements]),
        declarations=tuple(
            [
                dataclasses.replace(d, pattern_of=names.get(d.pattern_of or "", d.pattern_of))
                for d in program.declarations
            ]
        ),
        outputs=tuple([names.get(name, name) for name in program.outputs]),
    )


def replace(node: N, old: Node, new: Node) -> N:
    """`node` with every subexpression equal to `old` replaced."""
    return cast(N, new if node == old else map_children(node, lambda child: replace(child, old, new)))


def substitute_scalars(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """`expr` with the scalars `x`, `y`, ... replaced by expressions, simultaneously."""

    def visit(current: Node) -> Node:
        match current:
            case Access(tensor, ()) if tensor in values:
                return values[tensor]
        return map_children(current, visit)

    return cast(Expr, visit(expr))


def all_indices(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The names of all index variables, bound ones included, in order of appearance."""
    names: dict[str, None] = {}
    for node in nodes:
        for part in find(node, Index, Reduce):
            names.update(dict.fromkeys((part.name,) if isinstance(part, Index) else part.indices))
    return tuple(names)


def fresh(name: str, taken: Collection[str]) -> str:
    """`name`, with the first number that makes it unused."""
    if name not in taken:
        return name
    return next(f"{name}{n}" for n in range(1, len(taken) + 2) if f"{name}{n}" not in taken)
