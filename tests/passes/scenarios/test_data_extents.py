"""Extents that the data decides: regions read them where an operand has them, or where a node counts them."""

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn

from sparsify.passes.apply import apply

geometric = pytest.importorskip("torch_geometric.nn")
PRUNED = {
    "targets": ["param:*.weight"],
    "role": "weight",
    "source": "prune",
    "prune": {"method": "magnitude", "sparsity": 0.5},
    "format": "csr",
}


class OverEdges(nn.Module):
    """Two layers that take loops away and add others, each with rows for the edges that are left."""

    def __init__(self):
        super().__init__()
        self.first = geometric.GATv2Conv(7, 4, heads=2, edge_dim=3)
        self.second = geometric.GATv2Conv(8, 4, edge_dim=3)

    def forward(self, x, edge_index, features):
        return self.second(self.first(x, edge_index, features), edge_index, features)


class Folded(nn.Module):
    """Messages to as many nodes as have a feature above zero."""

    def forward(self, x, edge_index):
        nodes = x[x[:, 0] > 0].shape[0]
        return torch.zeros(nodes, 7).index_add(0, edge_index[1] % nodes, x[edge_index[0]])


@pytest.mark.sampled(2)
def test_linear_layers_over_edges_that_are_left():
    def arguments(nodes, edges):
        return *graph(nodes, edges), torch.randn(edges, 3, generator=torch.Generator().manual_seed(edges))

    torch.manual_seed(0)
    recipe = {**MESSAGES, "sparsify": [PRUNED]}
    sparse = apply(OverEdges().train(), recipe, arguments(20, 55))
    weights = {f"{layer}.lin_{kind}" for layer in ("first", "second") for kind in ("l", "r", "edge")}
    assert weights <= {name for region in sparse.report.regions for name in region.scopes}
    assert not sparse.report.warnings
    for given in (arguments(20, 55), arguments(33, 130)):
        found, wanted = sparse(*given), sparse.original(*given)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert len(sparse.variants) == 1


def test_rows_that_a_node_of_the_graph_counts():
    sparse = apply(Folded(), MESSAGES, graph(), strict=True)
    (region,) = sparse.report.regions
    assert "index_add" in region.nodes
    for given in (graph(), graph(33, 130, seed=2)):
        torch.testing.assert_close(sparse(*given), Folded()(*given))
    assert len(sparse.variants) == 1


class Twice(nn.Module):
    """Softmax of scores and sums of rows by one tensor of groups, whose number is counted twice."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(7, 1)

    def forward(self, x, groups):
        score = self.score(x).exp()[:, 0]
        totals = score.new_zeros(groups.max().item() + 1).index_add(0, groups, score)
        rows = score / totals[groups]
        return x.new_zeros(groups.max().item() + 1, 7).index_add(0, groups, rows[:, None] * x)


def test_equal_counts_are_one_extent():
    torch.manual_seed(0)
    model = Twice().double()

    def arguments(*sizes):
        groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        return torch.randn(len(groups), 7, dtype=torch.double), groups

    sparse = apply(model, MESSAGES, arguments(3, 4, 5))
    (region,) = sparse.report.regions
    assert {"index_add", "index_add_1"} <= set(region.nodes)
    for sizes in ((3, 4, 5), (2, 6), (1, 2, 3, 4, 5)):
        given = arguments(*sizes)
        found, wanted = sparse(*given), model(*given)
        torch.testing.assert_close(found, wanted)
        pairs = [torch.autograd.grad(y.square().sum(), model.score.weight) for y in (found, wanted)]
        torch.testing.assert_close(*pairs)
    assert len(sparse.variants) == 1
