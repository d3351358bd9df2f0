"""Fusing: which statements each layer becomes, and what must stay apart."""

import pytest
import torch
from graph_models import HandWritten, Kipf, TwoLayers, adjacency, graph
from torch import nn

from sparsify import options, recipe
from sparsify.passes import pipeline
from sparsify.passes.apply import apply
from sparsify.passes.capture import calls
from sparsify.passes.capture import draft as base
from sparsify.passes.capture.export import capture
from sparsify.passes.decide.front_end import front_end
from sparsify.passes.rules.mark import mark
from sparsify.passes.rules.propagate import propagate
from sparsify.report import Report

geometric = pytest.importorskip("torch_geometric.nn")
MESSAGES = {"targets": ["op:message_passing"], "format": "csr"}


class Own(geometric.MessagePassing):
    """Message passing by a user, with a constant and edge weights."""

    def __init__(self, features, out):
        super().__init__(aggr="add")
        self.lin = nn.Linear(features, out)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x), weight=edge_index[0].float() / 10)

    def message(self, x_j, weight):
        return 0.5 * weight.view(-1, 1) * x_j


class Renamed(geometric.GCNConv):
    """A GCN layer under another name."""


def fused(model, args, *rules, **sections):
    call = calls.flatten(calls.signature(model), args, {})
    captured = capture(model, call)
    examples = dict(
        zip(call.shape.tensor_names(), [v for v in call.values if isinstance(v, torch.Tensor)], strict=True)
    )
    text = {"schema": 1, "name": "own", "sparsify": list(rules), **sections}
    draft = base.Draft(
        captured, model, base.ApplyRequest(recipe.load(text)), Report(), options.current(), examples
    )
    for step in (mark, propagate):
        draft = step(draft)
        pipeline.verify(draft, step.__name__)
    return draft


def decided(*args, **sections):
    """The same with the front end's regions."""
    return front_end(fused(*args, **sections))


def statements(draft):
    return [[str(statement) for statement in region.program.statements] for region in draft.regions]


PRODUCT = "T[j,k] = sum(f, X[j,f] * W[k,f])"


