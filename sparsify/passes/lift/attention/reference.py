"""Dense attention under the patterns of rules, the reference of kernels.

In: scores with rows that may have no key. Out: `safe_softmax(scores, -1)`, 0 in rows without keys.
"""

import torch
from torch import Tensor


def scaled_by_width(scores: Tensor, query: Tensor) -> Tensor:
    """Scores divided by the square root of the width of queries, known only in a call."""
    scaled: Tensor = scores * query.shape[-1] ** -0.5
    return scaled


def safe_softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """A softmax with 0 in rows without a score above `-inf`."""
    is_empty = (scores == -torch.inf).all(dim, keepdim=True)
    weights = torch.softmax(scores.masked_fill(is_empty, 0), dim, dtype=dtype)
    return weights.masked_fill(is_empty, 0)
