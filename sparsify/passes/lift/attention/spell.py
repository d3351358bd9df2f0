"""Decomposition of torch's attention operator, for the pattern of a rule.

In: `%y = scaled_dot_product_attention(%q, %k, %v, attn_mask=%m)`. Out: `%s = mul(matmul(%q, transpose(%k, -1, -2)),
0.125); %p = softmax(where(%m, %s, -inf), -1); %y = matmul(%p, %v)`.
"""

from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.insert import call
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import tensor_value
from sparsify.passes.lift.attention.find import AttentionNodes
from sparsify.passes.lift.attention.reference import scaled_by_width
from sparsify.passes.program.model import sizes_of
from sparsify.passes.region.sparse_operand import HALVES

aten = torch.ops.aten
NAMES: Final = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
# The mode of heads, from the last one.
HEADS: Final = -3


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of attention by name."""
    return dict(zip(NAMES, node.args, strict=False)) | dict(node.kwargs)


def reason_against(node: fx.Node) -> str:
    """The reason why attention is not decomposed; empty for decomposed attention."""
    call_arguments = arguments(node)
    query, key = (sizes_of(call_arguments[name].meta["val"]) for name in ("query", "key"))
    if not call_arguments.get("enable_gqa") or (
        isinstance(query[HEADS], int) and isinstance(key[HEADS], int)
    ):
        return ""
    return (
        f"queries have {query[HEADS]} heads and keys {key[HEADS]}, extents of inputs that may vary: groups of heads "
        "need numbers; dynamic=() fixes all extents, dynamic={name: modes} all but those that it names"
    )


def spell_out(node: fx.Node) -> fx.Node:
    """Decomposes attention in place; returns its softmax, annotated with the nodes of the scores."""
    call_arguments = arguments(node)
    operands = [call_arguments[name] for name in ("query", "key", "value")]
    before = node.prev
    with node.graph.inserting_before(node):
        if call_arguments.get("enable_gqa"):
            operands[1:] = [repeated(operand, operands[0]) for operand in operands[1:]]
        query, key, value = (widened(operand) for operand in operands)
        width = sizes_of(query.meta["val"])[-1]
        scores = call(aten.matmul.default, query, call(aten.transpose.int, key, -1, -2))
        if (scale := call_arguments.get("scale")) is not None or isinstance(width, int):
            scores = call(aten.mul.Tensor, scores, max(1, width) ** -0.5 if scale is None else scale)
        else:
            scores = call(scaled_by_width, scores, query)
        mask = call_arguments.get("attn_mask")
        if isinstance(mask, fx.Node):
            is_kept = mask.meta["val"].dtype == torch.bool
            masked_scores = (aten.where.ScalarOther, mask, scores, -torch.inf)
            scores = call(*masked_scores) if is_kept else call(aten.add.Tensor, scores, mask)
        softmax = weights = call(aten.softmax.int, scores, -1)
        dropout = None
        if call_arguments.get("dropout_p"):
            dropout = weights = call(aten.dropout.default, weights, call_arguments["dropout_p"], True)
        if weights.meta["val"].dtype != value.meta["val"].dtype:
            weights = call(aten.to.dtype, weights, value.meta["val"].dtype)
        result = mean = call(aten.matmul.default, weights, value)
        if mean.meta["val"].dtype != node.meta["val"].dtype:
            result = call(aten.to.dtype, mean, node.meta["val"].dtype)
    added = before.next
    while added is not node:
        if "nn_module_stack" in node.meta:
            added.meta["nn_module_stack"] = node.meta["nn_module_stack"]
        added = added.next
    node.replace_all_uses_with(result)
    shape = sizes_of(scores.meta["val"])
    lead = [size if isinstance(size, int) else (query, mode) for mode, size in enumerate(shape[:-2])]
    ends = [(operand, len(shape) - 2) for operand in (query, key)]
    extents = [size if isinstance(size, int) else end for size, end in zip(shape[-2:], ends, strict=True)]
    noted = AttentionNodes(scores, query, key, (*lead, *extents), dropout)
    notes = info(node)
    set_info(softmax, attention=noted, mark=notes.mark, own_pattern=notes.own_pattern)
    node.graph.erase_node(node)
    return softmax


def repeated(operand: fx.Node, query: fx.Node) -> fx.Node:
    """Keys or values for each head of queries; a single head is broadcast."""
    heads, few = (sizes_of(n.meta["val"])[HEADS] for n in (query, operand))
    mode = operand.meta["val"].dim() + HEADS
    return (
        operand if few in (1, heads) else call(aten.repeat_interleave.self_int, operand, heads // few, mode)
    )


def widened(operand: fx.Node) -> fx.Node:
    """An operand, converted to float32 if in half precision, as inside torch's operator."""
    value = tensor_value(operand)
    assert value is not None, "attention is of tensors"
    return call(aten.to.dtype, operand, torch.float32) if value.dtype in HALVES else operand
