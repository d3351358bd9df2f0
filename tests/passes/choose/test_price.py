"""What torch's operators are expected to take: products as on the machine, messages by their number."""

import pytest
import torch
from torch import fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from sparsify.compiler.schedule.cost.machine import scaled
from sparsify.compiler.schedule.cost.matmul import dense_us
from sparsify.passes.choose.price import eager_us

MACHINE = scaled(2, 64)


def traced(function, *args) -> fx.Graph:
    module = fx.symbolic_trace(function)
    FakeTensorProp(module).propagate(*args)
    return module.graph


def messages(x, rows, columns):
    return torch.zeros_like(x).index_add(0, rows, x.index_select(0, columns))


def cost(edges: int) -> float:
    index = torch.zeros(edges, dtype=torch.int64)
    graph = traced(messages, torch.zeros(500, 64), index, index)
    return eager_us(graph, MACHINE)


def test_messages_cost_by_their_number():
    assert 5 < cost(100_000) / cost(10_000) < 20


@pytest.mark.parametrize("function", [torch.mm, torch.matmul, lambda x, y: torch.addmm(x[0, :9], x, y)])
def test_products_are_those_of_the_machine(function):
    graph = traced(lambda x, y: function(x, y), torch.zeros(300, 40), torch.zeros(40, 9))
    assert dense_us(300, 9, 40, MACHINE) <= eager_us(graph, MACHINE) < dense_us(300, 9, 40, MACHINE) + 20


def test_views_are_free():
    assert eager_us(traced(lambda x: x.t().unsqueeze(0), torch.zeros(300, 40)), MACHINE) == 0
