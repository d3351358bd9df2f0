"""Models that are called with graphs of torch-geometric: batches of molecules, graphs of several types."""

import pytest
import torch
from graph_models import MESSAGES
from torch import nn

from sparsify.errors import CaptureError
from sparsify.passes.apply import apply

geometric = pytest.importorskip("torch_geometric.nn")
data = pytest.importorskip("torch_geometric.data")
FEATURES = 6


class OfBatch(nn.Module):
    """Two layers, and a row for each graph of a batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = geometric.GCNConv(FEATURES, 5)
        self.second = geometric.GINEConv(nn.Linear(5, 5), edge_dim=3)

    def forward(self, batch):
        rows = self.first(batch.x, batch.edge_index).relu()
        rows = self.second(rows, batch.edge_index, batch.edge_attr)
        return geometric.global_mean_pool(rows, batch.batch, batch.num_graphs)


class OfTypes(nn.Module):
    """A layer for each relation between two types of nodes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = geometric.HeteroConv(
            {
                ("user", "rates", "item"): geometric.SAGEConv((FEATURES, FEATURES), 5),
                ("item", "suits", "user"): geometric.GraphConv((FEATURES, FEATURES), 5),
            }
        )

    def forward(self, graph):
        found = self.layer(graph.x_dict, graph.edge_index_dict)
        return found["user"], found["item"]


class Renaming(nn.Module):
    """Writes its rows into the graph that it is given."""

    def __init__(self):
        super().__init__()
        self.layer = geometric.SAGEConv(FEATURES, FEATURES)

    def forward(self, graph):
        graph.x = self.layer(graph.x, graph.edge_index)
        return graph.x


class Naming(Renaming):
    """Computes something else for graphs of another name."""

    def forward(self, graph):
        found = self.layer(graph.x, graph.edge_index)
        return found if graph.name == "first" else -found


def molecules(*sizes):
    graphs = []
    for number, nodes in enumerate(sizes):
        graph = data.Data(
            x=torch.randn(nodes, FEATURES, dtype=torch.double),
            edge_index=torch.randint(0, nodes, (2, 3 * nodes)),
            edge_attr=torch.randn(3 * nodes, 3, dtype=torch.double),
            name=f"{len(sizes)} {number}",
        )
        graphs.append(graph)
    return data.Batch.from_data_list(graphs)


def types(users, items):
    graph = data.HeteroData()
    graph["user"].x = torch.randn(users, FEATURES, dtype=torch.double)
    graph["item"].x = torch.randn(items, FEATURES, dtype=torch.double)
    for source, kind, target in (("user", "rates", "item"), ("item", "suits", "user")):
        counts = {"user": users, "item": items}
        ends = [torch.randint(0, counts[end], (3 * users,)) for end in (source, target)]
        graph[source, kind, target].edge_index = torch.stack(ends)
    return graph


def compare(sparse, model, graph):
    found, wanted = sparse(graph), model(graph)
    torch.testing.assert_close(found, wanted)
    results = [result if isinstance(result, tuple) else (result,) for result in (found, wanted)]
    totals = [sum(part.square().sum() for part in result) for result in results]
    torch.testing.assert_close(*(torch.autograd.grad(total, list(model.parameters())) for total in totals))


@pytest.mark.sampled(2)
def test_batches_of_graphs():
    model = OfBatch().double()
    sparse = apply(model, MESSAGES, molecules(4, 5, 6), strict=True)
    assert len(sparse.report.regions) == 3
    for sizes in ((4, 5, 6), (3, 9), (2, 2, 7, 2, 2)):
        compare(sparse, model, molecules(*sizes))
    assert len(sparse.variants) == 1
    assert "batch.x[1] = 6" in sparse.report.specialised


def test_graphs_of_several_types():
    model = OfTypes().double()
    sparse = apply(model, MESSAGES, types(7, 5), strict=True)
    for graph in (types(7, 5), types(4, 9), data.Batch.from_data_list([types(3, 4), types(5, 6)])):
        compare(sparse, model, graph)
    assert len(sparse.variants) == 2  # a batch has more attributes


def test_graphs_beside_other_arguments_and_inside_of_lists():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = geometric.SAGEConv(FEATURES, 5)

        def forward(self, graphs, factor):
            return sum(self.layer(graph.x, graph.edge_index).sum(0) for graph in graphs) * factor

    model = Pair().double()
    sparse = apply(model, MESSAGES, ([molecules(4), molecules(6)], torch.tensor(2.0)), strict=True)
    for given in ([molecules(4), molecules(6)], [molecules(3, 4), molecules(8)]):
        torch.testing.assert_close(sparse(given, torch.tensor(3.0)), model(given, torch.tensor(3.0)))
    assert len(sparse.variants) == 1


@pytest.mark.sampled(2)
def test_a_graph_that_the_model_changes_is_not_captured():
    model = Renaming().double()
    with pytest.raises(CaptureError, match="changes the attributes of the DataBatch"):
        apply(model, MESSAGES, molecules(4, 5), strict=True)
    with pytest.warns(RuntimeWarning, match=r"in place of `data.x = \.\.\.`"):
        sparse = apply(model, MESSAGES, molecules(4, 5))
    first = molecules(4, 5)
    second = first.clone()
    torch.testing.assert_close(sparse(first), model(second))
    torch.testing.assert_close(first.x, second.x)


def test_texts_that_a_model_reads_are_not_captured():
    model = Naming().double()
    graphs = [molecules(4), molecules(4)]
    graphs[0].name, graphs[1].name = "first", "second"
    with pytest.warns(RuntimeWarning, match="cannot capture Naming"):
        sparse = apply(model, MESSAGES, graphs[0])
    for graph in graphs:
        torch.testing.assert_close(sparse(graph), model(graph))
