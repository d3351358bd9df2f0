"""Selections by score: the largest of all entries, of each row and of each group; ties go to the first entries.

In: scores [3072, 768] and a share. Out: truth values of the same shape, with an exact count of true ones. NaN scores
count as the largest.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sparsify.errors import ShapeError
from sparsify.storage.expand import count_true, true_places

# Maximum entries of a group for comparing all pairs.
COMPARED = 16
# For more scores, a sorted sample bounds the least selected score.
SAMPLED = 1 << 16
SAMPLE = 1 << 12
# Margin of the bound beyond the estimate of the sample, in standard deviations.
MARGIN = 6.0
# Entries compared with the bound at once.
PART = 1 << 18
# From entries to ordered scores, as `magnitudes`.
Function = Callable[[Tensor], Tensor]


def magnitudes(tensor: Tensor) -> Tensor:
    """The absolute values of a tensor, as ordered numbers; NaN becomes infinite."""
    values = tensor.detach()
    if values.dtype == torch.bool:
        return ordered(values)
    if not values.dtype.is_floating_point and not values.dtype.is_complex:
        # The least number of a dtype has no positive counterpart.
        return values.long().clamp(min=-torch.iinfo(torch.int64).max).abs()
    return ordered(values.abs())


def ordered(scores: Tensor) -> Tensor:
    """Scores with NaN replaced by infinity; truth values as numbers."""
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


def largest_of(
    entries: Tensor, count: int, among: Tensor | None = None, score: Function | None = None
) -> Tensor:
    """The places of the `count` largest scores, the first ones among equals.

    Args:
        entries: [*shape], scores, or the arguments of `score`.
        count: number of places, limited by the entries of `among`.
        among: bool [*shape], the entries to choose from; by default all.
        score: function from entries to ordered scores, as `magnitudes`, applied to parts of the entries.
    """
    flat = entries.flatten()
    of = None if among is None else among.flatten()
    most = flat.numel() if of is None else count_true(of)
    if count <= 0:
        return torch.zeros(entries.shape, dtype=torch.bool)
    if count >= most:
        return torch.ones(entries.shape, dtype=torch.bool) if among is None else among.clone()
    score = score or ordered
    places = _candidates(flat, of, most, count, score)
    if places is None:
        return _chosen(score(flat), count).view(entries.shape)
    return largest_listed(score(flat[places]), places, count, entries.shape)


def largest_listed(scores: Tensor, places: Tensor, count: int, shape: Sequence[int]) -> Tensor:
    """The places of the `count` largest scores of listed entries, bool [*shape], the first ones among equals.

    Args:
        scores: [n], the scores of the entries.
        places: int64 [n], the places of the entries in the flattened tensor, ascending.
        count: number of places.
        shape: shape of the tensor.

    >>> largest_listed(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 2, 3]), 2, (2, 2)).int().tolist()
    [[1, 0], [0, 1]]
    """
    mask = torch.zeros(shape, dtype=torch.bool)
    if count > 0:
        mask.view(-1)[places if count >= len(places) else places[_chosen(ordered(scores), count)]] = True
    return mask


def _chosen(values: Tensor, count: int) -> Tensor:
    """The `count` largest of ordered values, bool [n]; fewer than all."""
    threshold = _ranked(values, len(values) - count)
    chosen = values > threshold
    missing = count - count_true(chosen)
    chosen[true_places(values == threshold)[:missing]] = True
    return chosen


def _ranked(values: Tensor, rank: int) -> Tensor:
    """The value at a position, from 0, of the sorted values; a selection by numpy takes a tenth of torch's time."""
    if not values.is_cpu or values.dtype in (torch.bfloat16, torch.float16):
        return values.kthvalue(rank + 1).values
    return torch.from_numpy(np.partition(values.numpy(force=True), rank)[rank : rank + 1])


def _candidates(flat: Tensor, of: Tensor | None, most: int, count: int, score: Function) -> Tensor | None:
    """Ordered places that include the `count` largest of some entries; `None` for all places."""
    if most > SAMPLED and 2 * most > flat.numel():
        stride = flat.numel() // SAMPLE
        sample = flat[::stride] if of is None else flat[::stride][of[::stride]]
        expected = count / most * len(sample)
        rank = int(expected + MARGIN * (expected**0.5 + 1))
        if rank < len(sample) // 2:
            # NaN counts as the largest.
            bound = score(sample).sort(descending=True).values[rank]
            places = _not_below(flat, of, bound, score)
            if len(places) >= count:
                return places
    return None if of is None else true_places(of)


def _not_below(flat: Tensor, of: Tensor | None, bound: Tensor, score: Function) -> Tensor:
    """The places of scores not below a bound, in parts that stay in cache."""
    places = []
    for first in range(0, flat.numel(), PART):
        above = ~(score(flat[first : first + PART]) < bound)
        if of is not None:
            above.logical_and_(of[first : first + PART])
        places.append(true_places(above).add_(first))
    return torch.cat(places)


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
        ShapeError: the mode does not exist, or is not divisible into groups.
    """
    if not -scores.dim() <= mode < scores.dim():
        raise ShapeError(f"a weight {list(scores.shape)} has no mode {mode}; another `dim`, or `ignore`")
    rows = ordered(scores).transpose(mode, -1)
    if rows.shape[-1] % of:
        raise ShapeError(
            f"groups of {of} do not divide a weight {list(scores.shape)}; another pattern, or `ignore`"
        )
    groups = rows.reshape(-1, of)
    mask = _compared(groups, keep) if of <= COMPARED else largest_in_rows(groups, keep, -1)
    return mask.view(rows.shape).transpose(mode, -1)


def _compared(groups: Tensor, keep: int) -> Tensor:
    """The `keep` largest of each group [groups, entries], by the number of entries ranked before each."""
    entries = groups.t().contiguous()
    mask = torch.empty(groups.shape, dtype=torch.bool)
    for number, score in enumerate(entries):
        before = torch.zeros(len(groups), dtype=torch.int8)
        for other, rival in enumerate(entries):
            if other != number:
                before += rival >= score if other < number else rival > score
        mask[:, number] = before < keep
    return mask


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
    """The mask of entries from the mask of blocks."""
    for mode, size in enumerate(block):
        mask = mask.repeat_interleave(size, mode)
    return mask
