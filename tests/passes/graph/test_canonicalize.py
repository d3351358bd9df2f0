"""Canonical graphs: one row per rewrite, and rows that must not change."""

import pytest
import torch
from torch import fx, nn

from sparsify.passes.capture import calls
from sparsify.passes.capture.export import capture
from sparsify.passes.graph import operators


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def fresh_clamp(x):
    degree = x.new_zeros(5).scatter_add_(0, torch.arange(5), x.new_ones(5))
    return x * degree.view(-1, 1).clamp_(min=1)


def writes_to_input(x):
    x.mul_(2)
    return x + 1


def writes_through_a_view(x):
    y = x * 1
    row = y[0]
    row.add_(1)
    return y


def reads_before_and_after(x):
    y = x.exp()
    before = y * 2
    y.add_(1)
    return before + y


def writes_into_one_of_two(x):
    one, other = torch.arange(3), torch.arange(3)
    one[1:].mul_(4)
    return x * (one + other)


def reads_a_view_before_and_after(x):
    y = x * 1
    view, row = y.view(-1), y[0]
    before = view.exp()
    row.mul_(2)
    return before + view.exp()


CASES = [
    (lambda x: x.new_zeros(3, 2) + 1, ["zeros", "add"]),
    (lambda x: torch.ones_like(x) + x, ["sym_size", "sym_size", "ones", "add"]),
    (lambda x: x[:] + nn.functional.dropout(x, 0.5, training=False), ["add"]),
    (lambda x: (x * 2) + (x * 2), ["mul", "add"]),
    (lambda x: torch.rand_like(x) + torch.rand_like(x), ["rand_like", "rand_like", "add"]),
    (lambda x: (x * 2) + (x * 2.0), ["mul", "mul", "add"]),
    (lambda x: torch.cat([x.new_zeros(0), x * 2], -2), ["mul"]),
    (lambda x: torch.cat([x.new_zeros(0, 3), x * 2]), ["zeros", "mul", "cat"]),
    (
        lambda x: torch.cat([x.new_zeros(0), (x * 2).long()]),
        ["zeros", "mul", "to", "cat"],
    ),
    (reads_before_and_after, ["exp", "mul", "add", "add"]),
]


def writes_into_what_follows_nothing(x):
    y = torch.cat([x.new_zeros(0), x])
    y[0].mul_(2)
    return y


def test_a_copy_that_is_written_to_stays_one():
    model, x = Of(writes_into_what_follows_nothing), torch.rand(5, 3)
    captured = capture(model, calls.flatten(calls.signature(model), (x.clone(),), {}))
    given = x.clone()
    fx.GraphModule(model, captured.graph)(given)
    assert torch.equal(given, x)


@pytest.mark.parametrize("function", [writes_into_one_of_two, reads_a_view_before_and_after])
def test_what_is_written_into_is_not_merged(function):
    model, x = Of(function), torch.rand(5, 3)
    captured = capture(model, calls.flatten(calls.signature(model), (x,), {}))
    found = fx.GraphModule(model, captured.graph)(x)
    assert torch.equal(found[0] if isinstance(found, list | tuple) else found, function(x))


@pytest.mark.parametrize(("function", "names"), CASES, ids=[str(names) for _, names in CASES])
def test_rewrites(function, names):
    model = Of(function)
    captured = capture(model, calls.flatten(calls.signature(model), (torch.rand(5, 3),), {}))
    nodes = [node for node in captured.graph.nodes if node.op == "call_function"]
    assert [operators.operator_name(node) for node in nodes] == names
    assert not any(operators.is_mutating(node) for node in nodes)


@pytest.mark.parametrize("function", [fresh_clamp, writes_through_a_view, reads_before_and_after])
def test_values_stay(function):
    x = torch.rand(5, 3)
    model = Of(function)
    captured = capture(model, calls.flatten(calls.signature(model), (x,), {}))
    assert torch.allclose(torch.fx.GraphModule(model, captured.graph)(x)[0], function(x))


def test_writes_through_views_are_pure_and_read_back():
    model = Of(writes_through_a_view)
    captured = capture(model, calls.flatten(calls.signature(model), (torch.rand(5, 3),), {}))
    nodes = [node for node in captured.graph.nodes if node.op == "call_function"]
    assert not any(operators.is_mutating(node) for node in nodes)
    assert "select_scatter" in [operators.operator_name(node) for node in nodes]
