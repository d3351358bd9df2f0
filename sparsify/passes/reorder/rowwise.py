"""Rowwise operators: each result row depends on the same operand row, as seen in index notation.

In: `y[i,k] = relu(x[i,k] + b[k])` of a node. Out: `[%x]`: a permutation of the rows of `x` permutes the rows of `y`.
`None` for other uses of the row index, as in `y[i,k] = x[5 - i,k]`, and for operators without a statement.
"""

from collections.abc import Callable
from typing import Any

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Extent, Index
from sparsify.compiler.ir.node import Node, children, find
from sparsify.passes.graph.canonicalize import is_writer
from sparsify.passes.graph.operators import tensor_value
from sparsify.passes.program.model import ModelProgram, sizes_of


def row_operands(
    program: ModelProgram, node: fx.Node, is_rows: Callable[[Any], bool]
) -> list[fx.Node] | None:
    """The operands with the rows of the result, `None` where other rows matter.

    Args:
        program: program of the graph.
        node: any node.
        is_rows: whether an extent is the number of rows.
    """
    value = tensor_value(node)
    if value is None or value.dim() == 0 or not is_rows(value.shape[0]) or is_writer(node):
        return None
    if node.name not in program.statements or sizes_of(value)[0] == 1:
        return None
    by_row, others = set[str](), set[str]()

    def visit(part: Node, row: str) -> bool:
        """Collects the tensors read at a row, and otherwise; returns whether the row is only a first index."""
        match part:
            case Access(name, indices):
                is_at_row = indices[:1] == (Index(row),)
                (by_row if is_at_row else others).add(name)
                is_first = not any(Index(row) in find(index, Index) for index in indices[is_at_row:])
                return is_first and (program.source[name] is not node or visit_own(name, is_at_row))
            case Index(name) | Extent(name):
                return name != row
        return all(visit(child, row) for child in children(part))

    def visit_own(name: str, is_at_row: bool) -> bool:
        """Visits the value of a statement of the node."""
        statement = program.statements[name]
        return visit(statement.value, str(statement.target.indices[0]) if is_at_row else "")

    # A tensor read in both ways would need its rows in two orders.
    if not visit_own(node.name, True) or by_row & others:
        return None
    return sorted({program.source[name] for name in by_row} - {node}) or None
