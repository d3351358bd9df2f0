"""Random numbers drawn in kernels: a function of a seed and coordinates, with seeds from torch.

In: `drawn_factor("seed[h]", 0.5)`. Out: `where(uniform(seed[h], i, j) < 0.5, 0, 2.0)`, the factor of dropout.
"""

from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.compiler.einsum.counter_random import KEPT_BITS, WORD_BITS, kept_bits

# Exclusive bound of seeds: int32, as wider operands would halve the lanes of a kernel.
SEEDS: Final = 2**31 - 1


def threshold(rate: float) -> float:
    """The float32 threshold of random numbers: weights with smaller numbers are dropped, in every dtype.

    >>> threshold(0.5), threshold(0.1)
    (0.5, 0.10000000149011612)
    """
    return float(torch.tensor(rate, dtype=torch.float32))


def kept_factor(rate: float) -> float:
    """The factor of kept weights; 0 if all are dropped.

    >>> kept_factor(0.5), kept_factor(1.0)
    (2.0, 0.0)
    """
    return 1 / (1 - rate) if rate < 1 else 0.0


def drawn_factor(seed: str, rate: float, at: str = "i, j") -> str:
    """The dropout factor of a weight, in index notation; `at` are its coordinates.

    >>> drawn_factor("seed[h]", 0.5)
    'where(uniform(seed[h], i, j) < 0.5, 0, 2.0)'
    """
    return f"where(uniform({seed}, {at}) < {threshold(rate)!r}, 0, {kept_factor(rate)!r})"


def seeds(user: fx.Node, extents: list[Any], like: Tensor) -> fx.Node:
    """A node that draws a seed per batch and head, before `user`.

    Args:
        extents: extents of batch and heads, numbers or size nodes.
        like: tensor of the same extents.
    """
    with user.graph.inserting_before(user):
        node = user.graph.call_function(
            torch.ops.aten.randint.default, (SEEDS, extents), {"dtype": torch.int32}
        )
    node.meta["val"] = like.new_empty(like.shape, dtype=torch.int32)
    return node


def dropped_edges(
    values: Tensor, seed: Tensor, rows: Tensor | None = None, columns: Tensor | None = None, *, rate: float
) -> Tensor:
    """Values of edges after dropout, kept ones divided by the keep probability.

    Dense: the reference of the kernel, and its fallback. Without nodes a value is drawn by the number of its edge.
    Duplicate edges are dropped independently: the second one is drawn with another key, and so on.

    Args:
        values: [edges, ..].
        seed: integers, one for each value of an edge, [..].
        rows, columns: the receiving and the sending node of each edge, [edges].
        rate: probability of a drop.

    Source: Velickovic et al., Graph attention networks, 2018, section 3.3: dropout of attention coefficients.
    """
    at = (-1, *[1] * seed.dim())
    if rows is None or columns is None:
        rows, keys = torch.arange(len(values)), seed.long()
        columns = torch.zeros_like(rows)
    else:
        keys = seed.long() + (repetitions(rows, columns) << WORD_BITS).view(at)
    numbers = kept_bits(keys, rows.long().view(at), columns.long().view(at)) * 2.0**-KEPT_BITS
    mask: Tensor = numbers >= threshold(rate)
    return values * mask * kept_factor(rate)


def dropped_weights(weights: Tensor, seed: Tensor, *, rate: float) -> Tensor:
    """Weights of attention after dropout, kept ones divided by the keep probability.

    Args:
        weights: [.., queries, keys].
        seed: integers, one for each [queries, keys] of weights.
        rate: probability of a drop.
    """
    return weights * is_kept(seed, weights.shape, rate) * kept_factor(rate)


def is_kept(seed: Tensor, shape: torch.Size, rate: float) -> Tensor:
    """The mask of kept weights, [.., queries, keys]."""
    rows, columns = (torch.arange(extent) for extent in shape[-2:])
    numbers = kept_bits(seed.long()[..., None, None], rows[:, None], columns) * 2.0**-KEPT_BITS
    mask: Tensor = numbers >= threshold(rate)
    return mask


def repetitions(rows: Tensor, columns: Tensor) -> Tensor:
    """The number of earlier edges between the same two nodes, for each edge.

    >>> repetitions(torch.tensor([0, 1, 0, 0]), torch.tensor([2, 2, 2, 3])).tolist()
    [0, 0, 1, 0]
    """
    ordered, order = torch.sort((rows.long() << WORD_BITS) + columns.long(), stable=True)
    places = torch.arange(len(ordered))
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(is_first, places, 0).cummax(0).values
    return torch.empty_like(places).index_copy_(0, order, places - first)
