"""Layers of torch-geometric in their sparse form: found, and equal to themselves, results and gradients."""

import warnings

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn

from sparsify.passes.apply import apply

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric import backend
    from torch_geometric import nn as geometric
    from torch_geometric.data import Batch, Data

DEGREES = torch.tensor([1, 3, 5, 6, 2, 1, 1])


def perceptron(features, out):
    return nn.Sequential(nn.Linear(features, out), nn.ReLU(), nn.Linear(out, out))


# Layers, the regions that they become and the number of features of edges.
LAYERS = {
    "SAGEConv mean": (lambda: geometric.SAGEConv(7, 4), 1, 0),
    "SAGEConv max": (lambda: geometric.SAGEConv(7, 4, aggr="max"), 1, 0),
    "SAGEConv of several": (lambda: geometric.SAGEConv(7, 4, aggr=["mean", "max", "std"]), 1, 0),
    "GINConv": (lambda: geometric.GINConv(perceptron(7, 4), train_eps=True), 1, 0),
    "GINEConv": (lambda: geometric.GINEConv(perceptron(7, 4), edge_dim=3), 1, 3),
    "APPNP": (lambda: geometric.APPNP(3, 0.1), 3, 0),
    "SGConv": (lambda: geometric.SGConv(7, 4, K=2), 2, 0),
    "ChebConv": (lambda: geometric.ChebConv(7, 4, K=3), 2, 0),
    "PNAConv": (
        lambda: geometric.PNAConv(
            7, 8, ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"], DEGREES
        ),
        1,
        0,
    ),
    "EdgeConv max": (lambda: geometric.EdgeConv(perceptron(14, 4), aggr="max"), 1, 0),
    "ResGatedGraphConv": (lambda: geometric.ResGatedGraphConv(7, 4), 1, 0),
    "FiLMConv": (lambda: geometric.FiLMConv(7, 4), 1, 0),
    "GATConv, features of edges": (lambda: geometric.GATConv(7, 4, heads=2, edge_dim=3), 2, 3),
    "TransformerConv, features of edges": (
        lambda: geometric.TransformerConv(7, 4, heads=2, edge_dim=3),
        1,
        3,
    ),
}


class Layer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, edge_index):
        return self.layer(x, edge_index)


class LayerOfEdges(Layer):
    def forward(self, x, edge_index, edges):
        return self.layer(x, edge_index, edges)


class Relations(nn.Module):
    """Nodes of two kinds and three relations between them."""

    def __init__(self):
        super().__init__()
        self.conv = geometric.HeteroConv(
            {
                ("a", "likes", "b"): geometric.SAGEConv((7, 7), 4),
                ("b", "knows", "a"): geometric.GATConv((7, 7), 4, add_self_loops=False),
                ("a", "meets", "a"): geometric.GCNConv(7, 4),
            }
        )

    def forward(self, x, edge_index):
        a, b = x, x[:12]
        likes = torch.stack([edge_index[0], edge_index[1] % 12])
        edges = {
            ("a", "likes", "b"): likes,
            ("b", "knows", "a"): likes.flip(0),
            ("a", "meets", "a"): edge_index,
        }
        found = self.conv({"a": a, "b": b}, edges)
        return torch.cat([found["a"], found["b"]])


class Graphs(nn.Module):
    """Two layers and the mean of the nodes of each graph of a batch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = geometric.GINConv(perceptron(7, 4)), geometric.GATConv(4, 3, heads=2)

    def forward(self, x, edge_index, batch):
        return geometric.global_mean_pool(self.second(self.first(x, edge_index).relu(), edge_index), batch, 3)


def compared(model, sparse, arguments):
    """Asserts that results and gradients of a model are those of its sparse form."""
    x, *rest = arguments
    found, expected = ([x.clone().requires_grad_()] for _ in range(2))
    result, wanted = sparse(found[0], *rest), model(expected[0], *rest)
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)  # sums in another order
    own = dict(sparse.named_parameters())
    for name, parameter in model.named_parameters():
        expected.append(parameter)
        found.append(own[name])
    factor = torch.randn_like(wanted)
    for one, other in zip(
        torch.autograd.grad((result * factor).sum(), found, allow_unused=True),
        torch.autograd.grad((wanted * factor).sum(), expected, allow_unused=True),
        strict=True,
    ):
        assert (one is None) == (other is None)
        if other is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    make, regions, width = LAYERS[name]
    torch.manual_seed(0)
    model = (LayerOfEdges if width else Layer)(make()).eval()

    def arguments(nodes, edges, seed):
        x, edge_index = graph(nodes, edges, seed=seed)
        edge_index[1] = edge_index[1].clamp(max=nodes - 4)  # the last nodes have no neighbours
        return (x, edge_index, torch.randn(edges, width)) if width else (x, edge_index)

    sparse = apply(model, MESSAGES, arguments(20, 55, 0), trainable=True)
    assert len(sparse.report.regions) == regions
    for nodes, edges, seed in ((20, 55, 0), (33, 130, 3)):
        compared(model, sparse, arguments(nodes, edges, seed))
    assert not sparse.report.warnings


@pytest.mark.sampled(2)
def test_relations_between_kinds_of_nodes():
    torch.manual_seed(0)
    model = Relations().eval()
    sparse = apply(model, MESSAGES, graph(), trainable=True)
    assert len(sparse.report.regions) == 3
    for nodes, edges in ((20, 55), (33, 130)):
        compared(model, sparse, graph(nodes, edges, seed=1))


def scatters(sparse):
    """The operators of torch that scatter in the graph that runs."""
    names = ("scatter", "index_add", "index_put")
    return [node for node in sparse.graph.nodes if any(name in str(node.target) for name in names)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("choice", [None, False])
def test_relations_of_edges_without_a_choice_by_the_data(choice, monkeypatch):
    monkeypatch.setattr(backend, "use_segment_matmul", choice)
    torch.manual_seed(0)
    model = LayerOfEdges(geometric.RGCNConv(7, 4, 3)).eval()

    def arguments(nodes, edges):
        return *graph(nodes, edges), torch.randint(0, 3, (edges,))

    sparse = apply(model, MESSAGES, arguments(20, 55), trainable=True)
    assert scatters(sparse) == []  # one kernel may have several relations
    assert not sparse.report.dense
    for nodes, edges in ((20, 55), (33, 130)):
        compared(model, sparse, arguments(nodes, edges))
    assert backend.use_segment_matmul is choice


@pytest.mark.sampled(3)
def test_batch_of_small_graphs():
    def batch(sizes):
        graphs = [graph(nodes, edges, seed=nodes) for nodes, edges in sizes]
        found = Batch.from_data_list([Data(x=x, edge_index=edge_index) for x, edge_index in graphs])
        return found.x, found.edge_index, found.batch

    torch.manual_seed(0)
    model = Graphs().eval()
    sparse = apply(model, MESSAGES, batch([(20, 55), (9, 21), (14, 30)]), trainable=True)
    assert len(sparse.report.regions) == 3  # the sums over each graph too
    for sizes in ([(20, 55), (9, 21), (14, 30)], [(5, 9), (31, 90), (8, 12)]):
        compared(model, sparse, batch(sizes))
