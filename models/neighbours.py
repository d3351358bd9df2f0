"""Sampled neighbourhoods of a graph: what a mini-batch of nodes needs of it.

In: `NeighbourSampler(edge_index, nodes, (10, 10), seed=0)` and the nodes of a batch. Out: the nodes that their
neighbourhoods have, the batch first, and the sampled edges between them by their new numbers.

torch-geometric's own sampler needs pyg-lib, which has no build for most machines.

Source: Hamilton, Ying and Leskovec, Inductive representation learning on large graphs, 2017, section 3.1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """A part of a graph.

    Attributes:
        nodes: int64 [n], the numbers of its nodes in the graph; those that were asked for come first, in their order.
        edge_index: int64 [2, e], source and target of the sampled edges, as places in `nodes`.
    """

    nodes: Tensor
    edge_index: Tensor


class NeighbourSampler:
    """Draws for each node of a batch some of its neighbours, for each of them some of theirs, and so on.

    Neighbours of a node are drawn once, in the step in which it is met first.

    Args:
        edge_index: int64 [2, edges], source and target.
        nodes: how many nodes the graph has.
        fanout: how many neighbours of a node are drawn in each step, without repetition; all where it has fewer.
        seed: of the draws.
    """

    def __init__(self, edge_index: Tensor, nodes: int, fanout: Sequence[int], seed: int = 0) -> None:
        source, target = edge_index.numpy()
        order = np.argsort(target, kind="stable")
        self.sources = source[order]
        self.starts = np.concatenate([[0], np.bincount(target, minlength=nodes).cumsum()])
        self.fanout, self.drawn = tuple(fanout), np.random.default_rng(seed)

    def sample(self, batch: Tensor) -> Neighbourhood:
        """The neighbourhood of the nodes of a batch, int64 [b], each once."""
        nodes = batch.numpy()
        places = np.full(len(self.starts) - 1, -1, dtype=np.int64)
        places[nodes] = np.arange(len(nodes))
        edges: list[np.ndarray] = []
        first = 0
        for most in self.fanout:
            targets = nodes[first:]
            rows, sources = self._neighbours(targets, most)
            new = np.unique(sources[places[sources] < 0])
            places[new] = len(nodes) + np.arange(len(new))
            edges.append(np.stack([places[sources], first + rows]))
            first = len(nodes)
            nodes = np.concatenate([nodes, new])
        return Neighbourhood(torch.from_numpy(nodes), torch.from_numpy(np.concatenate(edges, axis=1)))

    def batches(self, nodes: Tensor, size: int) -> Iterator[tuple[Tensor, Neighbourhood]]:
        """The nodes in batches of a size, in an order that is drawn anew, each with its neighbourhood."""
        order = torch.from_numpy(self.drawn.permutation(nodes.numpy()))
        for batch in order.split(size):
            yield batch, self.sample(batch)

    def _neighbours(self, targets: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws at most so many neighbours of each target: the places of targets, and the neighbours [drawn]."""
        begins = self.starts[targets]
        counts = self.starts[targets + 1] - begins
        rows = np.repeat(np.arange(len(targets)), counts)
        within = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
        # The first `most` of the neighbours in an order by random numbers, row by row.
        order = np.lexsort([self.drawn.random(len(rows)), rows])
        kept = order[within < most]
        return rows[kept], self.sources[begins[rows[kept]] + within[kept]]
