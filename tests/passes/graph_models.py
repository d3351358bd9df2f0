"""Small graph models that the pass tests share: PyG layers, hand-written layers, renamed ones."""

from functools import cache

import torch
from torch import nn
from torch.nn import functional as F


class TwoLayers(nn.Module):
    """Two layers of one kind with relu and dropout between them."""

    def __init__(self, layer, features=7, hidden=16, classes=3):
        super().__init__()
        self.c1 = layer(features, hidden)
        self.c2 = layer(hidden, classes)

    def forward(self, x, edge_index, edge_weight=None):
        extra = () if edge_weight is None else (edge_weight,)
        x = F.dropout(self.c1(x, edge_index, *extra).relu(), 0.5, training=self.training)
        return self.c2(x, edge_index, *extra)


class Kipf(nn.Module):
    """`adj @ (x @ w) + b`, by torch.sparse.mm."""

    def __init__(self, features, out):
        super().__init__()
        self.w = nn.Parameter(torch.randn(features, out) * 0.3)
        self.b = nn.Parameter(torch.randn(out))

    def forward(self, x, adj):
        return torch.sparse.mm(adj, x @ self.w) + self.b


class KipfMatmul(Kipf):
    """The same with `@`."""

    def forward(self, x, adj):
        return adj @ (x @ self.w) + self.b


class HandWritten(nn.Module):
    """A layer by `index_add_`, in place."""

    def __init__(self, features, out):
        super().__init__()
        self.lin = nn.Linear(features, out)

    def forward(self, x, edge_index):
        h = self.lin(x)
        out = torch.zeros(x.size(0), h.size(1))
        out.index_add_(0, edge_index[1], h[edge_index[0]])
        return out


def graph(nodes=20, edges=55, features=7, seed=0):
    """Features [nodes, features] and an edge_index [2, edges] with self loops and duplicates."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, features, generator=generator)
    edge_index = torch.randint(0, nodes, (2, edges), generator=generator)
    edge_index[:, 0] = 1
    edge_index[:, 1] = edge_index[:, 2]
    return x, edge_index


def adjacency(nodes=20, density=0.1, seed=0):
    """A dense matrix [nodes, nodes] that is mostly zero."""
    generator = torch.Generator().manual_seed(seed)
    full = torch.rand(nodes, nodes, generator=generator)
    return torch.where(full < density, full * 10, 0.0)


MESSAGES = {"schema": 1, "name": "own", "sparsify": [{"targets": ["op:message_passing"], "format": "csr"}]}


@cache
def applied(layer, **sizes):
    """A model in evaluation mode and its sparse form; tests share both and leave them as they are."""
    from sparsify.passes.apply import apply

    torch.manual_seed(0)
    model = TwoLayers(layer, **sizes).eval()
    return model, apply(model, MESSAGES, graph(features=sizes.get("features", 7)))
