"""The layers of torch-geometric inside of a sparse model: found by their class, read by hooks, not explained."""

import copy
import pickle

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn

from sparsify.errors import CaptureError
from sparsify.passes.apply import apply

geometric = pytest.importorskip("torch_geometric.nn")


class Layers(nn.Module):
    """Two layers of different classes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([geometric.GCNConv(7, 5), geometric.SAGEConv(5, 3)])

    def forward(self, x, edge_index):
        return self.layers[1](self.layers[0](x, edge_index).relu(), edge_index)


@pytest.fixture(scope="module")
def applied():
    """The model and its sparse form."""
    model = Layers().double().eval()
    x, edge_index = graph()
    return model, apply(model, MESSAGES, (x.double(), edge_index))


def test_layers_are_found_by_their_class(applied):
    model, sparse = applied
    kinds = [type(layer) for layer in model.layers]
    for found in (sparse, copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse))):
        layers = [part for part in found.modules() if isinstance(part, geometric.MessagePassing)]
        assert [layer.__class__ for layer in layers] == kinds
        assert isinstance(found.layers[0], geometric.GCNConv) and not isinstance(
            found.layers[1], geometric.GCNConv
        )
        assert layers[0].lin.weight.shape == model.layers[0].lin.weight.shape


@pytest.mark.filterwarnings("ignore:layers.* have hooks")
@pytest.mark.filterwarnings("ignore:Layers. layers.* have hooks")
def test_what_layers_compute_is_read_by_hooks(applied):
    from torch_geometric.utils import get_embeddings

    model, sparse = applied
    x, edge_index = graph(30, 90)
    found, wanted = (
        get_embeddings(sparse, x.double(), edge_index),
        get_embeddings(model, x.double(), edge_index),
    )
    assert len(found) == 2
    torch.testing.assert_close(found, wanted)
    assert not sparse._hooks.active(sparse, model)
    torch.testing.assert_close(sparse(x.double(), edge_index), model(x.double(), edge_index))


def test_explainers_are_told_what_to_explain(applied):
    from torch_geometric.explain import Explainer, GNNExplainer

    model, sparse = applied
    x, edge_index = graph()
    how = {
        "algorithm": GNNExplainer(epochs=2),
        "explanation_type": "model",
        "edge_mask_type": "object",
        "model_config": {"mode": "regression", "task_level": "node", "return_type": "raw"},
    }
    with pytest.raises(CaptureError, match="give the explainer the source model"):
        Explainer(sparse, **how)(x.double(), edge_index)
    torch.testing.assert_close(sparse(x.double(), edge_index), model(x.double(), edge_index))


class EdgeNumbers(nn.Module):
    """Messages weighted by numbers of edges, and by what follows from them."""

    def forward(self, x, edge_index, numbers):
        column = numbers.view(-1, 1)
        once = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]] * column)
        return torch.zeros_like(x).index_add(0, edge_index[1], once[edge_index[0]] * column.exp())


def test_numbers_of_edges_that_follow_from_others():
    model, numbers = EdgeNumbers(), torch.rand(50)
    x, edge_index = torch.randn(20, 8), torch.randint(0, 20, (2, 50))
    sparse = apply(model, MESSAGES, (x, edge_index, numbers))
    assert sparse.report.regions
    torch.testing.assert_close(sparse(x, edge_index, numbers), model(x, edge_index, numbers))
