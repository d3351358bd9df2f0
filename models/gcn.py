"""A graph convolutional network.

In: features [n, features] and edges [2, e]. Out: logits [n, classes].
"""

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv


class GCN(nn.Module):
    """Two graph convolutions with relu between them.

    Source: Kipf and Welling, Semi-supervised classification with graph convolutional networks, 2017.
    """

    def __init__(self, features: int, classes: int, hidden: int = 16, dropout: float = 0.5) -> None:
        super().__init__()
        self.conv1 = GCNConv(features, hidden)
        self.conv2 = GCNConv(hidden, classes)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [n, classes] of features x [n, features] and edges [2, e]."""
        x = F.dropout(x, self.dropout, training=self.training)
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, self.dropout, training=self.training)
        out: Tensor = self.conv2(x, edge_index)
        return out
