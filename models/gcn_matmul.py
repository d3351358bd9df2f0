"""A graph convolutional network written as matrix products.

In: features [n, features] and a normalised adjacency [n, n], dense or sparse. Out: logits [n, classes].
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MatmulConv(nn.Module):
    """`adj @ (x @ weight) + bias`."""

    def __init__(self, features: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features, out))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        """Features [n, out] of features x [n, features] and adj [n, n]."""
        return adj @ (x @ self.weight) + self.bias


class MatmulGCN(nn.Module):
    """Two graph convolutions with relu between, in Kipf's own formula.

    Source: Kipf and Welling, Semi-supervised classification with graph convolutional networks, 2017.
    """

    def __init__(self, features: int, classes: int, hidden: int = 16, dropout: float = 0.5) -> None:
        super().__init__()
        self.conv1 = MatmulConv(features, hidden)
        self.conv2 = MatmulConv(hidden, classes)
        self.dropout = dropout

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        """Logits [n, classes] of features x [n, features] and adj [n, n]."""
        x = F.dropout(x, self.dropout, training=self.training)
        x = F.relu(self.conv1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        out: Tensor = self.conv2(x, adj)
        return out
