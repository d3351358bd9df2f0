"""A graph with features, classes and a split of its nodes.

In: arrays of a generator or a file. Out: `Graph(name="cora", x=[2708, 1433], edge_index=[2, 10556], ...)`.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph for node classification.

    Attributes:
        name: the name of the data set.
        x: features [nodes, features] float32.
        edge_index: sources and targets [2, edges] int64; every edge in both directions, no self loops.
        y: classes [nodes] int64.
        train: training nodes, as positions [t] int64.
        val: validation nodes, for early stopping.
        test: test nodes, for the reported accuracy.
        classes: the number of classes.
        features: description of the features.
    """

    name: str
    x: Tensor
    edge_index: Tensor
    y: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    classes: int
    features: str

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.x.shape[0]

    @property
    def edges(self) -> int:
        """Number of directed edges."""
        return self.edge_index.shape[1]

    @cached_property
    def feature_density(self) -> float:
        """Fraction of nonzero features."""
        return float(torch.count_nonzero(self.x)) / max(1, self.x.numel())

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all arrays: graphs with equal fingerprints have equal contents."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (self.x, self.edge_index, self.y, self.train, self.val, self.test):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.nodes} nodes, {self.edges} directed edges, {self.x.shape[1]} features "
            f"({self.features}, density {self.feature_density:.3g}), {self.classes} classes"
        )


def normalised_rows(x: Tensor) -> Tensor:
    """`x` [n, f] with every row divided by its sum; rows of zeros are unchanged."""
    return x / x.sum(dim=1, keepdim=True).clamp(min=1.0)
