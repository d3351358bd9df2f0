"""Attention that a model spells out, as the one operator that rules name: `scaled_dot_product_attention`.

In: `%s = matmul(%q, transpose(%k, -1, -2)); %s2 = div(%s, 8.0); %s3 = add(%s2, %mask); %p = softmax(%s3, -1);
%y = matmul(%p, %v)`. Out: `%y = scaled_dot_product_attention(%q, %k, %v, attn_mask=%mask, scale=0.125)`.

Only where nothing else reads the scores or the weights, so that no output of the model is lost.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import fx

from sparsify.passes.base import Draft
from sparsify.passes.canonicalize import remove_unused
from sparsify.passes.operators import argument, is_inactive_dropout, operator_name, tensor_value

PRODUCTS = ("matmul", "bmm")


@dataclass
class Scores:
    """What a softmax is taken of: `scale * (query @ keys) + mask`."""

    product: fx.Node
    scale: float = 1.0
    mask: fx.Node | None = None
    kept: fx.Node | None = None


def attention(draft: Draft) -> Draft:
    """The draft with attention as one operator, where rules put patterns into attention."""
    if draft.asked.has_masks:
        for node in list(draft.graph.nodes):
            if operator_name(node) == "softmax":
                join(node)
        remove_unused(draft.graph)
    return draft


def join(softmax: fx.Node) -> None:
    """Replaces the attention around a softmax, where it is one."""
    weights = tensor_value(softmax)
    if weights is None or argument(softmax, 1, "dim") not in (-1, weights.dim() - 1):
        return
    product = weighted_sum(softmax)
    scores = scores_of(softmax.args[0], weights.dtype)
    if product is None or scores is None:
        return
    query, keys = scores.product.args[:2]
    value = product.args[1]
    if any(tensor_value(node) is None for node in (query, keys, value)):
        return
    graph, rank = product.graph, weights.dim()
    with graph.inserting_before(product):
        key = turned_back(keys, rank)
        if key is None:
            key = graph.call_function(torch.ops.aten.transpose.int, (keys, -1, -2))
            key.meta["val"] = keys.meta["val"].transpose(-1, -2)  # type: ignore[union-attr]
        mask = scores.mask
        if scores.kept is not None:
            mask = graph.call_function(torch.ops.aten.logical_not.default, (scores.kept,))
            mask.meta["val"] = torch.logical_not(scores.kept.meta["val"])
        new = graph.call_function(
            torch.ops.aten.scaled_dot_product_attention.default,
            (query, key, value),
            {"attn_mask": mask, "scale": scores.scale},
        )
    new.meta = dict(product.meta)
    product.replace_all_uses_with(new)


def weighted_sum(softmax: fx.Node) -> fx.Node | None:
    """The product of the weights with the values, where nothing else reads the weights."""
    node = softmax
    while len(node.users) == 1:
        user = next(iter(node.users))
        if operator_name(user) in PRODUCTS:
            return user if user.args[0] is node else None
        if not (keeps_values(user, node) or is_inactive_dropout(user)):
            return None
        node = user
    return None


def keeps_values(node: fx.Node, operand: fx.Node) -> bool:
    """Whether a node is its operand in other memory."""
    if operator_name(node) not in ("to", "_to_copy", "contiguous", "clone", "type_as", "alias", "expand"):
        return False
    before, after = tensor_value(operand), tensor_value(node)
    return (
        before is not None
        and after is not None
        and before.dtype == after.dtype
        and tuple(map(str, before.shape)) == tuple(map(str, after.shape))
    )


def scores_of(node: Any, dtype: torch.dtype) -> Scores | None:
    """What the argument of a softmax is made of, from the last step to the product of queries and keys."""
    found = Scores(node)
    while isinstance(node, fx.Node) and (len(node.users) == 1) and tensor_value(node) is not None:
        name = operator_name(node)
        first: Any
        second: Any
        first, second = (*node.args, None, None)[:2]
        if name in PRODUCTS:
            found.product = node
            value = tensor_value(node)
            return found if value is not None and value.dtype == dtype else None
        if name in ("mul", "div") and isinstance(second, int | float):
            found.scale *= second if name == "mul" else 1 / second
            node = first
        elif name == "add" and argument(node, 2, "alpha", 1) == 1 and found.scale == 1:
            # Only where the scores are scaled before: a mask is not scaled with them.
            side = _score_side(first, second, node)
            if side is None or found.mask is not None or found.kept is not None:
                return None
            node, found.mask = side
        elif name == "masked_fill" and _is_nothing(argument(node, 2, "value")) and found.mask is None:
            if found.kept is not None or found.scale != 1:
                return None
            node, found.kept = first, second
        elif name in ("to", "contiguous", "clone", "alias", "_to_copy") and keeps_values(node, first):
            node = first
        else:
            return None
    return None


def _score_side(first: Any, second: Any, result: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The scores and the mask of a sum."""
    wanted = tensor_value(result)
    for scores, mask in ((first, second), (second, first)):
        value, added = tensor_value(scores), tensor_value(mask)
        if value is None or added is None or wanted is None:
            continue
        is_whole = tuple(map(str, value.shape)) == tuple(map(str, wanted.shape))
        is_scores = operator_name(scores) in (*PRODUCTS, "mul", "div", "masked_fill")
        if is_whole and is_scores and added.dtype == wanted.dtype and len(scores.users) == 1:
            return scores, mask
    return None


def _is_nothing(value: Any) -> bool:
    """Whether a masked score counts nothing; finite ones count where all keys of a query are masked."""
    return isinstance(value, int | float) and value == -inf


def turned_back(keys: Any, rank: int) -> fx.Node | None:
    """The keys of `transpose(keys, -1, -2)`, None for other nodes."""
    name = operator_name(keys)
    base = keys.args[0] if keys.args else None
    if name == "transpose":
        modes = sorted(mode % rank for mode in (argument(keys, 1, "dim0"), argument(keys, 2, "dim1")))
        return base if modes == [rank - 2, rank - 1] else None
    if name == "permute":
        modes = [mode % rank for mode in argument(keys, 1, "dims")]
        return base if modes == [*range(rank - 2), rank - 1, rank - 2] else None
    return None
