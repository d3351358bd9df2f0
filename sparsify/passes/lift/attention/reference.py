"""Attention as its softmax and products, densely, with what torch's operator has no arguments for.

In:  queries and keys, a mask, a bound of scores, a logit beside the scores of each query.
Out: the weights of the keys, and their sums of values: what kernels are compared with, and what runs where none can be
     built.
"""

import torch
from torch import Tensor


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The weights of the keys of each query, [.., queries, keys]; queries without any key have none.

    Args:
        query: [.., queries, width].
        key: [.., keys, width].
        attn_mask: of truth values, or what is added to the scores.
        scale: of the scores, `width ** -0.5` by default.
        softcap: scores become `softcap * tanh(scores / softcap)`, before they are masked.
        sinks: a logit for each query, which takes its part of the weights, [.., queries].

    Returns:
        Weights of halves in float32, as kernels have them.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ key.to(dtype).mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if sinks is not None:
        return torch.softmax(torch.cat([scores, sinks[..., None].to(dtype)], -1), -1)[..., :-1]
    weights = torch.softmax(scores, -1)
    return weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)


def weighted_sums(weights: Tensor, value: Tensor) -> Tensor:
    """Values of keys summed by the weights of each query, [.., queries, width], rounded once to the dtype of values."""
    return (weights @ value.to(weights.dtype)).to(value.dtype)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention as torch's operator of this name has it, with scores in bounds and sinks.

    Args:
        query: [.., queries, width]; `key` and `value` are like it.
        attn_mask, scale, softcap, sinks: as those of `attention_weights`.
        dropout_p: how likely a weight is dropped.

    Source: Gemma team, Gemma 2, 2024, section 2 (bounds); OpenAI, gpt-oss model card, 2025, section 2.1 (sinks).
    """
    weights = attention_weights(query, key, attn_mask, scale=scale, softcap=softcap, sinks=sinks)
    return weighted_sums(torch.dropout(weights, dropout_p, dropout_p > 0), value)
