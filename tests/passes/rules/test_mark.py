"""Marks: every way of selecting, and what is said when nothing fits."""

import pytest
import torch
from graph_models import Kipf, TwoLayers, adjacency, graph
from torch import nn

from sparsify import options, recipe
from sparsify.errors import RecipeError
from sparsify.passes.capture import calls
from sparsify.passes.capture import draft as base
from sparsify.passes.capture.export import capture
from sparsify.passes.graph.node_info import info
from sparsify.passes.rules.mark import mark
from sparsify.passes.rules.propagate import propagate
from sparsify.report import Report

geometric = pytest.importorskip("torch_geometric.nn")


def draft(model, args, rules, file=None):
    call = calls.flatten(calls.signature(model), args, {})
    captured = capture(model, call)
    text = "schema: 1\nname: own\nsparsify:\n" + "".join(f"  - {rule}\n" for rule in rules)
    examples = {leaf.name: value for leaf, value in zip(call.shape.leaves, call.values, strict=True)}
    return base.Draft(
        captured,
        model,
        base.ApplyRequest(recipe.loads(text, "own.yaml")),
        Report(),
        options.current(),
        examples,
    )


def marked(work):
    return {node.name: info(node).mark for node in work.graph.nodes if info(node).mark is not None}


class Shared(nn.Module):
    """One layer called twice, and tied parameters."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 7)
        self.head = nn.Linear(7, 7, bias=False)
        self.head.weight = self.layer.weight

    def forward(self, x):
        return self.head(self.layer(self.layer(x)))


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("input:x", ["x"]),
        ("param:head.weight", ["layer_weight"]),
        ("param:*.bias", ["layer_bias"]),
        ("layer.*", ["layer_weight", "layer_bias"]),
        ("scope:layer", ["linear", "linear_1"]),
        ("scope:layer@2", ["linear_1"]),
        ("node:layer.linear", ["linear"]),
        ("op:linear", ["linear", "linear_1", "linear_2"]),
        ("Linear", ["linear", "linear_1", "linear_2"]),
        ("re:op:lin.*r", ["linear", "linear_1", "linear_2"]),
    ],
)
def test_targets(target, names):
    work = mark(draft(Shared(), (torch.rand(4, 7),), [f"{{targets: ['{target}'], format: csr}}"]))
    assert sorted(marked(work)) == sorted(names)


def test_message_passing_and_its_mark():
    work = mark(
        draft(
            TwoLayers(geometric.GCNConv).eval(), graph(), ["{targets: ['op:message_passing'], format: csr}"]
        )
    )
    found = marked(work)
    assert len(found) == 2
    first = next(iter(found.values()))
    assert first.role == "adjacency"
    assert first.where == "own.yaml:4"
    assert work.report.rules[0].matched == ["op:message_passing"] * 2


def test_ignore_types_and_optional():
    rules = [
        "{targets: ['param:*'], ignore: ['param:*.bias'], types: [Linear]}",
        "{targets: ['input:nothing'], optional: true}",
    ]
    work = mark(draft(Shared(), (torch.rand(4, 7),), rules))
    assert sorted(marked(work)) == ["layer_weight"]
    assert work.report.rules[1].matched == []


def test_limits_leave_a_tensor_dense_and_say_so():
    rules = [
        "{targets: ['input:x'], when: {max_density: 0.5}}",
        "{targets: ['input:edge_index'], format: csr}",
    ]
    work = mark(draft(TwoLayers(Kipf).eval(), (graph()[0], adjacency()), rules))
    assert sorted(marked(work)) == ["edge_index"]
    assert "density 1 is above max_density 0.5" in work.report.rules[0].note
    assert work.report.dense[0].node == "x"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("{targets: ['input:adjj']}", "matches nothing: 'input:adjj'; did you mean"),
        ("{targets: ['op:softmax']}", "matches nothing"),
        ("{targets: ['op:message_passing']}", "'op:message_passing' (nothing is scattered)"),
        (
            "{targets: ['x'], prune: {method: magnitude, sparsity: 0.5}}",
            "`prune` makes zeros in parameters, and input:x is none",
        ),
        (
            "{targets: ['x'], mask: {kind: bigbird}}",
            "`mask` is for attention, op:scaled_dot_product_attention, and input:x is none",
        ),
        ("{targets: ['input:x'], format: csrr}", "format:"),
    ],
)
def test_errors_name_file_and_line(rule, words):
    with pytest.raises(RecipeError) as caught:
        mark(draft(TwoLayers(Kipf).eval(), (graph()[0], adjacency()), [rule]))
    assert words in str(caught.value)
    assert str(caught.value).startswith("own.yaml:4:5")


class Degrees(nn.Module):
    """The number of neighbours, which follows from the edges alone."""

    def forward(self, x, edge_index):
        return x / x.new_zeros(len(x)).index_add(0, edge_index[1], x.new_ones(edge_index.shape[1]))[:, None]


def test_message_passing_that_is_none_says_why():
    with pytest.raises(
        RecipeError,
        match=r"'op:message_passing' \(index_add scatters no features.*structure of a graph alone",
    ):
        mark(draft(Degrees(), graph(), ["{targets: ['op:message_passing']}"]))


def test_two_rules_for_one_tensor():
    rules = ["{id: first, targets: ['input:x']}", "{targets: ['input:*']}"]
    with pytest.raises(RecipeError, match="input:x is selected by first already"):
        mark(draft(Shared(), (torch.rand(4, 7),), rules))


def test_propagation_stops_where_zeros_end():
    class Chain(nn.Module):
        def forward(self, a, x):
            kept = (a.t().relu() * 2.0).neg()
            return (kept + 1) @ x, kept @ x

    rule = ["{targets: ['input:a'], format: csr}"]
    work = propagate(mark(draft(Chain(), (adjacency(), graph()[0]), rule)))
    found = marked(work)
    assert sorted(found) == ["a", "mul", "neg", "relu", "t"]
    assert found["neg"].derived
    assert not found["a"].derived
