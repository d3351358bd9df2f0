"""Modes and states of applied models: training flags, buffers, conversions, inference mode, autocast, pickles."""

import copy
import pickle

import pytest
import torch
from graph_models import MESSAGES, HandWritten, TwoLayers, applied, graph
from torch import nn

from sparsify.passes.apply import apply


class Normalised(nn.Module):
    """A layer with running statistics behind it."""

    def __init__(self):
        super().__init__()
        self.layer = HandWritten(7, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, edge_index):
        return self.norm(self.layer(x, edge_index)).relu()


def test_running_statistics_change_once_a_call():
    model = Normalised().train()
    twin = copy.deepcopy(model)
    sparse = apply(model, MESSAGES, graph())
    torch.testing.assert_close(dict(sparse.state_dict()), dict(twin.state_dict()))
    torch.testing.assert_close(sparse(*graph()), twin(*graph()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dict(sparse.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-5)


def test_modes_of_single_modules():
    model = TwoLayers(HandWritten).train()
    model.c1.eval()
    sparse = apply(model, MESSAGES, graph(), verify=False)
    (before,) = sparse.variants
    sparse.train()
    sparse.c1.eval()
    sparse(*graph())
    assert before in sparse._quick.variants.values()
    assert (model.training, model.c1.training) == (True, False)


def test_calls_of_the_source_model_capture_nothing():
    model = TwoLayers(HandWritten).train()
    sparse = apply(model, MESSAGES, graph(), verify=False, dynamic=())
    for nodes in (5, 6, 7):
        sparse.original(*graph(nodes))
    assert len(sparse.variants) == 1
    sparse.verify_gradients(*graph(5))
    assert len(sparse.variants) == 2


def test_inplace_lets_the_model_follow():
    model = TwoLayers(HandWritten).eval()
    sparse = apply(model, MESSAGES, inplace=True)
    sparse.train()
    assert model.training


class Product(nn.Module):
    """A weight that a rule makes sparse."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x):
        return self.weight @ x


WEIGHT = {"schema": 1, "name": "own", "sparsify": [{"targets": ["param:weight"], "format": "csr"}]}


@pytest.mark.parametrize(
    ("trainable", "training"), [(True, False), (None, True), (False, True), (None, False)]
)
def test_sparse_weights_train_when_asked(trainable, training):
    model = Product().train(training)
    x = torch.rand(4, 3, requires_grad=True)
    sparse = apply(model, WEIGHT, (x,), trainable=trainable)
    torch.testing.assert_close(sparse(x), model(x))
    (gradient,) = torch.autograd.grad(sparse(x).sum(), [model.weight], allow_unused=True)
    if trainable or (trainable is None and training):
        expected = torch.autograd.grad(model(x).sum(), [model.weight])[0]
        torch.testing.assert_close(gradient, expected * torch.eye(4))
    else:
        assert gradient is None or not gradient.any()


def test_first_call_in_inference_mode():
    model = TwoLayers(HandWritten).eval()
    sparse = apply(model, MESSAGES)
    x, edge_index = graph()
    with torch.inference_mode():
        torch.testing.assert_close(sparse(x, edge_index), model(x, edge_index))
        torch.testing.assert_close(sparse(x.clone(), edge_index.clone()), model(x, edge_index))
    assert sparse.verify_gradients(x, edge_index) < 1e-3


def test_autocast_runs_the_source_model():
    model, sparse = applied(HandWritten)
    x, edge_index = graph()
    with torch.autocast("cpu", dtype=torch.float16, enabled=False):
        torch.testing.assert_close(sparse(x, edge_index), model(x, edge_index))
    linear = nn.Sequential(nn.Linear(4, 4))
    own = {"schema": 1, "name": "own", "sparsify": [{"targets": ["input:*"], "format": "csr"}]}
    other = apply(linear, own, (torch.eye(4),))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(RuntimeWarning, match="autocast"):
        found = other(torch.eye(4))
    assert found.dtype == torch.bfloat16


def test_conversions_take_the_source_model_along():
    model = Normalised().eval()
    sparse = apply(model, MESSAGES, graph())
    sparse.double()
    x, edge_index = graph()
    assert model.norm.running_mean.dtype == torch.float64
    sparse.float()
    torch.testing.assert_close(sparse(x, edge_index), model(x, edge_index), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_graphs_are_for_the_dtypes_of_parameters(dtype):
    class Embedded(nn.Module):
        """A call says nothing of the dtype of its weights."""

        def __init__(self):
            super().__init__()
            self.rows = nn.Embedding(10, 7)

        def forward(self, nodes, edge_index):
            rows = self.rows(nodes)
            return torch.zeros_like(rows).index_add(0, edge_index[1], rows[edge_index[0]])

    nodes, edges = torch.arange(10), torch.randint(0, 10, (2, 30))
    sparse = apply(Embedded().eval(), MESSAGES, (nodes, edges))
    whole = sparse(nodes, edges)
    found = sparse.to(dtype)(nodes, edges)
    assert found.dtype == dtype
    limit = 1e-5 if dtype == torch.float64 else 0.05  # eight bits of each number
    torch.testing.assert_close(found.float(), whole, rtol=limit, atol=limit)
    assert len(sparse.variants) == 1


def test_states_are_assigned_to_both():
    model = TwoLayers(HandWritten).eval()
    sparse = apply(model, MESSAGES, graph())
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    sparse.load_state_dict(state, assign=True)
    assert torch.equal(model.c1.lin.weight, state["c1.lin.weight"])
    torch.testing.assert_close(sparse(*graph()), model(*graph()), rtol=1e-4, atol=1e-4)


def test_pickles():
    model, sparse = applied(HandWritten)
    state = pickle.loads(pickle.dumps(sparse.state_dict()))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    again = pickle.loads(pickle.dumps(sparse))
    torch.testing.assert_close(again(*graph()), model(*graph()), rtol=1e-4, atol=1e-5)
