"""Pruning by magnitude as recipes ask for it: the smallest entries become zero.

In: weights and `Prune(method="magnitude", sparsity=0.9)`. Out: a mask for each, `True` where an entry is kept.

Source: Han, Pool, Tran and Dally, Learning both Weights and Connections for Efficient Neural Networks, 2015.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsify.recipe import Prune
from sparsify.sparsification.grouped import grouped_mask
from sparsify.sparsification.largest import block_sums, largest, largest_in_groups, magnitudes, spread


def magnitude_masks(weights: Sequence[Tensor], prune: Prune) -> list[Tensor]:
    """Where the entries are that stay.

    Args:
        weights: of one rule; with `scope: global` they share one threshold.
        prune: the share of zeros, and their structure.

    Raises:
        ShapeError: groups or blocks do not divide the shape of a weight.
    """
    group = prune.pattern.nm if prune.pattern is not None else None
    if group is not None and group.group is not None:
        along = 1 if prune.dim in ("in", 1, -1) else 0
        return [grouped_mask(w, group.keep, group.of, group.group, along=along) for w in weights]
    if group is not None:
        mode = prune.dim if isinstance(prune.dim, int) else 0 if prune.dim == "out" else -1
        return [largest_in_groups(magnitudes(weight), group.keep, group.of, mode) for weight in weights]
    block = (prune.pattern.block if prune.pattern is not None else None) or ()
    scores = [block_sums(magnitudes(weight), block) if block else magnitudes(weight) for weight in weights]
    share = 1.0 - (prune.sparsity or 0.0)
    if prune.scope == "global" and scores:
        kept = largest(torch.cat([score.flatten() for score in scores]), share)
        parts = kept.split([score.numel() for score in scores])
        masks = [part.view(score.shape) for part, score in zip(parts, scores, strict=True)]
    else:
        masks = [largest(score, share) for score in scores]
    return [spread(mask, block) for mask in masks]
