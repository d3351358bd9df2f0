"""n:m:g, neighbours in groups that share a pattern: `n` of every `m` stay, and the places of what stays are few.

In: a weight [4, 6], `keep=2, of=4, group=1`. Out: a mask in which each of the six columns has another two of the four
rows, those that keep the most.

A chunk is as many blocks of `m` side by side as there are ways to choose `n` of `m`, times `g`: each way occurs `g`
times in it, so that the blocks of a chunk, sorted by their patterns, are groups of `g` equal ones.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 4, performance:
n:m along the mode that the product does not sum over, in groups of equal size; the version of 2023 calls it n:m:g.
"""

from itertools import combinations
from math import comb

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsify.errors import ShapeError


def grouped_mask(weight: Tensor, keep: int, of: int, group: int, *, along: int = 0) -> Tensor:
    """The places of the entries that stay, of the shape of the weight.

    Patterns are given out greedily: the block and the pattern that keep the most of all that are left come first.

    Args:
        weight: [outputs, inputs, ...]; modes behind the second one count as inputs.
        keep: how many of a block stay.
        of: entries of a block; the last block is filled with zeros where it is not full.
        group: blocks of a chunk that share a pattern; the last chunk is filled with blocks of zeros.
        along: 0: blocks lie along the outputs, 1: along the inputs.

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
    largest = torch.finfo(scores.dtype).max / of  # a block of these has a sum
    scores = scores.clamp(max=largest).nan_to_num(nan=largest)
    scores = scores if along == 0 else scores.t()
    length, width = scores.shape
    if width < chunk:
        raise ShapeError(
            f"a chunk of {keep}:{of}:{group} is {comb(of, keep)} patterns of {group} blocks, {chunk} side by side, "
            f"and a weight {list(weight.shape)} has {width}; a smaller group, or `ignore`"
        )
    ways = [[place in chosen for place in range(of)] for chosen in combinations(range(of), keep)]
    patterns = torch.tensor(ways, dtype=torch.bool)
    padded = pad(scores, (0, -width % chunk, 0, -length % of))
    strips = padded.shape[0] // of
    blocks = padded.view(strips, of, -1, chunk).permute(0, 2, 3, 1)
    held = blocks @ patterns.t().to(blocks.dtype)  # [strips, chunks, chunk, ways]
    kept = patterns[given_out(held.flatten(0, 1), group)]
    mask = kept.view(blocks.shape).permute(0, 3, 1, 2).reshape(padded.shape)[:length, :width]
    return (mask if along == 0 else mask.t()).reshape(weight.shape)


def given_out(scores: Tensor, group: int) -> Tensor:
    """The pattern of each block [chunks, blocks], every pattern `group` times a chunk.

    Args:
        scores: [chunks, blocks, patterns], what a block keeps with a pattern.
        group: how many blocks there are for each pattern.

    >>> given_out(torch.tensor([[[3.0, 2.0], [9.0, 1.0]]]), 1)  # the second block loses more without the first pattern
    tensor([[1, 0]])
    """
    chunks, count, patterns = scores.shape
    order = scores.flatten(1).argsort(dim=1, descending=True, stable=True).t().contiguous()  # [pairs, chunks]
    pattern = order % patterns
    block = order.div_(patterns, rounding_mode="floor").add_(torch.arange(chunks) * count)
    place = pattern + torch.arange(chunks) * patterns  # of a pattern among those of all chunks
    found = torch.full((chunks * count,), -1)
    left = torch.full((chunks * patterns,), group)
    for blocks, places, wanted in zip(block, place, pattern, strict=True):  # one pair of each chunk at once
        own, room = found.index_select(0, blocks), left.index_select(0, places)
        is_given = (own < 0) & (room > 0)
        found.scatter_(0, blocks, torch.where(is_given, wanted, own))
        left.scatter_(0, places, room - is_given.to(room.dtype))
    return found.view(chunks, count)
