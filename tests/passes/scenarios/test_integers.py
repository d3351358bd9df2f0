"""Integers among the arguments of a model: constants at first, symbols of the graph once a call has another value."""

import copy

import pytest
import torch
from graph_models import MESSAGES, graph
from torch import nn

from sparsify.passes.apply import apply


class Counted(nn.Module):
    """Messages to as many nodes as an argument says."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(7, 5)

    def forward(self, x, edge_index, sizes, steps=1):
        rows = x.new_zeros(sizes["nodes"], 5).index_add(0, edge_index[1], self.layer(x)[edge_index[0]])
        for _ in range(steps):
            rows = rows.relu() + 1
        return rows


def compare(sparse, model, *given, **named):
    found, wanted = sparse(*given, **named), model(*given, **named)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        *(torch.autograd.grad(y.square().sum(), list(model.parameters())) for y in (found, wanted))
    )


def arguments(nodes, edges, count):
    x, edge_index = graph(nodes, edges)
    return x.double(), edge_index, {"nodes": count}


def test_a_second_value_makes_a_symbol():
    model = Counted().double()
    sparse = apply(model, MESSAGES, arguments(20, 55, 20), strict=True)
    for nodes, edges, count in ((20, 55, 20), (20, 55, 31), (33, 90, 33), (8, 30, 12), (20, 55, 20)):
        compare(sparse, model, *arguments(nodes, edges, count))
    assert len(sparse.variants) == 2
    assert all(variant.report.regions for variant in sparse.variants)
    x, edge_index, _ = arguments(20, 55, 1)
    compare(sparse, model, x, torch.zeros_like(edge_index), {"nodes": 1})  # 1 is special to export


@pytest.mark.sampled(2)
def test_an_integer_that_decides_what_is_computed():
    model = Counted().double()
    sparse = apply(model, MESSAGES, (*arguments(20, 55, 20), 2))
    for steps in (2, 3, 2, 4, 3):
        compare(sparse, model, *arguments(20, 55, 20), steps=steps)
        compare(sparse, model, *arguments(24, 70, 24), steps)
    assert "steps[0] = 3" in [name for variant in sparse.variants for name in variant.report.specialised]


def test_rules_do_not_name_integers():
    recipe = {
        **MESSAGES,
        "sparsify": [*MESSAGES["sparsify"], {"targets": ["input:sizes*"], "optional": True}],
    }
    model = Counted().double()
    sparse = apply(model, recipe, arguments(20, 55, 20))
    for count in (20, 30):
        compare(sparse, model, *arguments(20, 55, count))
    assert not any("sizes" in name for entry in sparse.report.rules for name in entry.matched)


def test_truth_values_and_fractions_stay_constants():
    class Scaled(Counted):
        def forward(self, x, edge_index, factor, is_negated):
            rows = x.new_zeros(x.shape[0], 5).index_add(0, edge_index[1], self.layer(x)[edge_index[0]])
            return -rows * factor if is_negated else rows * factor

    model = Scaled().double()
    x, edge_index, _ = arguments(20, 55, 20)
    sparse = apply(model, MESSAGES, (x, edge_index, 2.0, True))
    for factor, is_negated in ((2.0, True), (3.0, True), (3, False), (4, False), (5, False)):
        compare(sparse, model, x, edge_index, factor, is_negated)


def test_symbols_of_copies():
    model = Counted().double()
    sparse = apply(model, MESSAGES, arguments(20, 55, 20))
    for count in (20, 24, 28):
        sparse = copy.deepcopy(sparse)
        torch.testing.assert_close(sparse(*arguments(20, 55, count)), model(*arguments(20, 55, count)))
    assert len(sparse.variants) == 2
