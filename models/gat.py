"""A graph attention network.

In: features [n, features] and edges [2, e]. Out: logits [n, classes].
"""

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv


class GAT(nn.Module):
    """Two graph attention layers, the first with concatenated heads.

    Source: Velickovic, Cucurull, Casanova, Romero, Lio and Bengio, Graph attention networks, 2018.
    """

    def __init__(
        self, features: int, classes: int, hidden: int = 8, heads: int = 8, dropout: float = 0.6
    ) -> None:
        super().__init__()
        self.conv1 = GATConv(features, hidden, heads, dropout=dropout)
        self.conv2 = GATConv(hidden * heads, classes, concat=False, dropout=dropout)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [n, classes] of features x [n, features] and edges [2, e]."""
        x = F.dropout(x, self.dropout, training=self.training)
        x = F.elu(self.conv1(x, edge_index))
        x = F.dropout(x, self.dropout, training=self.training)
        out: Tensor = self.conv2(x, edge_index)
        return out
