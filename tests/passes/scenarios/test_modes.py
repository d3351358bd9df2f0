"""Modes and states of applied models: training flags, buffers, conversions, inference mode, autocast, pickles."""

import copy
import pickle

import pytest
import torch
from graph_models import MESSAGES, HandWritten, TwoLayers, applied, graph
from torch import nn

from sparsify.passes.apply import apply

PRUNING = {"method": "magnitude", "sparsity": 0.6}
PRUNED = {
    "schema": 1,
    "name": "own",
    "sparsify": [{"targets": ["param:*weight"], "types": ["Linear"], "prune": PRUNING, "format": "csr"}],
}


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
    assert [before] == [found for known in sparse._call_index.variants.values() for found in known]
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


def test_autocast_gives_its_dtype():
    model, sparse = applied(HandWritten)
    x, edge_index = graph()
    with torch.autocast("cpu", dtype=torch.float16, enabled=False):
        torch.testing.assert_close(sparse(x, edge_index), model(x, edge_index))
    linear = nn.Sequential(nn.Linear(4, 4))
    own = {"schema": 1, "name": "own", "sparsify": [{"targets": ["input:*"], "format": "csr"}]}
    other = apply(linear, own, (torch.eye(4),))
    with torch.autocast("cpu", dtype=torch.bfloat16):
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
    assert sparse.report.regions
    assert found.dtype == dtype
    limit = 1e-5 if dtype == torch.float64 else 0.05  # eight bits of each number
    torch.testing.assert_close(found.float(), whole, rtol=limit, atol=limit)
    assert len(sparse.variants) == 1


class Scaled(nn.Module):
    """A linear layer times what the model writes down in its code."""

    def __init__(self, scale):
        super().__init__()
        self.lin = nn.Linear(16, 16)
        self.scale = scale

    def forward(self, x):
        return self.lin(x) * torch.tensor([self.scale(self, x)] * 16, dtype=x.dtype)


SCALES = {
    "mode": lambda model, x: 7.0 if model.training else 2.0,
    "length": lambda model, x: 7.0 if len(x) > 5 else 2.0,
    "neither": lambda model, x: 0.1,
}


def scaled(name):
    """A model with sparse weights, and its dense twin with the same."""
    torch.manual_seed(0)
    model = Scaled(SCALES[name]).eval()
    sparse = apply(model, PRUNED, (torch.randn(9, 16),))
    dense = copy.deepcopy(model)
    dense.load_state_dict(sparse.state_dict())
    return sparse, dense


def check(sparse, dense, length=9):
    """Compares the two for as many rows."""
    x = torch.randn(length, 16, dtype=next(dense.parameters()).dtype)
    torch.testing.assert_close(sparse(x), dense(x), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("duplicate", [lambda model: model, copy.deepcopy], ids=["itself", "copied"])
@pytest.mark.parametrize("name", SCALES)
def test_every_graph_has_constants_of_its_own(name, duplicate):
    sparse, dense = scaled(name)
    check(sparse, dense, 3)
    sparse.train()(torch.randn(9, 16))
    sparse = duplicate(sparse)
    for training, length in [(False, 9), (False, 3), (True, 9), (True, 3), (False, 9)]:
        check(sparse.train(training), dense.train(training), length)
    assert sum("_captured" in found for found, _ in sparse.named_buffers()) == (1 if name == "neither" else 2)


def test_constants_have_no_names_of_the_model():
    class Named(Scaled):
        def __init__(self):
            super().__init__(SCALES["neither"])
            self._captured_model_lifted_tensor_0 = nn.Buffer(torch.full((16,), 3.0))

        def forward(self, x):
            return super().forward(x) + self._captured_model_lifted_tensor_0

    model = Named().eval()
    sparse, dense = apply(model, PRUNED, (torch.randn(9, 16),), verify=False), copy.deepcopy(model)
    dense.load_state_dict(sparse.state_dict())
    check(sparse, dense)


@pytest.mark.parametrize("dtypes", [("bfloat16", "float"), ("double",)], ids=str)
@pytest.mark.parametrize("is_called", [False, True], ids=["", "called between"])
def test_constants_are_captured_anew_after_conversions(dtypes, is_called):
    sparse, dense = scaled("neither")
    for name in dtypes:
        sparse, dense = getattr(sparse, name)(), getattr(dense, name)()
        if is_called:
            sparse(torch.randn(9, 16, dtype=next(dense.parameters()).dtype))
    x = torch.randn(9, 16, dtype=next(dense.parameters()).dtype)
    limit = 1e-12 if dtypes == ("double",) else 1e-5  # a constant rounded to float32 is 1e-9 off
    torch.testing.assert_close(sparse(x), dense(x), rtol=limit, atol=limit)


def test_conversions_leave_what_code_makes_to_the_inputs():
    class Written(nn.Module):
        """No parameter tells what a graph is for; no conversion changes what is written in code."""

        def __init__(self):
            super().__init__()
            self.bias = nn.Buffer(torch.ones(7))

        def forward(self, x, edge_index):
            rows = x * torch.tensor([0.1] * 7)
            return torch.zeros_like(rows).index_add(0, edge_index[1], rows[edge_index[0]]) + self.bias

    model = Written().eval()
    sparse = apply(model, MESSAGES, graph())
    sparse(*graph())
    torch.testing.assert_close(sparse.double()(*graph()), copy.deepcopy(model).double()(*graph()))


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


def test_pickled_models_keep_their_modes():
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).train(), torch.randn(4, 64)
    rule = {"targets": ["param:*.weight"], "prune": {"method": "magnitude", "sparsity": 0.8}}
    sparse = apply(model, {"schema": 1, "name": "pruned", "sparsify": [rule]}, x, trainable=True).eval()
    again = pickle.loads(pickle.dumps(sparse))
    assert not again.training and not again.get_submodule("1").training
    torch.testing.assert_close(again(x), sparse(x))
    again.get_submodule("1").train()
    assert pickle.loads(pickle.dumps(again)).get_submodule("1").training
