"""GraphSAGE with mean aggregation.

In: features [n, features] and edges [2, e]. Out: logits [n, classes].
"""

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv


class SAGE(nn.Module):
    """Two layers; each adds linear transforms of a node and of the mean of its neighbours.

    Source: Hamilton, Ying and Leskovec, Inductive representation learning on large graphs, 2017.
    """

    def __init__(self, features: int, classes: int, hidden: int = 16, dropout: float = 0.5) -> None:
        super().__init__()
        self.conv1 = SAGEConv(features, hidden)
        self.conv2 = SAGEConv(hidden, classes)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [n, classes] of features x [n, features] and edges [2, e]."""
        x = F.dropout(x, self.dropout, training=self.training)
        x = F.relu(self.conv1(x, edge_index))
        x = F.dropout(x, self.dropout, training=self.training)
        out: Tensor = self.conv2(x, edge_index)
        return out
