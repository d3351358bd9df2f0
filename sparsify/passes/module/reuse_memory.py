"""Results in the memory of what only they read: pointwise operators and scatters that write over their first operand.

In:  `%l = linear(%x, %w); %a = add(%l, %y); %r = relu(%a)`, `%z = zeros(..); %s = scatter_add(%z, 0, %i, %m)`.
Out: `%a = add_(%l, %y); %r = relu_(%a)`, `%s = scatter_add_(%z, ..)`; each reader of equal zeros has its own.
In:  `%a = add(%l, %p); %p = linear(%x, %w)`. Out: `%a = add_product_(%l, %x, %w)`, one operator for both.

New memory is slow: the system clears each page at its first use. Nothing is written over that gradients read: autograd
keeps operands of a writer by itself, and the operators in `FRESH` do not keep their results.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import is_mutating, operator_name, tensor_value

# Operators with a form that writes into the first operand.
WRITERS: Final = frozenset(
    ("add", "sub", "mul", "div", "neg", "relu", "clamp", "masked_fill", "scatter_add", "index_add")
)
DTYPES: Final = (torch.float32, torch.float64)
FACTORIES: Final = frozenset(("zeros", "ones", "full"))
# Operators whose results are in memory of their own, and are not kept for gradients.
FRESH: Final = FACTORIES | {
    *("linear", "mm", "bmm", "addmm", "index_select", "gather", "index", "embedding", "batch_norm"),
    *("add", "sub", "mul", "div", "neg", "masked_fill", "scatter_add", "index_add"),
}


@dataclass(frozen=True)
class Sum:
    """A product of rows with a weight, added to a tensor of the same shape.

    Attributes:
        product: nothing else reads it.
        added: what it is added to.
        can_write: whether nothing else reads that, either.
    """

    product: fx.Node
    added: fx.Node
    can_write: bool

    @property
    def function(self) -> Callable[..., Tensor]:
        """Computes both of what is added, of the rows and of the weight."""
        return add_product_ if self.can_write else add_product


def sums(graph: fx.Graph, apart: Collection[fx.Node]) -> dict[fx.Node, Sum]:
    """The nodes of a graph that add a product to a tensor, in dtypes that torch multiplies by one library.

    Args:
        apart: nodes that are not computed one by one.
    """
    found: dict[fx.Node, Sum] = {}
    if any(map(is_mutating, graph.nodes)):
        return found  # a product that is computed with its sum may read what was written in between
    for node in graph.nodes:
        if node in apart or not is_operator(node, ("add",)) or len(node.args) != 2 or node.kwargs:
            continue
        for product, added in (node.args[::-1], node.args):
            if isinstance(added, fx.Node) and added is not product and is_product(product, node, apart):
                is_free = list(added.users) == [node] and is_operator(added, FRESH - FACTORIES)
                if are_alike(added, node):
                    found[node] = Sum(product, added, is_free and added not in apart)
                    break
    return found


def is_product(node: Any, reader: fx.Node, apart: Collection[fx.Node]) -> bool:
    """Whether a node is `linear(x, w)` of a matrix, which one node alone reads."""
    if not isinstance(node, fx.Node) or node in apart or list(node.users) != [reader]:
        return False
    value = tensor_value(node)
    is_plain = (
        is_operator(node, ("linear",)) and len(node.args) == 2 and value is not None and value.dim() == 2
    )
    return is_plain and value.dtype in DTYPES and are_alike(node, reader)  # type: ignore[union-attr]


def add_product(added: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """`added + rows @ weight.T`: shapes [n, k], [n, j], [k, j]."""
    return torch.addmm(added, rows, weight.t())


def add_product_(added: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """The same in the memory of the first operand."""
    return added.addmm_(rows, weight.t())


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
