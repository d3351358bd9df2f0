"""Large graphs are compared in some rows, with the edges that these depend on; where that does not do, as a whole."""

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch_geometric.nn import GATConv, GCNConv, GINEConv, GraphNorm, SAGEConv

import sparsify
from sparsify.errors import VerificationError
from sparsify.passes.capture import calls
from sparsify.passes.module.check import row_sample, verify

NODES, EDGES = 2000, 6000


class Stack(nn.Module):
    """Two layers, with data of edges where they take some, and a normalisation between them where there is one."""

    def __init__(self, make, norm=None):
        super().__init__()
        self.first, self.second, self.norm = make(8, 6), make(6, 5), norm

    def forward(self, x, edge_index, edge_attr=None):
        more = () if edge_attr is None else (edge_attr,)
        x = self.first(x, edge_index, *more).relu()
        x = x if self.norm is None else self.norm(x)
        return self.second(x, edge_index, *more)


def gine(inputs, outputs):
    return GINEConv(nn.Linear(inputs, outputs), edge_dim=3)


@pytest.fixture(autouse=True)
def many_edges(monkeypatch):
    monkeypatch.setattr(row_sample, "MANY_EDGES", EDGES)


@pytest.fixture
def graph():
    torch.manual_seed(0)
    # Sources are near their targets, so that few edges reach a row; the last rows have no edges.
    target = torch.randint(NODES - 20, (EDGES,))
    source = (target + torch.randint(-9, 9, (EDGES,))).clamp(0, NODES - 21)
    return torch.randn(NODES, 8), torch.stack([source, target])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("trains", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("make", [GCNConv, SAGEConv, GATConv, gine])
def test_rows_of_a_sample_are_those_of_the_whole_graph(graph, make, trains):
    torch.manual_seed(1)
    model = Stack(make).train(trains)
    given = (*graph, torch.randn(EDGES, 3)) if make is gine else graph
    sparse = sparsify.apply(model, "gcn", given)
    assert sparse.report.regions
    rows = sparse.report.compared_rows
    assert rows is not None and 16 + row_sample.EMPTY_ROWS <= rows < NODES
    assert f"in a sample of {rows} rows" in str(sparse.report)
    call = calls.flatten(calls.signature(model), given, {})
    sample = row_sample.row_sample(call, 2)
    exact = model.double().eval()
    own = [
        value.double() if value.is_floating_point() else value
        for value in sample.call.values
        if value is not None
    ]
    whole = exact(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in given))
    torch.testing.assert_close(exact(*own)[sample.rows], whole[sample.rows])
    assert own[1].shape[1] < EDGES // row_sample.SHARE + 1


def test_gradients_of_data_of_edges_reach_the_whole_tensor(graph):
    attributes = torch.randn(EDGES, 3, requires_grad=True)
    sparse = sparsify.apply(Stack(gine).train(), "gcn", (*graph, attributes))
    assert sparse.report.compared_rows is not None


def test_rows_that_depend_on_all_nodes_are_compared_as_a_whole(graph):
    sparse = sparsify.apply(Stack(GCNConv, GraphNorm(6)).eval(), "gcn", graph)
    assert sparse.report.regions and sparse.report.compared_rows is None
    assert sparse.report.largest_error is not None


def test_small_graphs_and_wide_neighbourhoods_are_compared_as_a_whole(graph, monkeypatch):
    x, _ = graph
    wide = torch.randint(NODES, (2, 40 * NODES))
    assert row_sample.row_sample(calls.flatten(calls.signature(Stack(GCNConv)), (x, wide), {}), 3) is None
    monkeypatch.setattr(row_sample, "MANY_EDGES", EDGES + 1)
    assert sparsify.apply(Stack(GCNConv).eval(), "gcn", graph).report.compared_rows is None


def test_wrong_rows_are_found(graph, monkeypatch):
    model = Stack(GCNConv).eval()
    right = verify.without_effects

    def doubled(*given):
        return lambda *tensors: pytree.tree_map(lambda one: 2 * one, right(*given)(*tensors))

    monkeypatch.setattr(verify, "without_effects", doubled)
    with pytest.raises(VerificationError):
        sparsify.apply(model, "gcn", graph, strict=True)