@pytest.mark.parametrize(
    ("layer", "first"),
    [
        (geometric.GCNConv, ["Y[i,k] = relu(sum(j, f, A[i,j] * X[j,f] * W[k,f]) + b[k])"]),
        (Renamed, ["Y[i,k] = relu(sum(j, f, A[i,j] * X[j,f] * W[k,f]) + b[k])"]),
        (HandWritten, [PRODUCT + " + b[k]", "Y[i,k] = relu(sum(j, A[i,j] * T[j,k]))"]),
        (Own, [PRODUCT + " + b[k]", "Y[i,k] = relu(sum(j, A[i,j] * T[j,k]))"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_layer_is_one_program(layer, first):
    found = statements(decided(TwoLayers(layer).eval(), graph(), MESSAGES))
    assert len(found) == 2
    assert found[0] == first


def test_mean_is_a_division_and_the_narrower_product_comes_first():
    wide = TwoLayers(geometric.SAGEConv, features=50).eval()
    draft = decided(wide, graph(2000, 20000, features=50), MESSAGES)
    assert statements(draft)[0] == [
        PRODUCT,
        "Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) / b[i] + b1[k] + X1[i,k])",
    ]
    narrow = TwoLayers(geometric.SAGEConv).eval()
    assert statements(decided(narrow, graph(), MESSAGES))[0] == ["Y[i,k] = sum(j, A[i,j] * X[j,k]) / b[i]"]


def test_a_layer_that_widens_multiplies_by_the_adjacency_first():
    x, edge_index = graph(2000, 60000, features=4)
    draft = decided(TwoLayers(geometric.GCNConv, features=4, hidden=256).eval(), (x, edge_index), MESSAGES)
    first, second = statements(draft)
    assert first == ["T[i,f] = sum(j, A[i,j] * X[j,f])", "Y[i,k] = relu(sum(f, T[i,f] * W[k,f]) + b[k])"]
    assert second[0] == PRODUCT, "the next layer narrows"


def test_dense_declared_and_sparse_adjacency():
    rule = {"targets": ["input:edge_index"], "format": "csr"}
    model = TwoLayers(Kipf).eval()
    small = statements(decided(model, (graph()[0], adjacency()), rule))
    assert small[0] == ["Y[i,k] = relu(sum(j, f, A[i,j] * X[j,f] * W[f,k]) + b[k])"]
    assert len(small) == 2, "a layer is a region"
    first = statements(decided(TwoLayers(Kipf, 64).eval(), (torch.randn(300, 64), adjacency(300)), rule))[0]
    assert first == ["T[j,k] = sum(f, X[j,f] * W[f,k])", "Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])"]


def test_features_are_sparse_where_the_recipe_says_so():
    rules = [{"targets": ["input:edge_index"]}, {"targets": ["input:x"]}]
    draft = decided(TwoLayers(Kipf).eval(), (adjacency()[:, :7], adjacency()), *rules)
    products = [region.program for region in draft.regions[:1]]
    formats = [{declared.name: declared.format.is_dense for declared in p.declarations} for p in products]
    assert formats == [{"X": False, "A": False, "W": True, "b": True, "T": True, "Y": True}]


def test_what_two_read_stays_in_the_program():
    class Two(nn.Module):
        def forward(self, a, x):
            y = a @ x
            return y.relu() + y.sigmoid()

    draft = decided(Two(), (adjacency(), graph()[0]), {"targets": ["input:a"], "role": "adjacency"})
    assert statements(draft) == [
        ["T[i,k] = sum(j, A[i,j] * X[j,k])", "Y[i,k] = relu(T[i,k]) + sigmoid(T[i,k])"]
    ]


def test_two_sparse_products_stay_two_programs():
    class Twice(nn.Module):
        def forward(self, a, x):
            return a @ (a.t() @ x)

    draft = decided(Twice(), (adjacency(), graph()[0]), {"targets": ["input:a"], "role": "adjacency"})
    assert statements(draft) == [["Y[i,k] = sum(j, A[j,i] * X[j,k])"], ["Y[i,k] = sum(j, A[i,j] * X[j,k])"]]


def test_products_of_dense_matrices_in_front_and_behind_are_taken_in():
    class Layer(nn.Module):
        def __init__(self, features, hidden):
            super().__init__()
            self.lin = nn.Linear(features, hidden)

        def forward(self, a, x):
            return torch.relu(a @ self.lin(x))

    class Narrow(Layer):
        def forward(self, a, x):
            return self.lin(a @ x)

    rule = {"targets": ["input:a"], "role": "adjacency"}
    inputs = adjacency(300), torch.randn(300, 64)
    first = [PRODUCT + " + b[k]", "Y[i,k] = relu(sum(j, A[i,j] * T[j,k]))"]
    assert statements(decided(Layer(64, 16).eval(), inputs, rule)) == [first]
    for limit in ({"enabled": False}, {"max_einsums": 1}):
        single = statements(decided(Layer(64, 16).eval(), inputs, rule, fuse=limit))
        assert single[0][0].endswith("sum(j, A[i,j] * X[j,k]))" if "max_einsums" in limit else "X[j,k])")
        assert len(single[0]) == 1
    texts = statements(decided(Narrow(64, 4).eval(), inputs, rule))
    assert texts == [["T[j,k] = sum(f, X[j,f] * W[k,f])", "Y[i,k] = sum(j, A[i,j] * T[j,k]) + b[k]"]]


def test_fusing_can_be_limited():
    single = statements(
        decided(TwoLayers(geometric.GCNConv).eval(), graph(), MESSAGES, fuse={"enabled": False})
    )
    assert single[0] == ["Y[i,k] = sum(j, A[i,j] * X[j,k])"]
    one = statements(decided(TwoLayers(geometric.GCNConv).eval(), graph(), MESSAGES, fuse={"max_einsums": 1}))
    assert one[0] == ["Y[i,k] = relu(sum(j, A[i,j] * X[j,k]) + b[k])"]


def test_what_stays_dense_is_listed_with_its_reason():
    class Products(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = geometric.SAGEConv(7, 3, aggr="mul")

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    draft = decided(Products().eval(), graph(), {**MESSAGES, "optional": True})
    assert not draft.regions
    assert "reduce='prod'" in draft.report.dense[0].reason

    class Softmax(nn.Module):
        def forward(self, a, x):
            return torch.softmax(a, -1) @ x

    draft = decided(Softmax(), (adjacency(), graph()[0]), {"targets": ["input:a"], "role": "adjacency"})
    assert [(entry.node, entry.reason) for entry in draft.report.dense] == [
        ("softmax", "softmax has no sparse form for a")
    ]


def test_extents_of_weights_are_known():
    model = TwoLayers(geometric.GCNConv, features=9, hidden=16, classes=3).eval()
    draft = decided(model, graph(features=9), MESSAGES)
    assert [region.program.extents for region in draft.regions] == [
        (("k", 16), ("f", 9)),
        (("k", 3), ("f", 16)),
    ]


@pytest.mark.sampled(2)
def test_layers_of_a_chain_are_regions_of_their_own():
    torch.manual_seed(0)
    layers = [nn.Linear(width, width + 1) for width in range(40, 54)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(8, 40)
    rule = {"targets": ["param:*.weight"], "role": "weight", "source": "given", "format": "csr"}
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(5 * (torch.rand_like(layer.weight) < 0.2))
        sparse = apply(model, {"schema": 1, "name": "chain", "sparsify": [rule]}, (x,))
        assert [r.einsum for r in sparse.report.regions] == ["Y[i,k] = sum(j, X[i,j] * W[k,j]) + b[k]"] * 14
        torch.testing.assert_close(sparse(x), model(x), rtol=1e-3, atol=1e-4)
