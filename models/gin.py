"""A graph isomorphism network.

In: features [n, features] and edges [2, e]. Out: logits [n, classes].
"""

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GINConv


class GIN(nn.Module):
    """Two layers with a small perceptron over the sum of a node and its neighbours.

    Source: Xu, Hu, Leskovec and Jegelka, How powerful are graph neural networks?, 2019.
    """

    def __init__(self, features: int, classes: int, hidden: int = 16, dropout: float = 0.5) -> None:
        super().__init__()
        self.conv1 = GINConv(perceptron(features, hidden), train_eps=True)
        self.conv2 = GINConv(perceptron(hidden, hidden), train_eps=True)
        self.out = nn.Linear(hidden, classes)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [n, classes] of features x [n, features] and edges [2, e]."""
        x = F.relu(self.conv1(x, edge_index))
        x = F.relu(self.conv2(x, edge_index))
        x = F.dropout(x, self.dropout, training=self.training)
        out: Tensor = self.out(x)
        return out


def perceptron(features: int, hidden: int) -> nn.Sequential:
    """Two linear layers with relu between them."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
