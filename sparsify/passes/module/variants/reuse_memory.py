"""Buffer reuse: pointwise operators and scatters that overwrite their first operand in place.

In:  `%l = linear(%x, %w); %a = add(%l, %y); %r = relu(%a)`, `%z = zeros(..); %s = scatter_add(%z, 0, %i, %m)`.
Out: `%a = add_(%l, %y); %r = relu_(%a)`, `%s = scatter_add_(%z, ..)`; each reader of equal zeros has its own.
In:  `%a = add(%l, %p); %p = linear(%x, %w)`. Out: `%a = add_product_(%l, %x, %w)`, one operator for both.

New memory is slow: the system clears each page at its first use. No operand saved for gradients is overwritten:
autograd saves the operands of a writer by itself, and the operators in `FRESH` do not save their results.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import is_mutating, operator_name, tensor_value

# Operators with an in-place form for the first operand.
WRITERS: Final = frozenset(
    ("add", "sub", "mul", "div", "neg", "relu", "clamp", "masked_fill", "scatter_add", "index_add")
)
DTYPES: Final = (torch.float32, torch.float64)
FACTORIES: Final = frozenset(("zeros", "ones", "full"))
# Operators with results in newly allocated memory, not saved for gradients.
FRESH: Final = FACTORIES | {
    *("linear", "mm", "bmm", "addmm", "index_select", "gather", "index", "embedding", "batch_norm"),
    *("add", "sub", "mul", "div", "neg", "masked_fill", "scatter_add", "index_add"),
}


@dataclass(frozen=True)
class Sum:
    """A product of rows with a weight, added to a tensor of the same shape.

    Attributes:
        product: product without another reader.
        added: other summand.
        can_write: whether `added` has no other reader, either.
    """

    product: fx.Node
    added: fx.Node
    can_write: bool

    @property
    def function(self) -> Callable[..., Tensor]:
        """The function of the summand, the rows and the weight that computes product and sum."""
        return add_product_ if self.can_write else add_product


def sums(graph: fx.Graph, excluded: Collection[fx.Node]) -> dict[fx.Node, Sum]:
    """The nodes that add a product to a tensor, in dtypes with one library for torch's products.

    Args:
        excluded: nodes that are not computed one by one.
    """
    result: dict[fx.Node, Sum] = {}
    if any(map(is_mutating, graph.nodes)):
        return result  # a product computed at its sum may read memory written in between
    for node in graph.nodes:
        if node in excluded or not is_operator(node, ("add",)) or len(node.args) != 2 or node.kwargs:
            continue
        for product, added in (node.args[::-1], node.args):
            if isinstance(added, fx.Node) and added is not product and is_product(product, node, excluded):
                is_free = list(added.users) == [node] and is_operator(added, FRESH - FACTORIES)
                if are_alike(added, node):
                    result[node] = Sum(product, added, is_free and added not in excluded)
                    break
    return result


def is_product(node: Any, reader: fx.Node, excluded: Collection[fx.Node]) -> bool:
    """Whether a node is `linear(x, w)` of a matrix with a single reader."""
    if not isinstance(node, fx.Node) or node in excluded or list(node.users) != [reader]:
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
    """`added += rows @ weight.T`, in place."""
    return added.addmm_(rows, weight.t())


def writers(graph: fx.Graph, excluded: Collection[fx.Node]) -> dict[fx.Node, Callable[..., Any]]:
    """The nodes of a graph that may overwrite their first operand, and the in-place functions.

    Args:
        excluded: nodes that are not computed one by one.
    """
    if any(returns_sparse(node) for node in graph.nodes):
        return {}
    return {
        node: getattr(torch.Tensor, f"{operator_name(node)}_")
        for node in graph.nodes
        if node not in excluded and may_write(node) and node.args[0] not in excluded
    }


def may_write(node: fx.Node) -> bool:
    """Whether a node is the only reader of its first operand, with the result's shape and dtype."""
    if not is_operator(node, WRITERS) or not node.args:
        return False
    base = node.args[0]
    if not isinstance(base, fx.Node) or not is_operator(base, FRESH) or not are_alike(base, node):
        return False
    if operator_name(base) in FACTORIES:
        return node.all_input_nodes.count(base) == 1 and base not in (*node.args[1:], *node.kwargs.values())
    return list(base.users) == [node] and sum(arg is base for arg in node.args) == 1


def is_operator(node: fx.Node, names: Collection[str]) -> bool:
    """Whether a node calls a named operator of torch without side effects."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    return not target._schema.is_mutable and target._schema.name.removeprefix("aten::") in names


def are_alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes compute tensors of equal shape, dtype and device."""
    first, second = tensor_value(one), tensor_value(other)
    if first is None or second is None:
        return False
    same = (first.dtype, first.device, first.layout) == (second.dtype, second.device, second.layout)
    shapes = [[str(extent) for extent in value.shape] for value in (first, second)]
    return same and shapes[0] == shapes[1]


def returns_sparse(node: fx.Node) -> bool:
    """Whether a node calls a region with a sparse result, which only this package's code reads."""
    call = info(node).call
    if call is None:
        return False
    program = call.program
    return any(not program.declaration(name).format.is_dense for name in program.outputs)
