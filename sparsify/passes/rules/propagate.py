"""Sparsity propagated through operators that preserve the fill value 0.

In: `adj` is marked, `%t = t(%adj)`, `%r = relu(%t)`. Out: `%t` and `%r` are marked too, as derived.
"""

from torch import fx

from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph import operators
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import argument, operator_name, tensor_value
from sparsify.passes.rules.mark import derived

UNARY = operators.FILL_PRESERVING - {"mul"}


def propagate(draft: Draft) -> Draft:
    """The draft with marks on every node whose zeros follow from a marked node."""
    for node in draft.graph.nodes:
        if node.op in ("call_function", "call_method") and info(node).mark is None:
            source_mark = inherited(node)
            if source_mark is not None:
                set_info(node, mark=derived(source_mark))
    return draft


def inherited(node: fx.Node) -> Mark | None:
    """The mark that `node` inherits from its operands, None where zeros are not preserved."""
    value = tensor_value(node)
    if value is None or not value.dtype.is_floating_point:
        return None
    name = operator_name(node)
    if name in UNARY or operators.is_inactive_dropout(node):
        return mark_of(node.args[0])
    if name == "mul":
        return mark_of(node.args[0]) or mark_of(argument(node, 1, "other"))
    if name == "div":
        divisor = argument(node, 1, "other")
        return mark_of(node.args[0]) if isinstance(divisor, int | float) and divisor != 0 else None
    return None


def mark_of(operand: object) -> Mark | None:
    """The mark of an operand with two modes or more; index vectors and scalars carry none."""
    value = tensor_value(operand)
    if (
        not isinstance(operand, fx.Node)
        or value is None
        or value.dim() < 2
        or not value.dtype.is_floating_point
    ):
        return None
    mark = info(operand).mark
    return mark if isinstance(mark, Mark) and is_matrix_mark(operand) else None


def is_matrix_mark(node: fx.Node) -> bool:
    """Whether the mark is about the node's own entries, not about the graph of message passing."""
    return operator_name(node) not in ("index_add", "scatter_add", "index_put", "scatter_reduce")
