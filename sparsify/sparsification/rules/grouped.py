"""n:m:g sparsity, groups of neighbours with a shared pattern: `n` of every `m` stay, in few distinct patterns.

In: a weight [4, 6], `keep=2, of=4, group=1`. Out: a mask with a different pair of the four rows in each of the six
columns, the pairs with the largest kept sum.

A chunk has as many adjacent blocks of `m` as there are ways to choose `n` of `m`, times `g`: each way occurs `g`
times, so the blocks of a chunk, sorted by pattern, are groups of `g` equal ones.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 4, performance:
n:m along the mode that the product does not sum over, in groups of equal size; the version of 2023 calls it n:m:g.
"""

from itertools import combinations
from math import comb

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsify.errors import ShapeError


def grouped_mask(
    weight: Tensor, keep: int, of: int, group: int, *, along: int = 0, alive: Tensor | None = None
) -> Tensor:
    """The places of the kept entries, of the shape of the weight.

    Patterns are assigned greedily: the pair of a block and a pattern with the largest kept sum comes first.

    Args:
        weight: [outputs, inputs, ...]; modes behind the second one count as inputs.
        keep: number of kept entries of a block.
        of: entries of a block; a partial last block is filled with zeros.
        group: number of blocks of a chunk with the same pattern; the last chunk is filled with blocks of zeros.
        along: 0: blocks lie along the outputs, 1: along the inputs.
        alive: bool, of the shape of the weight, the entries to choose from; by default all. Others stay only if the
            counts of the patterns require it.

    Raises:
        ShapeError: the weight is a vector, empty, or smaller than a chunk.

    >>> grouped_mask(torch.tensor([[3.0, 1.0], [2.0, 9.0]]), 1, 2, 1).int()
    tensor([[1, 0],
            [0, 1]], dtype=torch.int32)
    """
    chunk = comb(of, keep) * group
    if weight.dim() < 2 or not weight.numel():
        raise ShapeError(
            f"{keep}:{of}:{group} is for matrices with entries, the weight is {list(weight.shape)}; `ignore` it"
        )
    scores = weight.detach().abs().flatten(1).to(torch.promote_types(weight.dtype, torch.float32))
    largest = torch.finfo(scores.dtype).max / of  # the sum of a block stays finite
    scores = scores.clamp(max=largest).nan_to_num(nan=largest)
    scores = scores if along == 0 else scores.t()
    length, width = scores.shape
    if width < chunk:
        raise ShapeError(
            f"a chunk of {keep}:{of}:{group} is {comb(of, keep)} patterns of {group} blocks, {chunk} side by side, "
            f"and a weight {list(weight.shape)} has {width}; a smaller group, or `ignore`"
        )
    ways = [[entry in chosen for entry in range(of)] for chosen in combinations(range(of), keep)]
    patterns = torch.tensor(ways, dtype=torch.bool)
    padded = pad(scores, (0, -width % chunk, 0, -length % of))
    strips = padded.shape[0] // of
    blocks = padded.view(strips, of, -1, chunk).permute(0, 2, 3, 1)
    kept_sums = blocks @ patterns.t().to(blocks.dtype)  # [strips, chunks, chunk, ways]
    assignment = assign_patterns(kept_sums.flatten(0, 1), group)
    entries = patterns[assignment]
    if alive is not None and not bool(alive.all()):
        lines = alive.flatten(1) if along == 0 else alive.flatten(1).t()
        living = pad(lines, (0, -width % chunk, 0, -length % of), value=True)
        dead = (~living).view(strips, of, -1, chunk).permute(0, 2, 3, 1).to(blocks.dtype)
        lost = dead @ patterns.t().to(blocks.dtype)
        entries = patterns[repaired(assignment, kept_sums.flatten(0, 1), lost.flatten(0, 1), group)]
    mask = entries.view(blocks.shape).permute(0, 3, 1, 2).reshape(padded.shape)[:length, :width]
    return (mask if along == 0 else mask.t()).reshape(weight.shape)


def assign_patterns(scores: Tensor, group: int) -> Tensor:
    """The pattern of each block [chunks, blocks], every pattern `group` times a chunk.

    Args:
        scores: [chunks, blocks, patterns], the kept sum of a block with a pattern.
        group: number of blocks for each pattern.

    >>> assign_patterns(torch.tensor([[[3.0, 2.0], [9.0, 1.0]]]), 1)  # block 2 loses more without pattern 1
    tensor([[1, 0]])
    """
    chunks, count, patterns = scores.shape
    order = scores.flatten(1).argsort(dim=1, descending=True, stable=True).t().contiguous()  # [pairs, chunks]
    pattern = order % patterns
    block = order.div_(patterns, rounding_mode="floor").add_(torch.arange(chunks) * count)
    slots = pattern + torch.arange(chunks) * patterns  # of a pattern, counted over all chunks
    assignment = torch.full((chunks * count,), -1)
    left = torch.full((chunks * patterns,), group)
    for blocks, places, offered in zip(block, slots, pattern, strict=True):  # one pair of each chunk at once
        current, room = assignment.index_select(0, blocks), left.index_select(0, places)
        is_given = (current < 0) & (room > 0)
        assignment.scatter_(0, blocks, torch.where(is_given, offered, current))
        left.scatter_(0, places, room - is_given.to(room.dtype))
    return assignment.view(chunks, count)


def repaired(assignment: Tensor, scores: Tensor, lost: Tensor, group: int) -> Tensor:
    """The patterns of blocks; chunks with lost entries are reassigned with the fewest lost entries.

    Args:
        assignment: [chunks, blocks], the greedy assignment.
        scores: [chunks, blocks, patterns], the kept sum of a block with a pattern.
        lost: number of entries of a pattern missing in a block, of the shape of `scores`.
        group: number of blocks for each pattern.

    Source: the linear assignment problem, Crouse, On implementing 2D rectangular assignment algorithms, 2016.

    >>> scores = torch.tensor([[[3.0, 2.0], [9.0, 1.0]]])
    >>> repaired(torch.tensor([[1, 0]]), scores, torch.tensor([[[0, 1], [1, 0]]]), 1)
    tensor([[0, 1]])
    """
    from scipy.optimize import linear_sum_assignment  # slow to import, and rarely needed

    result = assignment.clone()
    missing = lost.gather(2, assignment[..., None]).sum((1, 2))
    for at in missing.nonzero().flatten().tolist():
        sums = scores[at].double()
        most = 1 + sums.sum().item()  # more than the sum of all scores: lost entries have priority
        gain = (sums / most - lost[at]).repeat_interleave(group, dim=1)
        _, slots = linear_sum_assignment(gain.numpy(), maximize=True)
        result[at] = torch.from_numpy(slots) // group
    return result
