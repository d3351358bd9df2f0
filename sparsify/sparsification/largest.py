"""Selections by score: the largest of all entries, of each row and of each group, the first ones among equals.

In: scores [3072, 768] and a share. Out: truth values of the same shape, exactly so many true. Scores that are not a
number count as the largest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsify.errors import ShapeError

# Entries of a group up to which each one is compared with all others.
COMPARED = 16
# Of more scores than this a sample is sorted first: it bounds the least of those that are wanted.
SAMPLED = 1 << 16
SAMPLE = 1 << 12
# How much further than the sample says the bound lies, in standard deviations.
MARGIN = 6.0


def magnitudes(tensor: Tensor) -> Tensor:
    """The absolute values of a tensor, as numbers that have an order; those that are not a number are infinite."""
    found = tensor.detach()
    if found.dtype == torch.bool:
        return ordered(found)
    if not found.dtype.is_floating_point and not found.dtype.is_complex:
        # The least number of a dtype has no positive counterpart in it.
        return found.long().clamp(min=-torch.iinfo(torch.int64).max).abs()
    return ordered(found.abs())


def ordered(scores: Tensor) -> Tensor:
    """Scores of which those that are not a number are infinite; truth values as numbers."""
    if scores.dtype == torch.bool:
        return scores.to(torch.uint8)
    if not scores.dtype.is_floating_point or not bool(scores.sum().isnan()):
        return scores  # the sum of numbers is one, or infinite
    return scores.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)


def largest(scores: Tensor, share: float) -> Tensor:
    """The places of the largest `share` of the scores, the first ones among equals.

    >>> largest(torch.tensor([3.0, 1.0, 2.0, 1.0]), 0.75)
    tensor([ True,  True,  True, False])
    """
    return largest_of(scores, round(scores.numel() * share))


def largest_of(scores: Tensor, count: int, among: Tensor | None = None) -> Tensor:
    """The places of the `count` largest scores, the first ones among equals.

    Args:
        scores: [*shape].
        count: how many; of `among` no more than there are.
        among: bool [*shape], the entries to choose from; all without it.
    """
    flat = scores.flatten()
    of = None if among is None else among.flatten()
    entries = flat.numel() if of is None else int(of.count_nonzero())
    if count <= 0:
        return torch.zeros(scores.shape, dtype=torch.bool)
    if count >= entries:
        return torch.ones(scores.shape, dtype=torch.bool) if among is None else among.clone()
    places = _candidates(flat, of, entries, count)
    values = ordered(flat if places is None else flat[places])
    threshold = values.kthvalue(len(values) - count + 1).values
    chosen = values > threshold
    missing = count - int(chosen.count_nonzero())
    equals = (values == threshold).nonzero().flatten()
    chosen[equals[:missing]] = True
    if places is None:
        return chosen.view(scores.shape)
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    mask.view(-1)[places[chosen]] = True
    return mask


def _candidates(flat: Tensor, of: Tensor | None, entries: int, count: int) -> Tensor | None:
    """The places, in their order, of scores among which the `count` largest of some entries are; `None` for all."""
    if entries > SAMPLED and 2 * entries > flat.numel():
        stride = flat.numel() // SAMPLE
        sample = flat[::stride] if of is None else flat[::stride][of[::stride]]
        expected = count / entries * len(sample)
        rank = int(expected + MARGIN * (expected**0.5 + 1))
        if rank < len(sample) // 2:
            # What is not a number counts as the largest.
            bound = ordered(sample).sort(descending=True).values[rank]
            above = ~(flat < bound)
            places = (above if of is None else above.logical_and_(of)).nonzero().flatten()
            if len(places) >= count:
                return places
    return None if of is None else of.nonzero().flatten()


def largest_in_rows(scores: Tensor, count: int, mode: int) -> Tensor:
    """The places of the `count` largest of each row along a mode, the first ones among equals.

    >>> largest_in_rows(torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]]), 1, -1).int().tolist()
    [[0, 1, 0], [1, 0, 0]]
    """
    rows = ordered(scores).transpose(mode, -1)
    length = rows.shape[-1]
    if count >= length:
        return torch.ones(scores.shape, dtype=torch.bool)
    if count <= 0 or not rows.numel():
        return torch.zeros(scores.shape, dtype=torch.bool)
    threshold = rows.kthvalue(length - count + 1, keepdim=True).values
    mask = rows > threshold
    equals = rows == threshold
    left = count - mask.sum(-1, keepdim=True)
    return (mask | (equals & (equals.cumsum(-1) <= left))).transpose(mode, -1)


def largest_in_groups(scores: Tensor, keep: int, of: int, mode: int) -> Tensor:
    """The `keep` largest of every `of` neighbours along a mode, the first ones among equals.

    Raises:
        ShapeError: there is no such mode, or groups do not divide it.
    """
    if not -scores.dim() <= mode < scores.dim():
        raise ShapeError(f"a weight {list(scores.shape)} has no mode {mode}; another `dim`, or `ignore`")
    rows = ordered(scores).transpose(mode, -1)
    if rows.shape[-1] % of:
        raise ShapeError(
            f"groups of {of} do not divide a weight {list(scores.shape)}; another pattern, or `ignore`"
        )
    groups = rows.reshape(-1, of)
    kept = _compared(groups, keep) if of <= COMPARED else largest_in_rows(groups, keep, -1)
    return kept.view(rows.shape).transpose(mode, -1)


def _compared(groups: Tensor, keep: int) -> Tensor:
    """The `keep` largest of each group [groups, entries], by how many others come before each."""
    entries = groups.t().contiguous()
    kept = torch.empty(groups.shape, dtype=torch.bool)
    for own, score in enumerate(entries):
        before = torch.zeros(len(groups), dtype=torch.int8)
        for other, rival in enumerate(entries):
            if other != own:
                before += rival >= score if other < own else rival > score
        kept[:, own] = before < keep
    return kept


def block_sums(scores: Tensor, block: Sequence[int]) -> Tensor:
    """The sum of the scores in each block.

    Raises:
        ShapeError: blocks do not divide the shape.

    >>> block_sums(torch.ones(4, 6), (2, 3))
    tensor([[6., 6.],
            [6., 6.]])
    """
    if scores.dim() != len(block) or any(extent % size for extent, size in zip(scores.shape, block)):
        sizes = " x ".join(map(str, block))
        raise ShapeError(
            f"blocks of {sizes} do not divide a weight {list(scores.shape)}; another `block`, or `ignore`"
        )
    parts = [part for extent, size in zip(scores.shape, block) for part in (extent // size, size)]
    wide = scores if scores.dtype.is_floating_point else scores.long()
    return wide.reshape(parts).sum(tuple(range(1, 2 * len(block), 2)))


def spread(mask: Tensor, block: Sequence[int]) -> Tensor:
    """The mask of entries from that of blocks."""
    for mode, size in enumerate(block):
        mask = mask.repeat_interleave(size, mode)
    return mask
