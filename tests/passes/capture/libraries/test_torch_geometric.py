"""Pools over batches of graphs that count the graphs by the batch."""

import copy

import pytest
import torch
from graph_models import MESSAGES
from torch import nn

from sparsify.passes.apply import apply
from sparsify.passes.capture.libraries.torch_geometric import Number, chosen_by_data

geometric = pytest.importorskip("torch_geometric.nn")
POOLS = {
    "mean": geometric.global_mean_pool,
    "largest": geometric.global_max_pool,
    "module": geometric.SumAggregation(),
}


class Pooled(nn.Module):
    """A layer, and a row for each graph."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.layer, self.head = way, geometric.SAGEConv(6, 5), nn.Linear(5, 3)

    def forward(self, x, edge_index, batch):
        return self.head(POOLS[self.way](self.layer(x, edge_index).relu(), batch))


def batch_of(*sizes):
    nodes = sum(sizes)
    graphs = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return torch.randn(nodes, 6), torch.randint(0, nodes, (2, 3 * nodes)), graphs


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", POOLS)
def test_numbers_of_graphs_vary(way):
    model = Pooled(way)
    sparse = apply(model, MESSAGES, batch_of(4, 5, 6))
    assert any("scatter" in node for region in sparse.report.regions for node in region.nodes)
    double = copy.deepcopy(model).double()
    assert not sparse.report.dense
    for sizes in ((4, 5, 6), (3, 9), (2, 2, 2, 2, 2)):
        x, edge_index, graphs = batch_of(*sizes)
        wanted, found = double(x.double(), edge_index, graphs), sparse(x, edge_index, graphs)
        torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-5)
        pairs = [
            torch.autograd.grad(y.square().sum(), list(m.parameters()))
            for y, m in ((found, model), (wanted, double))
        ]
        for one, other in zip(*pairs, strict=True):
            torch.testing.assert_close(one, other.float(), rtol=1e-3, atol=1e-4)
    assert len(sparse.variants) == 1


def test_modules_are_as_before():
    import torch_geometric.utils._scatter as module

    with chosen_by_data():
        assert module.int is Number
        assert isinstance(3, Number) and not isinstance(3.0, Number)
        assert Number("7") == 7 and Number() == 0
    assert not hasattr(module, "int")


class Norms(nn.Module):
    """A norm over each graph, and a padded batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = geometric.SAGEConv(6, 5), geometric.GraphNorm(5)

    def forward(self, x, edge_index, batch):
        from torch_geometric.utils import to_dense_batch

        padded, is_node = to_dense_batch(self.norm(self.layer(x, edge_index), batch), batch)
        return padded.cumsum(1) * is_node[..., None]


class Hyper(nn.Module):
    """Nodes to hyperedges and back."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = geometric.HypergraphConv(6, 5)

    def forward(self, x, edge_index, batch):
        return self.layer(x, torch.stack([torch.arange(x.shape[0]), batch]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Norms, Hyper])
def test_numbers_read_anywhere_in_the_library_vary(kind):
    model = kind().double()
    x, edge_index, graphs = batch_of(4, 5, 6)
    sparse = apply(model, MESSAGES, (x.double(), edge_index, graphs), strict=True)
    assert sparse.report.regions
    for sizes in ((4, 5, 6), (3, 9), (2, 2, 2, 2, 7)):
        x, edge_index, graphs = batch_of(*sizes)
        found, wanted = sparse(x.double(), edge_index, graphs), model(x.double(), edge_index, graphs)
        torch.testing.assert_close(found, wanted)
        pairs = [torch.autograd.grad(y.square().sum(), list(model.parameters())) for y in (found, wanted)]
        torch.testing.assert_close(*pairs)
    assert len(sparse.variants) == 1
