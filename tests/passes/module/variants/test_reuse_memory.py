"""Eager graphs write over results that nothing else reads, and over nothing else."""

import copy

import pytest
import torch
from torch import nn
from torch.func import jvp, vmap

import sparsify


class Model(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, y):
        return self.compute(self, x, y)


CASES = {
    "chain": lambda m, x, y: (m.a(x) + m.b(y)).relu(),
    "read twice": lambda m, x, y: (z := m.a(x)).relu() + z,
    "returned": lambda m, x, y: (z := m.a(x), z.relu()),
    "itself": lambda m, x, y: (z := m.a(x)) * z + z,
    "squared": lambda m, x, y: (m.a(x) * m.b(y)) * m.b(x),
    "view": lambda m, x, y: (z := m.a(x), z.t().relu() + z.t())[1],
    "kept for gradients": lambda m, x, y: torch.exp(m.a(x)) + y,
    "broadcast": lambda m, x, y: m.a(x)[:1] + m.b(y),
    "wider": lambda m, x, y: m.a(x) + y.double(),
    "same zeros": lambda m, x, y: (
        torch.zeros(4, 4).scatter_add(0, INDEX, m.a(x))
        + torch.zeros(4, 4).scatter_add(0, INDEX, m.b(y)) * torch.zeros(4, 4).scatter_add(1, INDEX, m.b(x))
    ),
    "zeros read later": lambda m, x, y: (z := torch.zeros(4, 4), z.scatter_add(0, INDEX, m.a(x)), z.exp())[
        1:
    ],
    "zeros returned": lambda m, x, y: (z := torch.zeros(4, 4), z.scatter_add(0, INDEX, m.a(x)))[::-1],
    "zeros beside": lambda m, x, y: torch.cat(
        [(z := torch.zeros(4, 4)).scatter_add(0, INDEX, m.a(x)), z, m.b(y).add(z)]
    ),
    "zeros added": lambda m, x, y: torch.zeros(4, 4).add(torch.zeros(4, 4)) + x,
    "input": lambda m, x, y: (x.relu() + y).clamp(min=0.1) / 2,
    "parameter": lambda m, x, y: m.a.weight.relu() + x,
    "masked": lambda m, x, y: (m.a(x) - y).masked_fill(x > 0, 2.0) * 3,
}
INDEX = torch.tensor([[0, 1, 1, 3]] * 4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_results_gradients_and_operands(name):
    torch.manual_seed(0)
    model = Model(CASES[name]).eval()
    x, y = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    fast = sparsify.apply(model, example_inputs=(x, y), recipe={"name": "nothing", "sparsify": []})
    before = x.detach().clone(), y.detach().clone(), model.a.weight.detach().clone()
    for _ in range(2):
        torch.testing.assert_close(fast(x, y), model(x, y), rtol=0, atol=0)
        with torch.no_grad():
            torch.testing.assert_close(fast(x, y), model(x, y), rtol=0, atol=0)
    leaves = [x, y, *model.parameters()]

    def gradients(run):
        results = run(x, y)
        terms = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(sum(t.square().sum() for t in terms), leaves, allow_unused=True)

    torch.testing.assert_close(gradients(fast), gradients(model))
    for was, now in zip(before, (x, y, model.a.weight), strict=True):
        assert torch.equal(was, now)


def test_writes_happen():
    model = Model(CASES["chain"]).eval()
    x = torch.randn(4, 4)
    fast = sparsify.apply(model, example_inputs=(x, x.clone()), recipe={"name": "nothing", "sparsify": []})
    with torch.profiler.profile() as profile, torch.no_grad():
        fast(x, x)
    names = {event.name for event in profile.events()}
    assert {"aten::add_", "aten::relu_"} <= names and not {"aten::add", "aten::relu"} & names


def test_transforms():
    """A batch is larger than memory that was made for one example."""
    model = Model(lambda m, x, y: torch.zeros(4, 4).scatter_add(0, INDEX, m.a(x)) + y).eval()
    x, y = torch.randn(4, 4), torch.randn(3, 4, 4)
    fast = sparsify.apply(model, example_inputs=(x, y[0]), recipe={"name": "nothing", "sparsify": []})
    torch.testing.assert_close(vmap(fast, (None, 0))(x, y), vmap(model, (None, 0))(x, y))
    torch.testing.assert_close(vmap(fast)(y, y), vmap(model)(y, y))
    tangents = torch.randn(4, 4), torch.randn(4, 4)
    torch.testing.assert_close(jvp(fast, (x, y[0]), tangents), jvp(model, (x, y[0]), tangents))


SUMS = {
    "both": lambda m, x, y: (m.a(x) + torch.nn.functional.linear(y, m.b.weight)).relu(),
    "turned round": lambda m, x, y: torch.nn.functional.linear(y, m.b.weight) + m.a(x),
    "to an input": lambda m, x, y: x + torch.nn.functional.linear(y, m.b.weight),
    "three": lambda m, x, y: (
        m.a(x) + torch.nn.functional.linear(y, m.b.weight) + torch.nn.functional.linear(x, m.b.weight)
    ),
    "read again": lambda m, x, y: (p := torch.nn.functional.linear(x, m.b.weight)) + m.a(y) + p,
    "summand read again": lambda m, x, y: (a := m.a(x)) + torch.nn.functional.linear(y, m.b.weight) + a,
    "itself": lambda m, x, y: (p := torch.nn.functional.linear(x, m.b.weight)) + p,
    "broadcast": lambda m, x, y: m.a.bias + torch.nn.functional.linear(y, m.b.weight),
    "times": lambda m, x, y: torch.add(m.a(x), torch.nn.functional.linear(y, m.b.weight), alpha=2),
    "read by its sum": lambda m, x, y: (a := m.a(x)) + torch.nn.functional.linear(a, m.b.weight),
}


class Writing(nn.Module):
    """A product whose operand is written to before it is added."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.randn(4, 4))
        self.a = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        product = self.a(self.seen)
        self.seen.mul_(2)
        return x.sin() + product


def test_products_do_not_move_over_writes():
    torch.manual_seed(0)
    model = Writing().eval()
    other = copy.deepcopy(model)
    x = torch.randn(4, 4)
    fast = sparsify.apply(model, example_inputs=(x,), recipe={"name": "nothing", "sparsify": []})
    for _ in range(2):
        torch.testing.assert_close(fast(x), other(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_products(name):
    torch.manual_seed(0)
    model = Model(SUMS[name]).double().eval()
    x, y = (torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    fast = sparsify.apply(model, example_inputs=(x, y), recipe={"name": "nothing", "sparsify": []})
    leaves = [x, y, *model.parameters()]
    for run in (fast, model):
        with torch.no_grad():
            torch.testing.assert_close(run(x, y), model(x, y))
    found, wanted = (
        torch.autograd.grad(run(x, y).square().sum(), leaves, allow_unused=True) for run in (fast, model)
    )
    torch.testing.assert_close(found, wanted)


def test_a_sum_is_one_operator():
    model = Model(SUMS["both"]).eval()
    x = torch.randn(4, 4)
    fast = sparsify.apply(model, example_inputs=(x, x.clone()), recipe={"name": "nothing", "sparsify": []})
    with torch.profiler.profile() as profile, torch.no_grad():
        fast(x, x)
    names = [event.name for event in profile.events()]
    assert "aten::addmm_" in names and names.count("aten::linear") == 1
