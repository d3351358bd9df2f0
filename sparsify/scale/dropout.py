"""Dropout with random numbers tied to rows and edges of the whole graph, independent of the owning process.

In: rows with their numbers in the whole graph, and a seed common to all processes. Out: the rows with entries at 0;
the random number of an entry is a hash of seed, row number and position in the row.
"""

from typing import Any, Final

import torch
from torch import Tensor

GOLDEN: Final = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND: Final = 0x94D049BB133111EB - (1 << 64)
BITS: Final = 24


class Draws:
    """The seeds of calls: a generator in the same state in all processes.

    Args:
        seed: seed common to all processes.
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.seed = 0

    def advance(self) -> None:
        """Takes the seed of the next call."""
        self.seed = int(torch.randint(1 << 62, (), generator=self.generator))


DRAWS: Final[dict[int, Draws]] = {}


@torch.library.custom_op("sparsify::drop_rows", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def drop_rows(
    values: Tensor, numbers: Tensor | None, share: float, mode: int, plan: int, number: int
) -> Tensor:
    """`values / (1 - share)` with a share of entries at 0.

    Args:
        values: own rows along `mode`, or a replicated tensor.
        numbers: int64, numbers of the rows in the whole graph; None for a replicated tensor.
        share: share of entries set to 0.
        mode: mode of the rows.
        plan: plan of the part, as numbered by `halo.register`.
        number: number of the dropout in the graph.
    """
    return dropped(values, numbers, share, mode, DRAWS[plan].seed, number)


@drop_rows.register_fake
def _dropped(
    values: Tensor, numbers: Tensor | None, share: float, mode: int, plan: int, number: int
) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


def _keep_seed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Saves the seed of the call for the gradient."""
    _, numbers, ctx.share, ctx.mode, plan, ctx.number = inputs
    ctx.seed = DRAWS[plan].seed
    ctx.save_for_backward(numbers)


def _drop_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    """The gradient with the same entries at 0."""
    (numbers,) = ctx.saved_tensors
    found = dropped(gradient, numbers, ctx.share, ctx.mode, ctx.seed, ctx.number)
    return found, None, None, None, None, None


torch.library.register_autograd("sparsify::drop_rows", _drop_backward, setup_context=_keep_seed)


def dropped(
    values: Tensor, numbers: Tensor | None, share: float, mode: int, seed: int, number: int
) -> Tensor:
    """Dropout by a seed in place of a generator."""
    if share >= 1:
        return values * 0
    moved = values.transpose(0, mode) if values.dim() else values.reshape(1)
    rows = torch.arange(len(moved)) if numbers is None else numbers
    width = moved[:1].numel() if len(moved) else 0
    places = rows.reshape(-1, 1) * max(width, 1) + torch.arange(width)
    drawn = mixed(mixed(places + seed) + number) & ((1 << BITS) - 1)
    kept = (drawn >= int(share * (1 << BITS))).reshape(moved.shape)
    if values.dim():
        kept = kept.transpose(0, mode)
    return torch.where(kept.reshape(values.shape), values / (1 - share), 0).contiguous()


def mixed(numbers: Tensor) -> Tensor:
    """A hash of int64 numbers.

    Source: the finaliser of SplitMix64, Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014.
    """
    found = numbers * GOLDEN
    found = (found ^ (found >> 30 & (1 << 34) - 1)) * FIRST
    found = (found ^ (found >> 27 & (1 << 37) - 1)) * SECOND
    return found ^ (found >> 31 & (1 << 33) - 1)
