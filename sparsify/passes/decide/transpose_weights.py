"""Transposed copies of dense weights gathered by column, made once per version.

In: `Y[i,k] = sum(j, X[i,j] * W[k,j])`, X sparse, W a parameter. Out: `Y[i,k] = sum(j, X[i,j] * W[j,k])` over
`contiguous(t(W))`: an entry of X reads a contiguous row.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Assign, Expr, Index, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.decide.textbook import Text
from sparsify.passes.graph import insert
from sparsify.passes.graph.operators import operator_name
from sparsify.passes.region.region import Region, finish

aten: Final = torch.ops.aten


def transpose_weights(region: Region) -> None:
    """`sum(j, X[i,j] * W[k,j]) -> sum(j, X[i,j] * W[j,k])`, in place, for weights only read this way."""
    assert isinstance(region.equations, Text), "the front end makes regions with a text"
    sparse = {region.names[matrix.name] for matrix in region.matrices}
    for name, operand in list(region.operands.items()):
        if not isinstance(operand, fx.Node) or operand.op != "get_attr" or operand.meta["val"].dim() != 2:
            continue
        short = region.names[name]
        if not gathers_columns(region.equations.statements, short, sparse):
            continue
        transposed_node = transposed(operand)
        region.operands = {
            (transposed_node.name if key == name else key): (transposed_node if key == name else other)
            for key, other in region.operands.items()
        }
        region.names[transposed_node.name] = region.names.pop(name)
        statements = tuple(with_transposed(statement, short) for statement in region.equations.statements)
        region.equations = replace(region.equations, statements=statements)
        finish(region)


def gathers_columns(statements: tuple[Assign, ...], name: str, sparse: set[str]) -> bool:
    """Whether each read of a matrix is `W[k,j]` in a sum over j of a product with a sparse operand at j."""
    sums = [part for s in statements for part in find(s.value, Reduce) if part.monoid == "sum"]
    count = sum(is_gathered(part, access, sparse) for part in sums for access in reads_of(part.body, name))
    reads = [access for statement in statements for access in reads_of(statement.value, name)]
    return bool(reads) and count == len(reads)


def reads_of(expr: Expr, name: str) -> list[Access]:
    """The accesses of a tensor in an expression."""
    return [access for access in find(expr, Access) if access.tensor == name]


def is_gathered(part: Reduce, access: Access, sparse: set[str]) -> bool:
    """Whether the last index of a read is summed over the entries of a sparse operand, and the first one is not."""
    first, last = access.indices
    if not isinstance(first, Index) or not isinstance(last, Index):
        return False
    driven = {i for other in find(part.body, Access) if other.tensor in sparse for i in other.indices}
    return (
        last.name in part.indices
        and last in driven
        and first.name not in part.indices
        and first not in driven
    )


def with_transposed(statement: Assign, name: str) -> Assign:
    """`W[k,j] -> W[j,k]`."""

    def visit(node: Node) -> Node:
        if isinstance(node, Access) and node.tensor == name:
            return Access(name, node.indices[::-1])
        return map_children(node, visit)

    value = visit(statement.value)
    assert isinstance(value, Expr)
    return replace(statement, value=value)


def transposed(weight: fx.Node) -> fx.Node:
    """The transpose of a weight in row-major order, memoized by `emit` per version of the weight."""
    for view in weight.users:
        for copy in view.users if operator_name(view) == "t" else ():
            if operator_name(copy) == "contiguous":
                return copy
    with weight.graph.inserting_after(weight):
        view = insert.call(aten.t.default, weight)
    with weight.graph.inserting_after(view):
        return insert.call(aten.contiguous.default, view)
