"""Pruning by magnitude: the smallest entries become zero.

In: weights and `Prune(method="magnitude", sparsity=0.9)`. Out: a mask for each, `True` where an entry is kept.

Source: Han, Pool, Tran and Dally, Learning both Weights and Connections for Efficient Neural Networks, 2015.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsify.errors import ShapeError
from sparsify.recipe import Prune
from sparsify.sparsification.grouped import grouped_mask


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
        return [_groups(weight, group.keep, group.of, prune.dim) for weight in weights]
    block = (prune.pattern.block if prune.pattern is not None else None) or ()
    scores = [_scores(weight, block) for weight in weights]
    share = 1.0 - (prune.sparsity or 0.0)
    if prune.scope == "global" and scores:
        kept = largest(torch.cat([score.flatten() for score in scores]), share)
        parts = kept.split([score.numel() for score in scores])
        masks = [part.view(score.shape) for part, score in zip(parts, scores, strict=True)]
    else:
        masks = [largest(score, share) for score in scores]
    return [_spread(mask, block) for mask in masks]


def largest(scores: Tensor, share: float) -> Tensor:
    """Where the largest `share` of the scores are, the first ones among equals.

    >>> largest(torch.tensor([3.0, 1.0, 2.0, 1.0]), 0.75)
    tensor([ True,  True,  True, False])
    """
    flat = scores.flatten().nan_to_num(nan=torch.inf, posinf=torch.inf)
    kept = round(flat.numel() * share)
    if kept == 0:
        return torch.zeros(scores.shape, dtype=torch.bool)
    threshold = flat.kthvalue(flat.numel() - kept + 1).values
    mask = flat > threshold
    equals = (flat == threshold).nonzero().flatten()
    mask[equals[: kept - int(mask.count_nonzero())]] = True
    return mask.view(scores.shape)


def _scores(weight: Tensor, block: Sequence[int]) -> Tensor:
    """The magnitude of each entry, of a block the sum of those in it."""
    if not block:
        return weight.detach().abs()
    height, width = block
    if weight.dim() != 2 or weight.shape[0] % height or weight.shape[1] % width:
        raise ShapeError(
            f"blocks of {height} x {width} do not divide a weight {list(weight.shape)}; another `block`, or `ignore`"
        )
    rows, columns = weight.shape[0] // height, weight.shape[1] // width
    return weight.detach().abs().view(rows, height, columns, width).sum((1, 3))


def _spread(mask: Tensor, block: Sequence[int]) -> Tensor:
    """The mask of entries from that of blocks."""
    for mode, size in enumerate(block):
        mask = mask.repeat_interleave(size, mode)
    return mask


def _groups(weight: Tensor, keep: int, of: int, dim: int | str | None) -> Tensor:
    """The `keep` largest of every `of` neighbours along a mode, the inputs of a layer without another one."""
    mode = dim if isinstance(dim, int) else 0 if dim == "out" else -1
    if not -weight.dim() <= mode < weight.dim():
        raise ShapeError(f"a weight {list(weight.shape)} has no mode {mode}; another `dim`, or `ignore`")
    turned = weight.detach().abs().transpose(mode, -1)
    if turned.shape[-1] % of:
        raise ShapeError(
            f"groups of {of} do not divide a weight {list(weight.shape)}; another pattern, or `ignore`"
        )
    grouped = turned.reshape(-1, of)
    order = torch.argsort(grouped, dim=1, descending=True, stable=True)
    mask = torch.zeros_like(grouped, dtype=torch.bool).scatter_(1, order[:, :keep], True)
    return mask.view(turned.shape).transpose(mode, -1)
