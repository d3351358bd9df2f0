"""Generated graph with power-law degrees and classes correlated with edges and words; nothing is downloaded.

In: `synthetic(seed=0)`. Out: a `Graph` of about PubMed's size, the same bits on every run.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from sparsify.models.data.graph import Graph, normalised_rows

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

DEGREE_EXPONENT = 2.5
LARGEST_PROPENSITY = 60.0
SAME_CLASS = 0.75
WORD_EXPONENT = 0.5
TOPIC_WORDS = 0.10
TOPIC_FACTOR = 2.2
WORD_DENSITY = 0.09


def synthetic(
    nodes: int = 19_717, edges: int = 88_648, features: int = 500, classes: int = 3, seed: int = 0
) -> Graph:
    """A degree-corrected stochastic block model with class-dependent bags of words as node features.

    Each end of an edge is drawn with a probability that follows a power law over the nodes, and most edges
    stay inside a class. Every class prefers a tenth of the words. The split is that of the citation graphs:
    20 training nodes of each class, 500 validation nodes, 1000 test nodes (fewer in a small graph).

    Args:
        nodes: n of x [n, features].
        edges: directed edges, twice the undirected ones.
        features: words.
        classes: blocks of the model.
        seed: seed of all random numbers.

    Source: Karrer and Newman, Stochastic blockmodels and community structure in networks, 2011.

    >>> synthetic(nodes=100, edges=400, features=10).edge_index.shape
    torch.Size([2, 400])
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=nodes)
    low, high = undirected_edges(rng, y, edges // 2)
    x = normalised_rows(torch.from_numpy(bags_of_words(rng, y, features)))
    train, val, test = split(rng, y)
    return Graph(
        name="synthetic",
        x=x,
        edge_index=torch.from_numpy(both_directions(low, high, nodes)),
        y=torch.from_numpy(y),
        train=torch.from_numpy(train),
        val=torch.from_numpy(val),
        test=torch.from_numpy(test),
        classes=classes,
        features="generated bags of words",
    )


def undirected_edges(rng: np.random.Generator, y: Integers, count: int) -> tuple[Integers, Integers]:
    """`count` distinct edges (low, high) with low < high between nodes of classes `y`."""
    nodes = len(y)
    possible = nodes * (nodes - 1) // 2
    if count > possible // 4:
        raise ValueError(f"{nodes} nodes are too few for {count} undirected edges; at most {possible // 4}")
    propensity = np.minimum((1.0 - rng.random(nodes)) ** (-1.0 / (DEGREE_EXPONENT - 1.0)), LARGEST_PROPENSITY)
    keys = np.empty(0, dtype=np.int64)
    while len(keys) < count:
        drawn = drawn_pairs(rng, y, propensity, 2 * (count - len(keys)))
        joined = np.concatenate([keys, drawn])
        _, first = np.unique(joined, return_index=True)
        keys = joined[np.sort(first)]  # in the order of drawing, so that a cut is unbiased
    low, high = np.divmod(keys[:count], nodes)
    return low, high


def drawn_pairs(rng: np.random.Generator, y: Integers, propensity: Floats, count: int) -> Integers:
    """About `count` pairs of distinct nodes, each as `low * nodes + high`; pairs may repeat."""
    nodes = len(y)
    everywhere = np.cumsum(propensity)
    first = drawn(rng, everywhere, np.zeros(count), np.full(count, everywhere[-1]))
    by_class = np.argsort(y, kind="stable")
    inside = np.cumsum(propensity[by_class])
    starts = np.searchsorted(y[by_class], np.arange(y.max() + 2))
    bounds = np.concatenate([[0.0], inside])[starts]
    same = by_class[drawn(rng, inside, bounds[y[first]], bounds[y[first] + 1])]
    other = drawn(rng, everywhere, np.zeros(count), np.full(count, everywhere[-1]))
    second = np.where(rng.random(count) < SAME_CLASS, same, other)
    apart = first != second
    low, high = np.minimum(first, second)[apart], np.maximum(first, second)[apart]
    return np.asarray(low * nodes + high, dtype=np.int64)


def drawn(rng: np.random.Generator, cumulative: Floats, low: Floats, high: Floats) -> Integers:
    """Random positions of `cumulative` [n] between the sums `low` and `high`, with probabilities by step height."""
    found = np.searchsorted(cumulative, low + rng.random(len(low)) * (high - low), side="right")
    return np.minimum(found, len(cumulative) - 1)


def both_directions(low: Integers, high: Integers, nodes: int) -> Integers:
    """Edges in both directions [2, 2 e], sorted by source, then target."""
    keys = np.sort(np.concatenate([low * nodes + high, high * nodes + low]))
    return np.stack(np.divmod(keys, nodes))


def bags_of_words(rng: np.random.Generator, y: Integers, features: int) -> NDArray[np.float32]:
    """Random bags of words [nodes, features]; about one in eleven entries is 1."""
    common = (np.arange(features) + 1.0) ** -WORD_EXPONENT
    common *= WORD_DENSITY / common.mean()
    likelihood = np.empty((y.max() + 1, features))
    for block in range(len(likelihood)):
        topic = rng.permutation(features)[: max(1, round(TOPIC_WORDS * features))]
        likelihood[block] = common
        likelihood[block, topic] *= TOPIC_FACTOR
    likelihood *= WORD_DENSITY / likelihood.mean(axis=1, keepdims=True)
    words = rng.random((len(y), features), dtype=np.float32)
    return (words < likelihood.astype(np.float32)[y]).astype(np.float32)


def split(rng: np.random.Generator, y: Integers) -> tuple[Integers, Integers, Integers]:
    """Nodes to train (20 of each class), validate (500) and test (1000); fewer of a small graph."""
    order = rng.permutation(len(y))
    most = max(1, len(y) // (2 * (int(y.max()) + 1)))
    train = np.concatenate([order[y[order] == block][: min(20, most)] for block in range(int(y.max()) + 1)])
    rest = order[~np.isin(order, train)]
    validate = min(500, len(rest) // 3)
    return np.sort(train), np.sort(rest[:validate]), np.sort(rest[validate : validate + 1000])
