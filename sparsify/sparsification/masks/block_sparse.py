"""The attention pattern built into Hugging Face's BigBird, `attention_type="block_sparse"`, for any length.

In: `block_sparse(4096, block=64, random=3)`. Out: the bias added to each score, a `SparseTensor` [4096, 4096] in blocks
of 64 x 64 with -inf as the fill.

Each block of queries attends to its neighbours, to the first and the last block, and to random blocks. Random blocks
count once per draw, in addition to the other blocks: a block with count `n` adds `log(n)` to its
scores. In evaluation all random blocks are the first block. Texts too short for the model have full attention.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sparsify.errors import ShapeError
from sparsify.sparsification.masks.blocks import assemble, stacked
from sparsify.sparsification.masks.parts import Grid
from sparsify.storage.tensor import SparseTensor

# Lengths of the paper, with draws in another order.
OF_THE_PAPER: Final = (1024, 3072, 4096)
FIRST_TOKENS: Final = 1024

Drawn = np.ndarray


def block_sparse(
    rows: int,
    columns: int | None = None,
    *,
    block: int = 64,
    random: int = 3,
    heads: int | None = None,
    seed: int = 0,
    longest: int = 4096,
    training: bool = False,
) -> SparseTensor:
    """The bias added to the scores of a layer of Hugging Face's BigBird, [rows, columns] or [heads, rows, columns].

    Args:
        rows, columns: numbers of queries and keys, equal.
        block: tokens on each side of a block.
        random: number of random blocks for each block of queries.
        heads: number of heads with separate draws; needed in training.
        seed: the number of the layer.
        longest: number of positions of the model.
        training: whether blocks are drawn; in evaluation each random block is the first one.

    Raises:
        ShapeError: other keys than queries, or too few blocks to draw from.

    Source: Zaheer et al., Big Bird, 2020.

    >>> block_sparse(48, block=4, random=1).to_dense()[8, ::4].exp().int()  # the third of twelve blocks
    tensor([2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1], dtype=torch.int32)
    """
    if columns not in (None, rows):
        raise ShapeError(f"{rows} queries and {columns} keys", "BigBird's own pattern is for as many of both")
    count = -(-rows // block)
    if rows <= (5 + 2 * random) * block:
        times = torch.ones(heads or 1, count, count)
    else:
        drawn = np.zeros((heads or 1, count - 2, random), dtype=np.int64)
        if training:
            drawn = draws(count * block, block, random, heads or 1, seed, longest)
        times = counted(torch.from_numpy(drawn), count)
    masks = [_with_counts(head_times, rows, block) for head_times in times]
    return masks[0] if heads is None else stacked(masks)


def counted(drawn: Tensor, count: int) -> Tensor:
    """Multiplicities of blocks of keys, [heads, count, count], for blocks drawn [heads, count - 2, random]."""
    i, j = torch.arange(count)[:, None], torch.arange(count)[None, :]
    fixed = ((i - j).abs() <= 1) | (i == 0) | (j == 0) | (i == count - 1) | (j == count - 1)
    times = fixed.float().repeat(len(drawn), 1, 1)
    times[:, 1:-1].scatter_add_(2, drawn, torch.ones(drawn.shape))
    return times


def _with_counts(times: Tensor, rows: int, block: int) -> SparseTensor:
    """The logarithms of the counts of blocks."""
    is_attended = times > 0
    pattern = assemble(rows, rows, (Grid(is_attended, block),), block).pattern
    return SparseTensor(pattern, times[is_attended].log().repeat_interleave(block * block), fill=-torch.inf)


def draws(length: int, block: int, random: int, heads: int, seed: int, longest: int) -> Drawn:
    """The random blocks of all blocks but the first and the last, [heads, blocks - 2, random].

    Raises:
        ShapeError: too few blocks to draw from.
    """
    generator = np.random.RandomState(seed)
    try:
        if length in OF_THE_PAPER:
            by_head = [_of_the_paper(longest // block, block, random, generator) for _ in range(heads)]
            return np.stack(by_head)[:, : length // block - 2]
        return _planned(length // block, random, heads, generator)
    except ValueError as error:
        raise ShapeError(
            f"{random} random blocks of {length // block} blocks of {block} tokens", "fewer random blocks"
        ) from error


def _of_the_paper(count: int, block: int, random: int, generator: np.random.RandomState) -> Drawn:
    """Draws from the blocks of the first tokens, excluding the neighbours of the block itself."""
    inner = np.arange(1, count - 1)
    last = FIRST_TOKENS // block - 1 if 2 * block < FIRST_TOKENS else count - 1
    drawn = np.zeros((count - 2, random), dtype=np.int64)
    for i in range(1, count - 1):
        before = max(i - 2, 0)
        if i >= count - 3 or before > last:
            choice = inner[:last]
        elif i + 1 == last:
            choice = inner[:before]
        else:
            choice = np.concatenate((inner[:before], inner[i + 1 : last]))
        drawn[i - 1] = generator.permutation(choice)[:random]
    return drawn


def _planned(count: int, random: int, heads: int, generator: np.random.RandomState) -> Drawn:
    """Draws from two parts of the text, each head in turn."""
    ends: tuple[int, ...]
    shares: tuple[int, ...]
    if 2 * random + 5 < count:
        ends, shares = (2 * random + 5, count), (random, 0)
    elif random + 5 < count:
        ends, shares = (random + 5, count), (random // 2, random - random // 2)
    else:
        ends, shares = (count,), (random,)
    drawn = np.zeros((heads, count, random), dtype=np.int64)
    starts, places = (0, *ends), np.cumsum((0, *shares))
    for row, part in _turns(ends, shares):
        for head_draws in drawn:
            chosen = _chosen(row, starts[part], ends[part], shares[part], generator)
            head_draws[row, places[part] : places[part + 1]] = chosen
    return drawn[:, 1:-1]


def _turns(ends: tuple[int, ...], shares: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Blocks of queries and the parts for their draws, in the order of the draws."""
    for part, end in enumerate(ends):
        start = ends[part - 1] if part else 1
        if part and shares[part]:
            yield from ((row, part) for row in range(1, start))
        for earlier in range(part):
            if shares[earlier]:
                yield from ((row, earlier) for row in range(start, end))
        if shares[part]:
            yield from ((row, part) for row in range(start, end))


def _chosen(row: int, start: int, end: int, share: int, generator: np.random.RandomState) -> Drawn:
    """The first blocks of a random order, excluding neighbours of `row` and the ends of the text."""
    near = {row - 1, row, row + 1, 0, end - 1}
    if row == 1:
        near.add(end - 2)
    if row == end - 2:
        near.add(1)
    order = generator.permutation(np.arange(start, end))
    return np.array([block for block in order if block not in near][:share])
