"""Random numbers that kernels draw: a function of a seed and of coordinates, with seeds from torch's generator.

In: `drawn_factor("seed[h]", 0.5)`. Out: `where(uniform(seed[h], i, j) < 0.5, 0, 2.0)`, what dropout multiplies with.
"""

from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.compiler.einsum.threefry import KEPT_BITS, kept_bits

# Seeds are drawn below it: int32, as operands of wider entries would halve the lanes of a kernel.
SEEDS: Final = 2**31 - 1


def threshold(rate: float) -> float:
    """The float32 that random numbers are compared with: weights below it are dropped, in every dtype the same.

    >>> threshold(0.5), threshold(0.1)
    (0.5, 0.10000000149011612)
    """
    return float(torch.tensor(rate, dtype=torch.float32))


def kept_factor(rate: float) -> float:
    """What weights that are not dropped are multiplied with; 0 where all are.

    >>> kept_factor(0.5), kept_factor(1.0)
    (2.0, 0.0)
    """
    return 1 / (1 - rate) if rate < 1 else 0.0


def drawn_factor(seed: str, rate: float, at: str = "i, j") -> str:
    """The factor of a weight that may be dropped, in index notation; `at` are its coordinates.

    >>> drawn_factor("seed[h]", 0.5)
    'where(uniform(seed[h], i, j) < 0.5, 0, 2.0)'
    """
    return f"where(uniform({seed}, {at}) < {threshold(rate)!r}, 0, {kept_factor(rate)!r})"


def seeds(user: fx.Node, extents: list[Any], like: Tensor) -> fx.Node:
    """A node that draws a seed for each batch and head, before `user`.

    Args:
        extents: of batch and heads, numbers or size nodes.
        like: a tensor of these extents.
    """
    with user.graph.inserting_before(user):
        node = user.graph.call_function(
            torch.ops.aten.randint.default, (SEEDS, extents), {"dtype": torch.int32}
        )
    node.meta["val"] = like.new_empty(like.shape, dtype=torch.int32)
    return node


def dropped_edges(values: Tensor, seed: Tensor, *, rate: float) -> Tensor:
    """Values of edges some of which are 0, the others divided by how many are left on average.

    Densely: what the kernel is compared with, and what runs where none can be built.

    Args:
        values: [edges, ..].
        seed: integers, one for each value of an edge, [..].
        rate: how likely a value is dropped.

    Source: Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, Dropout, 2014.
    """
    edges = torch.arange(len(values)).view(-1, *[1] * seed.dim())
    numbers = kept_bits(seed.long(), edges, torch.zeros_like(edges)) * 2.0**-KEPT_BITS
    return values * (numbers >= threshold(rate)) * kept_factor(rate)
