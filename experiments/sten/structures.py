"""Random zeros of a weight by structure: unstructured, groups n:m:g, blocks.

In: `zeros("n:m:g", 90, (3072, 768), seed=0)`. Out: boolean mask [3072, 768], `True` at a kept entry.
"""

from itertools import combinations
from typing import Final, Literal

import torch
from torch import Tensor

from sparsify import sparsifiers

Structure = Literal["unstructured", "n:m:g", "blocked"]
STRUCTURES: Final[tuple[Structure, ...]] = ("unstructured", "n:m:g", "blocked")
BLOCK: Final = 16
# By percentage of zeros: kept entries of a block, entries of a block, blocks with one pattern.
GROUPS: Final = {
    50: (2, 4, 16),
    60: (2, 5, 16),
    75: (1, 4, 16),
    80: (1, 5, 16),
    90: (1, 10, 16),
    95: (1, 20, 16),
    99: (1, 100, 4),
}
PERCENT: Final = tuple(GROUPS)


def zeros(structure: Structure, percent: int, shape: tuple[int, int], seed: int) -> Tensor:
    """Random boolean mask of a weight [outputs, inputs], `True` at kept entries."""
    draw = torch.Generator().manual_seed(seed)
    if structure == "n:m:g":
        return groups(*GROUPS[percent], shape, draw)
    size = BLOCK if structure == "blocked" else 1
    grid = torch.empty(-(-shape[0] // size), -(-shape[1] // size))
    kept = sparsifiers.RandomFraction(percent / 100, seed=seed).mask(grid)
    whole = kept.repeat_interleave(size, 0).repeat_interleave(size, 1)
    return whole[: shape[0], : shape[1]]


def groups(keep: int, of: int, group: int, shape: tuple[int, int], draw: torch.Generator) -> Tensor:
    """Random n:m:g mask: in each chunk of inputs, each choice of `keep` of `of` outputs occurs `group` times.

    Source: STen, section 4, performance: blocks along the outer mode (not summed over by the product).

    >>> int(groups(1, 2, 2, (2, 4), torch.Generator().manual_seed(0)).sum())
    4
    """
    ways = [[place in chosen for place in range(of)] for chosen in combinations(range(of), keep)]
    patterns = torch.tensor(ways)
    chunk = len(ways) * group
    strips, chunks = -(-shape[0] // of), -(-shape[1] // chunk)
    order = torch.rand(strips, chunks, chunk, generator=draw).argsort(-1) % len(ways)
    blocks = patterns[order.flatten(1)]  # [strips, inputs, of]
    return blocks.movedim(2, 1).reshape(strips * of, -1)[: shape[0], : shape[1]]


def stored_as(structure: Structure, percent: int) -> str:
    """Format matching a structure."""
    if structure == "n:m:g":
        keep, of, _ = GROUPS[percent]
        return f"i/{of}: dense, j: dense, i%{of}: grouped({keep})"
    return f"bcsr({BLOCK},{BLOCK})" if structure == "blocked" else "csr"
