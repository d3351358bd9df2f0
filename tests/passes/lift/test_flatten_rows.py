"""Layers over rows of several modes: one mode of rows for kernels, views that meet and vanish."""

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
from sparsify.passes.fuse.fuse import fuse
from sparsify.passes.graph.operators import operator_name
from sparsify.passes.lift.flatten_rows import flatten
from sparsify.passes.lift.lift import lift
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


def drafted(model, steps=(mark, propagate, flatten), dynamic=None):
    call = calls.flatten(calls.signature(model), (torch.randn(SHAPE),), {})
    captured = capture(model.eval(), call, dynamic)
    text = {"schema": 1, "name": "own", "sparsify": [RULE]}
    draft = base.Draft(captured, model, base.Asked(recipe.load(text)), Report(), options.current(), {})
    for step in steps:
        draft = step(draft)
        pipeline.verify(draft, step.__name__)
    return draft


def operators(draft):
    return [operator_name(node) for node in draft.graph.nodes if operator_name(node) not in ("", "sym_size")]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Block, "view linear gelu linear add layer_norm view"),
        (Gated, "view linear silu linear mul linear view"),
        (Split, "view linear view transpose softmax transpose view linear view"),
        (Positions, "view linear view add relu"),
        (Twice, "view linear view relu sum add"),
    ],
)
def test_views(model, expected):
    assert " ".join(operators(drafted(model()))) == expected


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


def test_matrices_stay_as_they_are():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    call = calls.flatten(calls.signature(model), (torch.randn(3, 8),), {})
    rules = recipe.load({"schema": 1, "name": "own", "sparsify": [RULE]})
    draft = base.Draft(capture(model, call), model, base.Asked(rules), Report(), options.current(), {})
    propagate(mark(draft))
    before = str(draft.graph)
    assert str(flatten(draft).graph) == before


@pytest.mark.parametrize("dynamic", [None, ()])
def test_epilogues_are_fused(dynamic):
    draft = drafted(Block(), (mark, propagate, flatten, lift, fuse), dynamic)
    assert [str(region.program.statements[-1]) for region in draft.regions] == [
        "Y[i,k] = gelu(sum(j, X[i,j] * W[k,j]) + b[k])",
        "Y[i,k] = sum(j, X[i,j] * W[k,j]) + b[k] + X1[i,k]",
    ]


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
