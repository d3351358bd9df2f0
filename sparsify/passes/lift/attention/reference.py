"""Attention as its softmax and products, densely.

In:  queries and keys, a mask.
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
) -> Tensor:
    """The weights of the keys of each query, [.., queries, keys]; queries without any key have none.

    Args:
        query: [.., queries, width].
        key: [.., keys, width].
        attn_mask: of truth values, or what is added to the scores.
        scale: of the scores, `width ** -0.5` by default.

    Returns:
        Weights of halves in float32, as kernels have them.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ key.to(dtype).mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return safe_softmax(scores, -1)


def safe_softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """A softmax whose rows without a score above `-inf` are 0."""
    is_empty = (scores == -torch.inf).all(dim, keepdim=True)
    weights = torch.softmax(scores.masked_fill(is_empty, 0), dim, dtype=dtype)
    return weights.masked_fill(is_empty, 0)


def weighted_sums(weights: Tensor, value: Tensor) -> Tensor:
    """Values of keys summed by the weights of each query, [.., queries, width], rounded once to the dtype of values."""
    return (weights @ value.to(weights.dtype)).to(value.dtype)
