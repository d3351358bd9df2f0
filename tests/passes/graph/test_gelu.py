"""GELU that models spell out: the operator that it becomes, its results and gradients, and what is none."""

import math

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.passes.capture import calls
from sparsify.passes.capture.export import capture
from sparsify.passes.graph import operators

RECIPE = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "role": "weight", "source": "given"}],
}


class Spelled(nn.Module):
    def __init__(self, function, linear=None):
        super().__init__()
        self.function, self.linear = function, linear

    def forward(self, x):
        return self.function(x if self.linear is None else self.linear(x))


def new_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def with_seven_digits(x):
    return (torch.tanh((0.044715 * x**3 + x) * 0.7978846) + 1) * (x / 2)


def by_erf(x):
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def of_two(x):
    return 0.5 * (x * 1.5) * (1.0 + torch.erf(x / math.sqrt(2.0)))


def other_power(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 2.0))))


def other_factor(x):
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.1)))


def written_between(x):
    y = x * 1
    half = y * 0.5
    y[0].add_(1)
    return half * (1.0 + torch.erf(y / math.sqrt(2.0)))


def graph_of(function, x):
    model = Spelled(function)
    return capture(model, calls.flatten(calls.signature(model), (x,), {})).graph


@pytest.mark.parametrize(
    ("function", "approximate"), [(new_gelu, "tanh"), (with_seven_digits, "tanh"), (by_erf, "none")]
)
def test_it_is_one_operator(function, approximate):
    (node,) = [node for node in graph_of(function, torch.randn(4, 3)).nodes if node.op == "call_function"]
    assert operators.operator_name(node) == "gelu"
    assert node.kwargs == {"approximate": approximate}


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (of_two, torch.float32),
        (other_power, torch.float32),
        (other_factor, torch.float32),
        (written_between, torch.float32),
        (new_gelu, torch.bfloat16),
        (by_erf, torch.int64),
    ],
)
def test_what_is_none_stays(function, dtype):
    graph = graph_of(function, torch.randn(4, 3).to(dtype))
    assert "gelu" not in [operators.operator_name(node) for node in graph.nodes]


@pytest.mark.parametrize("function", [new_gelu, by_erf])
def test_results_and_gradients(function):
    torch.manual_seed(0)
    model = Spelled(function, nn.Linear(24, 16)).double().eval()
    model.linear.weight.data *= torch.rand(16, 24) < 0.3
    x = torch.randn(6, 24, dtype=torch.float64, requires_grad=True)
    with options.override(tune_seconds=0):
        sparse = sparsify.apply(model, RECIPE, x, trainable=False)
    (region,) = sparse.report.regions
    assert region.einsum.startswith("Y[i,k] = gelu")
    found, expected = sparse(x), model(x)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found.sin().sum(), [x, model.linear.bias]),
        torch.autograd.grad(expected.sin().sum(), [x, model.linear.bias]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
