"""Neighbour sampling: subgraphs for mini-batches of nodes.

In: `NeighbourSampler(edge_index, nodes, (10, 10), seed=0)` and the nodes of a batch. Out: the nodes of the sampled
neighbourhoods, the batch first, and the sampled edges, renumbered.

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
        nodes: int64 [n], node numbers in the graph; the nodes of the batch come first, in order.
        edge_index: int64 [2, e], source and target of the sampled edges, as positions in `nodes`.
    """

    nodes: Tensor
    edge_index: Tensor


class NeighbourSampler:
    """Samples neighbours of a batch's nodes, neighbours of these neighbours, and so on, hop by hop.

    The neighbours of a node are sampled once, in the hop after its first occurrence.

    Args:
        edge_index: int64 [2, edges], source and target.
        nodes: number of nodes of the graph.
        fanout: sampled neighbours of a node by hop, without repetition; all neighbours of nodes with fewer.
        seed: seed of the samples.
    """

    def __init__(self, edge_index: Tensor, nodes: int, fanout: Sequence[int], seed: int = 0) -> None:
        source, target = edge_index.numpy()
        order = np.argsort(target, kind="stable")
        self.sources = source[order]
        self.starts = np.concatenate([[0], np.bincount(target, minlength=nodes).cumsum()])
        self.fanout, self.drawn = tuple(fanout), np.random.default_rng(seed)

    def sample(self, batch: Tensor) -> Neighbourhood:
        """Neighbourhood of the distinct nodes of a batch, int64 [b]."""
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
        """Batches of `size` nodes in random order, each with its neighbourhood."""
        order = torch.from_numpy(self.drawn.permutation(nodes.numpy()))
        for batch in order.split(size):
            yield batch, self.sample(batch)

    def _neighbours(self, targets: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Samples at most `most` neighbours of each target: positions of targets, and neighbours [drawn]."""
        begins = self.starts[targets]
        counts = self.starts[targets + 1] - begins
        rows = np.repeat(np.arange(len(targets)), counts)
        within = np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)
        # The first `most` of the neighbours in an order by random numbers, row by row.
        order = np.lexsort([self.drawn.random(len(rows)), rows])
        kept = order[within < most]
        return rows[kept], self.sources[begins[rows[kept]] + within[kept]]
