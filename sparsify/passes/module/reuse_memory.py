"""Results in the memory of what only they read: pointwise operators and scatters that write over their first operand.

In:  `%l = linear(%x, %w); %a = add(%l, %y); %r = relu(%a)`, `%z = zeros(..); %s = scatter_add(%z, 0, %i, %m)`.
Out: `%a = add_(%l, %y); %r = relu_(%a)`, `%s = scatter_add_(%z, ..)`; each reader of equal zeros has its own.

New memory is slow: the system clears each page at its first use. Nothing is written over that gradients read: autograd
keeps operands of a writer by itself, and the operators in `FRESH` do not keep their results.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import operator_name, tensor_value

# Operators with a form that writes into the first operand.
WRITERS: Final = frozenset(
    ("add", "sub", "mul", "div", "neg", "relu", "clamp", "masked_fill", "scatter_add", "index_add")
)
FACTORIES: Final = frozenset(("zeros", "ones", "full"))
# Operators whose results are in memory of their own, and are not kept for gradients.
FRESH: Final = FACTORIES | {
    *("linear", "mm", "bmm", "addmm", "index_select", "gather", "index", "embedding", "batch_norm"),
    *("add", "sub", "mul", "div", "neg", "masked_fill", "scatter_add", "index_add"),
}


def writers(graph: fx.Graph, apart: Collection[fx.Node]) -> dict[fx.Node, Callable[..., Any]]:
    """The nodes of a graph that may write into their first operand, and the functions that do.

    Args:
        apart: nodes that are not computed one by one.
    """
    if any(returns_sparse(node) for node in graph.nodes):
        return {}
    return {
        node: getattr(torch.Tensor, f"{operator_name(node)}_")
        for node in graph.nodes
        if node not in apart and may_write(node) and node.args[0] not in apart
    }


def may_write(node: fx.Node) -> bool:
    """Whether nothing but a node reads its first operand, which has the shape and dtype of the result."""
    if not is_operator(node, WRITERS) or not node.args:
        return False
    base = node.args[0]
    if not isinstance(base, fx.Node) or not is_operator(base, FRESH) or not are_alike(base, node):
        return False
    if operator_name(base) in FACTORIES:
        return node.all_input_nodes.count(base) == 1 and base not in (*node.args[1:], *node.kwargs.values())
    return list(base.users) == [node] and sum(arg is base for arg in node.args) == 1


def is_operator(node: fx.Node, names: Collection[str]) -> bool:
    """Whether a node calls one of these operators of torch, with one result and without writing."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    return not target._schema.is_mutable and target._schema.name.removeprefix("aten::") in names


def are_alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes give tensors of the same shape, dtype and device."""
    first, second = tensor_value(one), tensor_value(other)
    if first is None or second is None:
        return False
    same = (first.dtype, first.device, first.layout) == (second.dtype, second.device, second.layout)
    shapes = [[str(extent) for extent in value.shape] for value in (first, second)]
    return same and shapes[0] == shapes[1]


def returns_sparse(node: fx.Node) -> bool:
    """Whether a node is the call of a region with a sparse result: other code than torch's reads it."""
    call = info(node).call
    if call is None:
        return False
    program = call.program
    return any(not program.declaration(name).format.is_dense for name in program.outputs)
