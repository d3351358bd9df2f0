"""Networks over graphs in small configurations, with random weights, and inputs for them.

In: `SUBJECTS["SAGE (torch_geometric)"]`. Out: as in `subjects`; a length is a number of nodes.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from experiments.coverage.subjects import Inputs, Subject
from sparsify.models import registry

FEATURES: Final = 12
HIDDEN: Final = 8
CLASSES: Final = 5
RELATIONS: Final = 3
# Degree histogram (nodes by number of neighbours), read by the scalers of PNA.
DEGREES: Final = (4, 5, 6, 8, 9, 5, 3)

Make = Callable[[], nn.Module]


class Network(nn.Module):
    """Graph layers with relu between consecutive layers; layers read node features and edges."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor | None = None) -> Tensor:
        """Node features [nodes, channels] after the last layer.

        Args:
            x: node features [nodes, FEATURES].
            edge_index: edges, [2, edges].
            edge_type: relation of each edge, for layers with relations, [edges].
        """
        read = (edge_index,) if edge_type is None else (edge_index, edge_type)
        for place, layer in enumerate(self.layers):
            x = layer(x.relu() if place else x, *read)
        return x


class After(nn.Module):
    """A linear layer followed by a graph layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(FEATURES, CLASSES), layer

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Node features after both layers."""
        found: Tensor = self.layer(self.linear(x), edge_index)
        return found


