"""Gates of mixtures of experts in a graph, named `op:experts` by rules.

In: `%y = einsum("te,teo->to", %gate, %z)`, or `%y = einsum("sec,ecm->sm", %combine, %z)` over slots of experts. Out:
`%gate`, `%combine`. The front end makes regions of marked gates.
"""

from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.einsum_nodes import einsum_of
from sparsify.passes.graph.operators import argument, operator_name, tensor_value
from sparsify.passes.lift.experts.gate import is_decided
from sparsify.storage.format import Format

HALVES: Final = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
DTYPES: Final = {torch.float32, torch.float64, *HALVES}
# Storage of gates: tokens listed by expert.
BY_EXPERT: Final = Format("csc")
# The note of mixture regions.
MIXTURE: Final = "mixture of experts"
# Number of modes of a tensor with a row per token, without groups.
ROWS: Final = 2


def gate_of(node: fx.Node) -> fx.Node | None:
    """The gate of the mixture whose weighted sum is `node`, `None` for other nodes."""
    value = tensor_value(node)
    if value is None or value.dtype not in DTYPES:
        return None
    if (weights := weights_of_slots(node)) is not None:
        return weights
    if value.dim() < ROWS:
        return None
    if operator_name(node) == "sum":
        return gate_of_product(node)
    product = einsum_of(node)
    if product is None or len(product.output) < ROWS:
        return None
    token, channel = product.output[:-1], product.output[-1]
    gates = [(n, at) for n, at in product.operands if at[:-1] == token and at[-1] not in product.output]
    if len(gates) > 1:  # in a product of rows and gates with matrices both have the same place
        gates = [(n, at) for n, at in gates if is_decided(n)]
    if len(gates) != 1:
        return None
    gate, at = gates[0]
    rest = [letters for n, letters in product.operands if n is not gate]
    return gate if len(rest) == 2 or rest == [token + at[-1] + channel] else None


def gate_of_product(node: fx.Node) -> fx.Node | None:
    """The gate of `(gate.unsqueeze(-1) * results).sum(1)`."""
    product = node.args[0]
    dims = argument(node, 1, "dim")
    value = tensor_value(product)
    if value is None or not isinstance(product, fx.Node) or argument(node, 2, "keepdim", False):
        return None
    rank = value.dim()
    (dim,) = dims if isinstance(dims, list | tuple) and len(dims) == 1 else (dims,)
    if rank <= ROWS or dim not in (rank - 2, -2):
        return None
    if operator_name(product) != "mul" or len(product.users) != 1:
        return None
    for column, results in (product.args[:2], product.args[1::-1]):
        if not isinstance(column, fx.Node) or not isinstance(results, fx.Node):
            continue
        shape = tensor_value(results)
        is_column = operator_name(column) == "unsqueeze" and argument(column, 1, "dim") in (-1, rank - 1)
        if is_column and shape is not None and shape.dim() == rank:
            gate: Any = column.args[0]
            return gate if isinstance(gate, fx.Node) else None
    return None


def weights_of_slots(node: fx.Node) -> fx.Node | None:
    """The weights of a sum over the slots of experts; `None` for other nodes.

    `einsum("gsec,egcm->gsm", combine, results)`: no row of a slot belongs to a token, and a product made the rows.
    """
    product = einsum_of(node)
    if product is None or len(product.operands) != 2 or len(product.output) < ROWS:
        return None
    groups, token, channel = product.output[:-2], product.output[-2], product.output[-1]
    for (weights, at), (results, letters) in (product.operands, product.operands[::-1]):
        slots = set(at) & set(letters) - set(product.output)
        is_sum = {*at} == {*groups, token, *slots} and {*letters} == {*groups, channel, *slots}
        is_sum = is_sum and len(slots) == 2 and token not in letters and channel not in at
        if is_sum and einsum_of(results) is not None:
            return weights
    return None
