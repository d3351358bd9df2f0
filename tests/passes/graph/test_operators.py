"""One name for every way of writing an operator."""

import operator

import pytest
import torch
from torch import fx

from sparsify.passes.graph import operators


def node(target, args=(), op="call_function", **kwargs):
    graph = fx.Graph()
    x = graph.placeholder("x")
    return graph.create_node(op, target, (x, *args), kwargs)


@pytest.mark.parametrize(
    ("target", "op", "name"),
    [
        (torch.ops.aten.index_add.default, "call_function", "index_add"),
        (torch.ops.aten.index_add_.default, "call_function", "index_add"),
        (torch.index_add, "call_function", "index_add"),
        ("index_add_", "call_method", "index_add"),
        (torch.ops.aten.add, "call_function", "add"),
        (operator.add, "call_function", "add"),
        (operator.iadd, "call_function", "add"),
        (torch.add, "call_function", "add"),
        (torch.ops.aten.div.Tensor, "call_function", "div"),
        (torch.true_divide, "call_function", "div"),
        (torch.ops.aten._softmax.default, "call_function", "softmax"),
        ("reshape", "call_method", "view"),
        (torch.ops.aten.sym_size.int, "call_function", "sym_size"),
        ("size", "call_method", "sym_size"),
        (operator.matmul, "call_function", "matmul"),
        ("__matmul__", "call_method", "__matmul__"),
    ],
)
def test_names(target, op, name):
    assert operators.operator_name(node(target, op=op)) == name


@pytest.mark.parametrize(
    ("target", "writes"),
    [
        (torch.ops.aten.relu_.default, True),
        (torch.ops.aten.relu.default, False),
        (operator.iadd, True),
        (operator.add, False),
    ],
)
def test_writing(target, writes):
    assert operators.is_mutating(node(target)) is writes


@pytest.mark.parametrize(
    ("args", "inactive"), [((0.5, False), True), ((0.5, True), False), ((0.0, True), True), ((0.5,), False)]
)
def test_dropout(args, inactive):
    dropout = node(torch.ops.aten.dropout.default, args)
    assert operators.is_inactive_dropout(dropout) is inactive
    assert operators.is_random(dropout) is not inactive


def test_placeholders_have_no_operator():
    graph = fx.Graph()
    assert operators.operator_name(graph.placeholder("x")) == ""
