"""Layers over rows of several modes: one mode of rows for kernels, views that meet and vanish."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sparsify
from sparsify import options, recipe
from sparsify.passes import pipeline
from sparsify.passes.capture import calls
from sparsify.passes.capture import draft as base
from sparsify.passes.capture.export import capture
from sparsify.passes.decide.front_end import front_end
from sparsify.passes.graph.operators import operator_name
from sparsify.passes.rules.mark import mark
from sparsify.passes.rules.propagate import propagate
from sparsify.report import Report

RULE = {"targets": ["param:*.weight"], "types": ["Linear"], "role": "weight", "format": "csr"}
SHAPE = (2, 5, 8)


class Block(nn.Module):
    """What follows attention in a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.down(F.gelu(self.up(x))) + x)


class Gated(nn.Module):
    """Two layers over the same rows, multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Split(nn.Module):
    """Heads of attention: what reads the view is a view itself."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        heads = self.query(x).view(*x.shape[:2], 2, 4).transpose(1, 2)
        return self.out(torch.softmax(heads, -1).transpose(1, 2).reshape(*x.shape))


class Positions(nn.Module):
    """Something is added along the tokens alone."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.positions = nn.Linear(8, 8), nn.Parameter(torch.randn(5, 8))

    def forward(self, x):
        return torch.relu(self.lin(x) + self.positions)


class Twice(nn.Module):
    """The result of a layer is read by two operators."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        y = self.lin(x)
        return torch.relu(y) + y.sum(1, keepdim=True)


def drafted(model, dynamic=None):
    call = calls.flatten(calls.signature(model), (torch.randn(SHAPE),), {})
    captured = capture(model.eval(), call, dynamic)
    text = {"schema": 1, "name": "own", "sparsify": [RULE]}
    draft = base.Draft(captured, model, base.ApplyRequest(recipe.load(text)), Report(), options.current(), {})
    for step in (mark, propagate, front_end):
        draft = step(draft)
        pipeline.verify(draft, step.__name__)
    return draft


def called(draft):
    """The operators that a graph calls, `region` for what a region computes."""
    regions = {region.output: region for region in draft.regions}
    found, waiting = set(), list(draft.graph.output_node().all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += regions[node].inputs if node in regions else node.all_input_nodes
    names = ["region" if node in regions else operator_name(node) for node in sorted(found)]
    return [name for name in names if name not in ("", "sym_size")]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Block, "view region region view layer_norm"),
        (Gated, "view region region region view"),
        (Split, "view region view transpose softmax transpose view region view"),
        (Positions, "view region view add relu"),
        (Twice, "view region view relu sum add"),
    ],
)
def test_views(model, expected):
    """Regions behind each other read rows, without views between them."""
    assert " ".join(called(drafted(model()))) == expected


@pytest.mark.parametrize("model", [Block, Gated, Split, Positions, Twice])
def test_the_graph_computes_the_same(model):
    torch.manual_seed(0)
    source = model()
    draft = drafted(source)
    module = torch.fx.GraphModule(source, draft.graph)
    for shape in (SHAPE, (3, 5, 8), (4, 1, 8)) if model is not Positions else (SHAPE, (3, 5, 8)):
        x = torch.randn(shape)
        assert all(
            found.shape == wanted.shape and torch.allclose(found, wanted, atol=1e-6)
            for found, wanted in zip(module(x), [source(x)], strict=True)
        )


@pytest.mark.parametrize("dynamic", [None, ()])
def test_epilogues_are_fused(dynamic):
    draft = drafted(Block(), dynamic)
    assert [str(region.program.statements[-1]) for region in draft.regions] == [
        "Y[i,k] = gelu(sum(j, X[i,j] * W[k,j]) + b[k])",
        "Y[i,k] = sum(j, X[i,j] * W[k,j]) + b[k] + X1[i,k]",
    ]


@pytest.mark.sampled(2)
def test_kernels_and_gradients_at_other_shapes():
    torch.manual_seed(0)
    model = Block()
    model.up.weight.data *= torch.rand(16, 8) < 0.3
    model.down.weight.data *= torch.rand(8, 16) < 0.3
    text = {"schema": 1, "name": "own", "sparsify": [RULE]}
    sparse = sparsify.apply(model, text, torch.randn(SHAPE), strict=True)
    assert len(sparse.report.regions) == 2
    for x in (torch.randn(SHAPE), torch.randn(3, 7, 8), torch.randn(2, 8, 5).transpose(1, 2)):
        found, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.testing.assert_close(sparse(found), model(wanted))
        sparse(found).square().sum().backward()
        model(wanted).square().sum().backward()
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-5)
    assert len(sparse.variants) == 1


