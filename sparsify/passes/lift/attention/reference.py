"""Dense attention under the patterns of rules, with which kernels are compared.

In: scores whose rows may have no key that counts. Out: `safe_softmax(scores, -1)`, 0 in these.
"""

import torch
from torch import Tensor


def scaled_by_width(scores: Tensor, query: Tensor) -> Tensor:
    """Scores divided by the square root of the width of queries, which only a call knows."""
    scaled: Tensor = scores * query.shape[-1] ** -0.5
    return scaled


def safe_softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """A softmax whose rows without a score above `-inf` are 0."""
    is_empty = (scores == -torch.inf).all(dim, keepdim=True)
    weights = torch.softmax(scores.masked_fill(is_empty, 0), dim, dtype=dtype)
    return weights.masked_fill(is_empty, 0)
