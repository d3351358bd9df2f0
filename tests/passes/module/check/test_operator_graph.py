"""Calls whose edges come for the first time: by torch's operators while graphs are small."""

import copy
from itertools import chain, cycle

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.errors import VerificationError
from sparsify.passes.module.check import operator_graph

RULE = {"id": "adjacency", "targets": ["op:message_passing"], "role": "adjacency", "source": "given"}
RECIPE = {"name": "new", "sparsify": [RULE]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x, edge_index):
        messages = self.lin(x).index_select(0, edge_index[0])
        return torch.zeros_like(x).index_add(0, edge_index[1], messages).relu()


def graph(seed, nodes=40, edges=90):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(nodes, 8, generator=generator), torch.randint(
        0, nodes, (2, edges), generator=generator
    )


@pytest.fixture
def applied(monkeypatch):
    """A model whose new graphs run torch's operators up to twice the size of the example."""
    times = chain([1e-3, 1e-3, 5e-3], cycle([5e-3, 1e-3, 9e-3]))
    monkeypatch.setattr(operator_graph, "seconds", lambda run, parameters: (run(), next(times))[1])
    return timed()


def timed(recipe=RECIPE, **settings):
    """The model applied with seconds for choices, which tests have not."""
    with options.override(tune_seconds=0.01):
        return sparsify.apply(Net().eval(), example_inputs=graph(0), recipe=recipe, **settings)


def conversions(model):
    return sum(entry.count for entry in model.report.conversions)


def test_the_size_follows_from_three_times(applied):
    (variant,) = applied.variants
    assert variant.operators.most == 2 * 180 == applied.report.new_graphs
    assert "graphs of at most 360 coordinates of edges that come for the first time" in str(applied.report)


def test_new_graphs_are_not_sorted_and_known_ones_are(applied):
    x, edges = graph(1)
    before = conversions(applied)
    first = applied(x, edges)
    assert conversions(applied) == before
    second = applied(x, edges)
    assert conversions(applied) == before + 1
    dense = applied.original(x, edges)
    torch.testing.assert_close(first, dense)
    torch.testing.assert_close(second, dense)


def test_a_graph_that_was_written_to_is_new(applied):
    x, edges = graph(2)
    applied(x, edges), applied(x, edges)
    before = conversions(applied)
    edges[0, 0] = 3
    torch.testing.assert_close(applied(x, edges), applied.original(x, edges))
    assert conversions(applied) == before


def test_the_example_is_known_and_large_graphs_are_sorted(applied):
    before = conversions(applied)
    x, edges = graph(3, 300, 500)
    torch.testing.assert_close(applied(x, edges), applied.original(x, edges))
    assert conversions(applied) == before + 1


def test_many_graphs_in_turn_stay_new(applied):
    graphs = [graph(seed) for seed in range(30)]
    before = conversions(applied)
    for _ in range(3):
        for x, edges in graphs:
            applied(x, edges)
    assert conversions(applied) == before


def test_gradients_of_new_and_of_known_graphs(applied):
    applied.train()
    x, edges = graph(4)
    parameters = list(applied.parameters())
    wanted = torch.autograd.grad(applied.original(x, edges).square().sum(), parameters)
    for _ in range(2):
        found = torch.autograd.grad(applied(x, edges).square().sum(), parameters)
        torch.testing.assert_close(found, wanted)
    assert applied.verify_gradients(*graph(5)) < 1e-3


def test_what_is_checked_and_timed_runs_in_kernels(applied):
    before = conversions(applied)
    applied.measure(*graph(6))
    assert conversions(applied) == before + 1


def test_a_copy_knows_the_size(applied):
    other = copy.deepcopy(applied)
    (variant,) = other.variants
    assert variant.operators.most == 360
    x, edges = graph(7)
    torch.testing.assert_close(other(x, edges), applied.original(x, edges))


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE | {"compile": {"memory": "compact"}},
        {"name": "static", "sparsify": [RULE | {"static": True}]},
    ],
    ids=["compact", "static"],
)
def test_no_choice(recipe):
    model = timed(recipe)
    assert all(variant.operators is None for variant in model.variants)


def test_strict_models_run_in_kernels():
    model = timed(strict=True)
    assert all(variant.operators is None for variant in model.variants)


def test_the_smallest_side_decides(monkeypatch):
    """Kernels that save nothing run for no new graph up to four times the size of the example."""
    monkeypatch.setattr(operator_graph, "seconds", lambda run, parameters: (run(), 1e-3)[1])
    model = timed()
    assert model.report.new_graphs == 4 * 180
    before = conversions(model)
    x, edges = graph(8, 300, 300)
    model(x, edges), model(x, edges)
    assert conversions(model) == before + 1


def test_kernels_that_lose_do_not_run(monkeypatch):
    times = chain([3e-3, 3e-3, 2e-3], cycle([2e-3, 3e-3, 4e-3]))
    monkeypatch.setattr(operator_graph, "seconds", lambda run, parameters: (run(), next(times))[1])
    model = timed()
    before = conversions(model)
    for seed in (0, 1, 1):
        x, edges = graph(seed)
        torch.testing.assert_close(model(x, edges), model.original(x, edges))
    assert conversions(model) == before
    assert "720 coordinates of edges (2 ms, 3 in kernels)" in str(model.report)
    x, edges = graph(3, 300, 500)  # of this size nothing is known
    torch.testing.assert_close(model(x, edges), model.original(x, edges))
    assert conversions(model) == before + 1


def test_checkpoints_repeat_what_they_saved(applied):
    applied.train()
    x, edges = graph(9)
    x.requires_grad_()
    (wanted,) = torch.autograd.grad(applied.original(x, edges).square().sum(), x)
    found = torch.utils.checkpoint.checkpoint(applied, x, edges, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x)[0], wanted)


def test_batches_of_examples(applied):
    x, edges = graph(10)
    many = torch.stack([x, 2 * x])
    found = torch.func.vmap(applied, (0, None))(many, edges)
    torch.testing.assert_close(found, torch.stack([applied.original(one, edges) for one in many]))


def test_operators_that_differ_do_not_run(monkeypatch):
    def differ(*_):
        raise VerificationError("another result")

    monkeypatch.setattr(operator_graph, "compare", differ)
    assert all(variant.operators is None for variant in timed().variants)