class Pooled(nn.Module):
    """A network over a batch of graphs, followed by the mean over the nodes of each graph."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.head = network, nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, graphs: Tensor) -> Tensor:
        """Rows of graphs; `batch` is the graph of each node, and `graphs` has a row for each graph."""
        pooled = layers().global_mean_pool(self.network(x, edge_index), batch, graphs.shape[0])
        found: Tensor = self.head(pooled)
        return found


class Relations(nn.Module):
    """Two kinds of nodes and three relations, each relation with a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        of = layers()
        self.layer = of.HeteroConv(
            {
                ("user", "rates", "item"): of.SAGEConv((FEATURES, FEATURES), CLASSES),
                ("item", "suits", "user"): of.GATConv((FEATURES, FEATURES), CLASSES, add_self_loops=False),
                ("user", "knows", "user"): of.GraphConv(FEATURES, CLASSES),
            }
        )

    def forward(
        self, users: Tensor, items: Tensor, rates: Tensor, suits: Tensor, knows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rows of users and of items, from the edges of each relation."""
        edges = {
            ("user", "rates", "item"): rates,
            ("item", "suits", "user"): suits,
            ("user", "knows", "user"): knows,
        }
        found = self.layer({"user": users, "item": items}, edges)
        return found["user"], found["item"]


def layers() -> Any:
    """Module of torch-geometric's layers."""
    import torch_geometric.nn

    return torch_geometric.nn


def both(kind: str, /, width: int = HIDDEN, **more: Any) -> Make:
    """Maker of two layers of one kind; `width` is the number of input channels of the second layer."""

    def make() -> nn.Module:
        layer = getattr(layers(), kind)
        return Network(layer(FEATURES, HIDDEN, **more), layer(width, CLASSES, **more))

    return make


def perceptrons(kind: str, parts: int = 1, **more: Any) -> Make:
    """Maker of two layers of one kind around perceptrons with inputs of `parts` concatenated rows."""

    def perceptron(features: int, out: int) -> nn.Module:
        return nn.Sequential(nn.Linear(parts * features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, out))

    def make() -> nn.Module:
        layer = getattr(layers(), kind)
        return Network(
            layer(perceptron(FEATURES, HIDDEN), **more), layer(perceptron(HIDDEN, CLASSES), **more)
        )

    return make


def pooled() -> nn.Module:
    """Two layers of GIN over a batch of graphs."""
    of = layers().GINConv
    return Pooled(Network(of(nn.Linear(FEATURES, HIDDEN), train_eps=True), of(nn.Linear(HIDDEN, HIDDEN))))


def relational() -> nn.Module:
    """Two RGCN layers: one weight matrix per relation."""
    of = layers().RGCNConv
    return Network(of(FEATURES, HIDDEN, RELATIONS), of(HIDDEN, CLASSES, RELATIONS))


def principal() -> nn.Module:
    """Two PNA layers with four aggregations and three scalers each."""
    of = layers().PNAConv
    kinds = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    degrees = torch.tensor(DEGREES)
    return Network(of(FEATURES, HIDDEN, *kinds, degrees), of(HIDDEN, CLASSES, *kinds, degrees))


def edges(batch: int, length: int) -> Inputs:
    """Random features of `length` nodes, and four edges a node."""
    draws = torch.Generator().manual_seed(length)
    x = torch.randn(length, FEATURES, generator=draws)
    return {"x": x, "edge_index": torch.randint(0, length, (2, 4 * length), generator=draws)}


def typed_edges(batch: int, length: int) -> Inputs:
    """Random node features, four edges a node, and the relation of each edge."""
    draws = torch.Generator().manual_seed(length + 1)
    return {**edges(batch, length), "edge_type": torch.randint(0, RELATIONS, (4 * length,), generator=draws)}


def graphs(batch: int, length: int) -> Inputs:
    """A batch of graphs as one disconnected graph: `length` nodes and more each, no edges between graphs."""
    found = [edges(1, length + place) for place in range(batch)]
    starts = torch.tensor([0, *(len(graph["x"]) for graph in found)]).cumsum(0)
    return {
        "x": torch.cat([graph["x"] for graph in found]),
        "edge_index": torch.cat(
            [graph["edge_index"] + start for graph, start in zip(found, starts, strict=False)], 1
        ),
        "batch": torch.arange(batch).repeat_interleave(starts.diff()),
        "graphs": torch.zeros(batch, 1),
    }


def relations(batch: int, length: int) -> Inputs:
    """Features of `length` users and half as many items, and edges of each relation."""
    draws = torch.Generator().manual_seed(length)
    count = {"user": length, "item": length // 2}

    def between(source: str, target: str) -> Tensor:
        return torch.stack(
            [torch.randint(0, count[kind], (3 * length,), generator=draws) for kind in (source, target)]
        )

    return {
        "users": torch.randn(count["user"], FEATURES, generator=draws),
        "items": torch.randn(count["item"], FEATURES, generator=draws),
        "rates": between("user", "item"),
        "suits": between("item", "user"),
        "knows": between("user", "user"),
    }


def own(name: str, **sizes: Any) -> Make:
    """Maker of a network of sparsify's model registry."""

    def make() -> nn.Module:
        found: nn.Module = registry.find(name).load()(FEATURES, CLASSES, **sizes)
        return found

    return make


def _over_graphs(
    name: str, make: Make, products: int, inputs: Callable[[int, int], Inputs] = edges, **more: Any
) -> Subject:
    given = "op:message_passing"
    return Subject(name, "torch_geometric", make, inputs, None, given=given, given_count=products, **more)


_HEADS: Final = {"heads": 2, "width": 2 * HIDDEN, "concat": True}
_ALL: Final = (
    _over_graphs("GCN", own("gcn", hidden=HIDDEN), 2),
    _over_graphs("GAT", own("gat", hidden=4, heads=2), 2),
    _over_graphs("GATv2", both("GATv2Conv", **_HEADS), 2),
    _over_graphs("TransformerConv", both("TransformerConv", **_HEADS), 2),
    _over_graphs("SAGE, mean", own("sage", hidden=HIDDEN), 2),
    _over_graphs("SAGE, max", both("SAGEConv", aggr="max"), 2),
    _over_graphs("GIN", own("gin", hidden=HIDDEN), 2),
    _over_graphs("APPNP", lambda: After(layers().APPNP(3, 0.1)), 3),
    _over_graphs("SGC", both("SGConv", K=2), 4),
    _over_graphs("Cheb", both("ChebConv", K=3), 4),
    _over_graphs("RGCN", relational, 6, typed_edges),
    _over_graphs("PNA", principal, 2),
    _over_graphs("EdgeConv, max", perceptrons("EdgeConv", 2, aggr="max"), 2),
    _over_graphs("Relations of two kinds of nodes", Relations, 3, relations),
    _over_graphs("GIN, batch of graphs", pooled, 3, graphs),
)
SUBJECTS: Final = {str(subject): subject for subject in _ALL}
