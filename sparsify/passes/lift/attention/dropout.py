"""Dropout inside of attention, by random numbers that are a function of a seed, the query and the key.

In: `%y = scaled_dot_product_attention(%q, %k, %v, dropout_p=0.1)` in training.
Out: `%s = randint(2**31 - 1, [batch, heads]); %y = dropped_attention(%q, %k, %v, %s, dropout_p=0.1)`.

Over the edges of a graph the receiving node is the query, the sending node the key: `dropped_edges`.

The seeds, one for each head of a call, come from torch's generator. The kernel draws the same numbers where it needs
them, forwards and backwards: which weights are dropped depends on seeds, queries and keys alone.
"""

from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.compiler.einsum.threefry import KEPT_BITS, WORD_BITS, kept_bits
from sparsify.passes.lift.attention.reference import attention_weights, weighted_sums

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


def drawn_factor(seed: str, rate: float) -> str:
    """The factor of a weight that may be dropped, in index notation over `i` and `j`.

    >>> drawn_factor("seed[h]", 0.5)
    'where(uniform(seed[h], i, j) < 0.5, 0, 2.0)'
    """
    return f"where(uniform({seed}, i, j) < {threshold(rate)!r}, 0, {kept_factor(rate)!r})"


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


def dropped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seed: Tensor,
    *,
    attn_mask: Tensor,
    dropout_p: float,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention some of whose weights are 0, the others divided by how many are left on average.

    Densely: what the kernel is compared with, and what runs where none can be built.

    Args:
        query: [.., queries, width]; `key` and `value` are like it.
        seed: integers, one for each [queries, keys] of weights.
        attn_mask: of truth values, or what is added to the scores.
        dropout_p: how likely a weight is dropped.
        scale: of the scores, `width ** -0.5` by default.
        enable_gqa: whether several heads of queries share one of keys and values.
        softcap, sinks: as those of `attention_weights`.

    Source: Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, Dropout, 2014.
    """
    if enable_gqa:
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    weights = attention_weights(query, key, attn_mask, scale=scale, softcap=softcap, sinks=sinks)
    kept = is_kept(seed, weights.shape, dropout_p) * kept_factor(dropout_p)
    return weighted_sums(weights * kept, value)


def is_kept(seed: Tensor, shape: torch.Size, rate: float) -> Tensor:
    """Which of the weights of a shape, [.., queries, keys], are not dropped."""
    rows, columns = (torch.arange(extent) for extent in shape[-2:])
    numbers = kept_bits(seed.long()[..., None, None], rows[:, None], columns) * 2.0**-KEPT_BITS
    kept: Tensor = numbers >= threshold(rate)
    return kept


def dropped_edges(weights: Tensor, seed: Tensor, rows: Tensor, columns: Tensor, *, rate: float) -> Tensor:
    """Weights of edges some of which are 0, the others divided by how many are left on average.

    Densely: what the kernel is compared with, and what runs where none can be built. Edges that join the same two
    nodes are dropped each by itself: the second one is drawn with another key, and so on.

    Args:
        weights: [edges, ..].
        seed: integers, one for each weight of an edge, [..].
        rows: the receiving node of each edge, [edges].
        columns: the sending one.
        rate: how likely a weight is dropped.

    Source: Velickovic et al., Graph attention networks, 2018, section 3.3: dropout of attention coefficients.
    """
    at = (-1, *[1] * seed.dim())
    keys = seed.long() + (repetitions(rows, columns) << WORD_BITS).view(at)
    numbers = kept_bits(keys, rows.long().view(at), columns.long().view(at)) * 2.0**-KEPT_BITS
    kept: Tensor = numbers >= threshold(rate)
    return weights * kept * kept_factor(rate)


def repetitions(rows: Tensor, columns: Tensor) -> Tensor:
    """How many earlier edges join the same two nodes, for each edge.

    >>> repetitions(torch.tensor([0, 1, 0, 0]), torch.tensor([2, 2, 2, 3])).tolist()
    [0, 0, 1, 0]
    """
    ordered, order = torch.sort((rows.long() << WORD_BITS) + columns.long(), stable=True)
    places = torch.arange(len(ordered))
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(is_first, places, 0).cummax(0).values
    return torch.empty_like(places).index_copy_(0, order, places - first)
