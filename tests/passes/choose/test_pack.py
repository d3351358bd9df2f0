"""Frozen weights get the format that suits their zeros, or stay dense."""

import copy
import itertools
import re
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify.compiler.plan import plan

RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "role": "weight", "source": "given"}],
}


def pruned(density: float, *sizes: int, height: int = 1) -> nn.Sequential:
    """Linear layers with ReLU between them, whose weights have zeros at random."""
    seeded = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = []
    for columns, outputs in itertools.pairwise(sizes):
        layer = nn.Linear(columns, outputs)
        mask = torch.rand(outputs // height, columns, generator=seeded) < density
        layer.weight.data *= mask.repeat_interleave(height, 0)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


@pytest.fixture(scope="module")
def applied() -> tuple[nn.Sequential, Any]:
    model = pruned(0.1, 384, 512)
    return model, sparsify.apply(model, RECIPE, torch.randn(96, 384))


def test_a_pruned_layer_is_packed(applied):
    model, sparse = applied
    (entry,) = sparse.report.regions
    assert re.search(r"compressed\(crd=int(8|16)\)$", entry.formats["W"])
    assert "0.weight packed: 10" in entry.notes[0]
    for rows in (96, 1, 7, 200):
        x = torch.randn(rows, 384)
        torch.testing.assert_close(sparse(x), model(x), rtol=1e-4, atol=1e-5)


def test_bytes_are_reported(applied):
    _, sparse = applied
    (entry,) = sparse.report.conversions
    assert entry.bytes_before == 384 * 512 * 4
    assert entry.bytes_after < 0.2 * entry.bytes_before
    assert "768.0 KiB -> " in str(sparse.report)


def test_copies_and_state_dicts_are_right(applied):
    model, sparse = applied
    x = torch.randn(5, 384)
    torch.testing.assert_close(copy.deepcopy(sparse)(x), model(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(sparse.state_dict()["0.weight"], model[0].weight)


def test_gradients_of_the_input(applied):
    model, sparse = applied
    x = torch.randn(9, 384, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    sparse(x).square().sum().backward()
    model(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


def test_few_zeros_stay_dense():
    model = pruned(0.9, 64, 64)
    sparse = sparsify.apply(model, RECIPE, torch.randn(32, 64))
    assert not sparse.report.regions
    (entry,) = sparse.report.dense
    assert entry.reason.startswith("the weight 0.weight is smaller dense: 100.0% stored")
    assert "torch's product" in entry.reason


@pytest.mark.parametrize("memory", ["fast", "compact"])
def test_compact_memory_goes_before_time(memory):
    sparse = sparsify.apply(
        pruned(0.8, 256, 256), {**RECIPE, "compile": {"memory": memory}}, torch.randn(1, 256), verify=False
    )
    if memory == "fast":
        (entry,) = sparse.report.dense
        assert entry.reason.startswith("the weight 0.weight is faster dense: 80")
    else:
        assert sparse.report.regions[0].formats["W"] == "i: dense, j/64: dense, j%64: bitmap"


def test_a_format_that_a_rule_names_is_kept():
    rule = {**RECIPE["sparsify"][0], "format": "csr"}
    sparse = sparsify.apply(pruned(0.9, 64, 64), {**RECIPE, "sparsify": [rule]}, torch.randn(32, 64))
    assert sparse.report.regions[0].formats == {"W": "dense, compressed"}


def test_weights_that_a_rule_leaves_dense_are_read_as_they_are():
    model = pruned(1.0, 96, 160, 64)
    rule = {**RECIPE["sparsify"][0], "format": "dense, dense"}
    sparse = sparsify.apply(model, {**RECIPE, "sparsify": [rule]}, torch.randn(32, 96))
    assert len(sparse.report.regions) == 2
    assert not sparse.report.conversions
    assert not sparse.report.weights
    assert sparse.get_parameter("0.weight") is model[0].weight
    assert sparse.verify_gradients(torch.randn(7, 96)) < 1e-3


def test_dense_products_are_planned_for_their_sizes(monkeypatch):
    asked = []

    def is_generated(program, statement, sizes):
        asked.append(dict(sizes.extents))
        return False

    monkeypatch.setattr(plan, "is_generated", is_generated)
    rule = {**RECIPE["sparsify"][0], "format": "dense, dense"}
    sparsify.apply(pruned(1.0, 41, 43), {**RECIPE, "sparsify": [rule]}, torch.randn(37, 41))
    assert {"i": 37, "j": 41, "k": 43} in asked


def test_weights_to_train_are_not_packed():
    sparse = sparsify.apply(pruned(0.1, 64, 64), RECIPE, torch.randn(32, 64), trainable=True)
    assert sparse.report.regions[0].formats == {"W": "dense, compressed"}
