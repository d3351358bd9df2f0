"""Dropout whose numbers follow rows of the whole graph, so that it does not matter which process has a row.

In: own rows, and a seed that all processes have. Out: the rows with entries at 0; each entry's number is a hash of
seed, global row and place in the row.
"""

from typing import Final

import torch
from torch import Tensor

GOLDEN: Final = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND: Final = 0x94D049BB133111EB - (1 << 64)
BITS: Final = 24


class Draws:
    """The numbers of one part: a generator that is alike in all processes, and the rows.

    Args:
        seed: the same in all processes.
        rows: int64 [own], global numbers.
    """

    def __init__(self, seed: int, rows: Tensor) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = rows
        self.seed = 0

    def advance(self) -> None:
        """Takes the seed of the next call."""
        self.seed = int(torch.randint(1 << 62, (), generator=self.generator))


DRAWS: Final[dict[int, Draws]] = {}


def drop_rows(values: Tensor, share: float, mode: int | None, plan: int, number: int) -> Tensor:
    """`values / (1 - share)` with that share of entries at 0.

    Args:
        values: own rows along `mode`; of all processes alike where that is None.
        share: of entries that become 0.
        plan: of the part, as `halo.register` numbered it.
        number: of this dropout in the graph.
    """
    if share >= 1:
        return values * 0
    draws = DRAWS[plan]
    lead = 0 if mode is None else mode
    moved = values.transpose(0, lead) if values.dim() else values.reshape(1)
    rows = torch.arange(len(moved)) if mode is None else draws.rows
    width = moved[:1].numel() if len(moved) else 0
    places = rows.reshape(-1, 1) * max(width, 1) + torch.arange(width)
    drawn = mixed(mixed(places + draws.seed) + number) & ((1 << BITS) - 1)
    kept = (drawn >= int(share * (1 << BITS))).reshape(moved.shape)
    if values.dim():
        kept = kept.transpose(0, lead)
    return torch.where(kept.reshape(values.shape), values / (1 - share), 0)


def mixed(numbers: Tensor) -> Tensor:
    """A hash of int64 numbers.

    Source: the finaliser of SplitMix64, Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014.
    """
    found = numbers * GOLDEN
    found = (found ^ (found >> 30 & (1 << 34) - 1)) * FIRST
    found = (found ^ (found >> 27 & (1 << 37) - 1)) * SECOND
    return found ^ (found >> 31 & (1 << 33) - 1)
