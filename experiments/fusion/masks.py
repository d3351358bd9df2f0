"""Patterns of attention as boolean tables, a truth value for each block of queries and keys.

In: `bigbird(64, 0)`. Out: [64, 64], of which about 15 % is true.

Source: Zaheer et al., Big Bird: transformers for longer sequences, 2020.
"""

import torch
from torch import Tensor

# Of the sparse encoder in the paper: neighbours on each side, the first and last block for all, random ones.
NEAR = 1
RANDOM = 3


def bigbird(blocks: int, seed: int = 0) -> Tensor:
    """[blocks, blocks]: neighbours, the first and last block seen by all and seeing all, random blocks."""
    at = torch.arange(blocks)
    kept = (at[:, None] - at).abs() <= NEAR
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(blocks, blocks, generator=generator).masked_fill(kept, -1.0)
    scores[:, [0, -1]] = -1.0
    kept.scatter_(1, scores.topk(min(RANDOM, blocks), dim=1).indices, True)
    kept[[0, -1]] = True
    kept[:, [0, -1]] = True
    return kept


def window(tokens: int, reach: int) -> Tensor:
    """[tokens, tokens]: `reach` tokens on each side."""
    at = torch.arange(tokens)
    return (at[:, None] - at).abs() <= reach
