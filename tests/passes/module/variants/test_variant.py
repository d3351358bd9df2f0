"""Calls like earlier ones need not be taken apart, and give what the model gives."""

import pytest
import torch
from torch import nn

import sparsify
from sparsify.passes.apply import apply
from sparsify.passes.capture import calls
from sparsify.passes.module import sparse_module

RECIPE = {
    "schema": 1,
    "name": "graph",
    "sparsify": [{"targets": ["input:adj"], "role": "adjacency", "source": "given", "format": "csr"}],
}


class Convolution(nn.Module):
    """One graph convolution; what it is asked for besides changes the result."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, adj, scale=None, name="plain"):
        found = adj @ self.linear(x)
        found = found if scale is None else found * scale
        return (found,) if name == "tuple" else found


def matrix(seed=0, nodes=6, stored=0.5):
    torch.manual_seed(seed)
    return torch.rand(nodes, nodes) * (torch.rand(nodes, nodes) < stored)


MAKERS = {
    "coo": lambda dense: dense.to_sparse().coalesce(),
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
    "ours": lambda dense: sparsify.tensor(dense, "csr"),
    "ours in columns": lambda dense: sparsify.tensor(dense, "csc"),
}


def fresh():
    torch.manual_seed(0)
    model, x = Convolution().eval(), torch.rand(6, 4)
    return model, apply(model, RECIPE, (x, matrix().to_sparse().coalesce())), x


@pytest.fixture(scope="module")
def made():
    return fresh()


@pytest.fixture
def taken(monkeypatch):
    """The calls that are taken apart."""
    found = []
    flatten = sparse_module.calls.flatten

    def noted(*arguments, **named):
        found.append(arguments[1:])
        return flatten(*arguments, **named)

    monkeypatch.setattr(sparse_module.calls, "flatten", noted)
    return found


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_a_sparse_matrix_is_seen_once(made, taken, maker):
    model, sparse, x = made
    for dense in (matrix(), matrix(1)):
        adj = maker(dense)
        for _ in range(2):
            torch.testing.assert_close(sparse(x, adj), model(x, dense))
            torch.testing.assert_close(sparse(x, adj=adj), model(x, dense))
    known = len(taken)
    adj = maker(matrix())
    torch.testing.assert_close(sparse(x, adj), model(x, matrix()))
    torch.testing.assert_close(sparse(x, adj=adj), model(x, matrix()))
    assert len(taken) == known


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_values_that_changed_are_read(made, taken, maker):
    model, sparse, x = made
    adj = maker(matrix())
    for _ in range(2):
        sparse(x, adj)
    adj.values().mul_(2)
    torch.testing.assert_close(sparse(x, adj), model(x, matrix() * 2))


def test_gradients_of_a_sparse_matrix(made, taken):
    model, sparse, x = made
    for _ in range(3):
        adj = sparsify.tensor(matrix(), "csr").requires_grad_()
        dense = matrix().requires_grad_()
        sparse(x, adj).square().sum().backward()
        model(x, dense).square().sum().backward()
        torch.testing.assert_close(adj.grad.to_dense(), dense.grad * (matrix() != 0))
    assert len(taken) < 3


@pytest.mark.sampled(2)
def test_constants_tell_calls_apart(taken):
    model, sparse, x = fresh()
    taken.clear()
    adj = matrix().to_sparse().coalesce()
    for turn in range(3):
        known = len(taken)
        for rest in ((), (None,), (2,), (1,), (True,), (2, "tuple")):
            torch.testing.assert_close(sparse(x, adj, *rest), model(x, matrix(), *rest))
        assert (len(taken) > known) == (turn < 2)  # a capture forgets what is known


def test_floating_numbers_are_never_quick(made, taken):
    _, sparse, x = made
    adj = matrix().to_sparse().coalesce()
    assert sparse._call_index.read((x, adj, 0.0), {}) is None
    assert sparse._call_index.read((x, adj, 0), {}) is not None


def test_names_in_another_order(made, taken):
    model, sparse, x = made
    adj = matrix().to_sparse().coalesce()
    for _ in range(2):
        torch.testing.assert_close(sparse(adj=adj, x=x), model(x, matrix()))
    assert len(taken) == 2


def test_matrices_of_other_shapes_and_layouts_in_one_model(made):
    model, sparse, _ = made
    for nodes in (6, 9, 6):
        dense, features = matrix(2, nodes), torch.rand(nodes, 4)
        for maker in MAKERS.values():
            torch.testing.assert_close(sparse(features, maker(dense)), model(features, dense))
        torch.testing.assert_close(sparse(features, dense), model(features, dense))


class Deciding(nn.Module):
    """A model that no graph holds: its data decide what it computes."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, y):
        return self.lin(x) if torch.equal(x, y) else self.lin(y) * 2


def test_calls_that_are_not_captured_are_not_taken_apart(monkeypatch):
    model = Deciding().eval()
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with pytest.warns(RuntimeWarning, match="source model runs"):
        sparse = sparsify.apply(model, example_inputs=(x, y), recipe={"name": "none", "sparsify": []})
    torch.testing.assert_close(sparse(x, y), model(x, y))
    monkeypatch.setattr(calls, "flatten", lambda *args, **kwargs: pytest.fail("taken apart"))
    torch.testing.assert_close(sparse(x, y), model(x, y))
    torch.testing.assert_close(sparse(y[:2], y[:2]), model(y[:2], y[:2]))
    model.lin.weight.data.mul_(2)
    torch.testing.assert_close(sparse(x, y), model(x, y))
    monkeypatch.undo()
    assert torch.equal(sparse(x.double().float(), y=y), model(x, y))
    sparse.double()
    torch.testing.assert_close(sparse(x.double(), y.double()), model(x.double(), y.double()))