class Head(nn.Module):
    """A layer with one result behind one with several."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


class Turned(nn.Module):
    """A layer over rows in another order than those of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 16)

    def forward(self, x):
        return torch.relu(self.lin(x.transpose(0, 1)))


class Added(nn.Module):
    """A product and a sum by one operator."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(16))

    def forward(self, x):
        return torch.addmm(self.b, x, self.w)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (Block, (8,), "Y[i,k] = gelu(sum(j, X[i,j] * W[k,j]) + b[k])"),
        (Block, (1, 8), "Y[i,k] = gelu(sum(j, X[i,j] * W[k,j]) + b[k])"),
        (Block, (3, 1, 8), "Y[i,k] = gelu(sum(j, X[i,j] * W[k,j]) + b[k])"),
        (Head, (4, 8), "Y[i,k] = tanh(sum(j, X[i,j] * W[k,j]) + b[k])"),
        (Head, (2, 5, 8), "Y[i,k] = tanh(sum(j, X[i,j] * W[k,j]) + b[k])"),
        (Head, (1, 8), "Y[i,k] = tanh(sum(j, X[i,j] * W[k,j]) + b[k])"),
        (Turned, (2, 5, 8), "Y[i,k] = relu(sum(j, X[i,j] * W[k,j]) + b[k])"),
        (Added, (1, 8), "Y[i,k] = b[k] + sum(j, X[i,j] * W[j,k])"),
    ],
    ids=str,
)
def test_rows_of_any_modes(model, shape, expected, training):
    torch.manual_seed(0)
    source = model().double().train(training)
    with torch.no_grad():
        for weight in (p for p in source.parameters() if p.dim() > 1):
            weight.mul_(torch.rand_like(weight) < 0.5)
    rule = {"targets": ["re:param:(.*weight|w)"], "role": "weight", "source": "given", "format": "csr"}
    x = torch.randn(shape, dtype=torch.float64)
    text = {"schema": 1, "name": "own", "sparsify": [rule]}
    sparse = sparsify.apply(source, text, x)
    assert sparse.report.regions[0].einsum == expected
    assert len(sparse.report.regions) == (2 if model in (Block, Head) else 1)
    found, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.testing.assert_close(sparse(found), source(wanted))
    sparse(found).square().sum().backward()
    source(wanted).square().sum().backward()
    torch.testing.assert_close(found.grad, wanted.grad)


def test_one_column_that_is_squeezed():
    """As scores of clicks are: the view behind the layer stays a view."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 1), nn.Sigmoid(), nn.Flatten(0)).eval()
    rule = {
        "targets": ["param:*.weight"],
        "role": "weight",
        "prune": {"method": "magnitude", "sparsity": 0.9},
    }
    x = torch.randn(50, 40)
    sparse = sparsify.apply(
        copy.deepcopy(model), {"schema": 1, "name": "clicks", "sparsify": [rule]}, x, strict=True
    )
    torch.testing.assert_close(sparse(x), sparse.original(x), rtol=1e-4, atol=1e-5)
    assert sparse(x).shape == (50,)


class ReadTwice(nn.Module):
    """A layer, and rows of its input that the model makes behind it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 16)

    def forward(self, x):
        layer = self.layer(x)
        rows = x.reshape(-1, 32)[:, :16]
        return layer * torch.sigmoid(rows).view(x.shape[0], x.shape[1], 16)


def test_rows_that_a_model_makes_behind_a_layer():
    torch.manual_seed(0)
    rule = {
        "targets": ["param:*.weight"],
        "role": "weight",
        "prune": {"method": "magnitude", "sparsity": 0.9},
    }
    x = torch.randn(3, 5, 32)
    sparse = sparsify.apply(ReadTwice().eval(), {"schema": 1, "name": "twice", "sparsify": [rule]}, x)
    torch.testing.assert_close(sparse(x), sparse.original(x), rtol=1e-4, atol=1e-5)
