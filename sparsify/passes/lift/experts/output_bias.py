"""Biases after the last matrices of experts, as a product with the gate beside the mixture.

In:  `%z = add(%products, %b); %y = einsum("te,teo->to", %gate, %z)`.
Out: `%m = einsum("te,teo->to", %gate, %products); %y = addmm(%m, %gate, %b)`.

`sum(e, G[t,e] * (Z[t,e,o] + b[e,o])) = sum(e, G[t,e] * Z[t,e,o]) + sum(e, G[t,e] * b[e,o])`: the second sum has one
number for each expert where the first one has rows and matrices, and torch computes it at once for all tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.einsum_nodes import einsum_of
from sparsify.passes.graph.operators import argument, operator_name, tensor_value

MATRIX: Final = 2


@dataclass(frozen=True)
class Biased:
    """Results of experts with biases.

    Attributes:
        node: the sum of both.
        products: without biases, [.., tokens, experts, channels].
        bias: the same for all tokens, in a shape that can be that of [experts, channels].
    """

    node: fx.Node
    products: fx.Node
    bias: fx.Node


def biased(node: Any) -> Biased | None:
    """The products and biases that the results of experts are the sum of; `None` for others."""
    value = tensor_value(node)
    if value is None or operator_name(node) != "add" or argument(node, 2, "alpha", 1) != 1:
        return None
    for products, bias in (node.args[:2], node.args[1::-1]):
        added, whole = tensor_value(bias), tensor_value(products)
        if einsum_of(products) is None or whole is None or added is None:
            continue
        is_same = whole.dim() == value.dim() and added.dtype == whole.dtype
        is_of_tokens = any(str(extent) != "1" for extent in added.shape[:-MATRIX])
        if is_same and not is_of_tokens and len(node.users) == 1:
            return Biased(node, products, bias)
    return None


def apart(node: fx.Node, gate: fx.Node, found: Biased, between: Sequence[fx.Node]) -> fx.Node:
    """The weighted sum of the products alone, to which the biases are added for all that read `node`.

    Args:
        node: the weighted sum of the results; it is taken out of its graph.
        gate: its weights, [.., tokens, experts].
        found: the results.
        between: nodes that lead from there to the sum, in order, which nothing else reads.
    """
    aten, value, shown = torch.ops.aten, tensor_value(node), tensor_value(found.products)
    bias, own = found.bias, tensor_value(found.bias)
    assert value is not None and shown is not None and own is not None, "mixtures are of tensors"

    def made(target: Any, example: torch.Tensor, *given: Any) -> fx.Node:
        call = node.graph.call_function(target, given)
        call.meta.update({key: node.meta[key] for key in ("nn_module_stack",) if key in node.meta})
        call.meta["val"] = example
        return call

    with node.graph.inserting_before(node):
        inner = made(aten.einsum.default, value, _weighted(value.dim()), [gate, found.products])
        for _ in range(own.dim() - MATRIX):
            own = own.squeeze(0)
            bias = made(aten.squeeze.dim, own, bias, 0)
        matrix = own.expand(shown.shape[-MATRIX:])
        if own.shape != matrix.shape:
            bias = made(aten.expand.default, matrix, bias, list(matrix.shape))
        if value.dim() == MATRIX:
            result = made(aten.addmm.default, value, inner, gate, bias)
        else:
            result = made(aten.add.Tensor, value, inner, made(aten.matmul.default, value, gate, bias))
    node.replace_all_uses_with(result)
    for dead in (node, *reversed(between), found.node):
        node.graph.erase_node(dead)
    return inner


def _weighted(rank: int) -> str:
    """The weighted sum over the experts as text, "te,teo->to" for rank 2."""
    tokens = "abcdfghijklmnpqrsuvwxyz"[: rank - MATRIX] + "t"
    return f"{tokens}e,{tokens}eo->{tokens}o"
