"""Every kind of row at a tiny size: right results, a table."""

import json
from types import SimpleNamespace

import pytest
import torch

from experiments.foundation.command import table
from experiments.kernels import command, compile_times
from experiments.kernels.nmg import as_much
from sparsify.bench.linear import Weight
from sparsify.bench.place import Place

TINY = Place(None, 0.05)


@pytest.mark.parametrize(
    "name", ["linear-128-90", "linear-1-50-bfloat16", "linear-1024-8x1-80", "linear-1024-of4-50"]
)
def test_row(name):
    row = command.run_row(name, TINY, quick=True)
    assert row["name"] == name
    unchecked = {c["name"] for c in row["contenders"] if c["error"] is None}
    assert unchecked == ({"torch bfloat16"} if "bfloat16" in name else set())
    assert all(c["median_us"] > 0 for c in row["contenders"])
    assert row["prepared_ms"]["first call"] > 0
    assert name in table([row])


@pytest.mark.parametrize("name", ["nmg-50", "nmg-90"])
def test_groups_beside_as_much_of_the_magnitude(name):
    row = command.run_row(name, Place(None, 0.25), quick=True)
    assert row["name"] == name
    assert [c["error"] is None for c in row["contenders"]] == [False, True, False]  # as checked before
    assert [(t["ours"], t["baseline"]) for t in row["targets"]] == [
        ("n:m:g", "torch"),
        ("unstructured", "torch"),
    ]


def test_encoder():
    pytest.importorskip("transformers", reason="transformers is not installed")
    row = command.run_row("bert-90", TINY, quick=True)
    assert all(c["error"] is not None and c["median_us"] > 0 for c in row["contenders"])


def test_the_fewest_entries_of_a_magnitude():
    weight = torch.tensor([[4.0, -3.0], [2.0, 1.0]])
    assert as_much(weight, weight.abs() == 3).tolist() == [[True, False], [False, False]]
    assert as_much(weight, weight < 4).tolist() == [[True, True], [False, False]]


@pytest.mark.sampled(3)
def test_residual_network():
    row = command.run_row("resnet50-1-90", TINY, quick=True)
    assert all(c["error"] is not None and c["median_us"] > 0 for c in row["contenders"])
    assert row["targets"][0]["asked"] == 1.8


def test_masks():
    grouped = Weight(50, of=4).mask(32, 64)
    assert bool((grouped.view(32, 16, 4).sum(-1) == 2).all())
    blocks = Weight(90, (16, 16)).mask(320, 320).view(20, 16, 20, 16).sum((1, 3))
    assert set(blocks.unique().tolist()) == {0, 256}
    assert abs(float(Weight(80).mask(500, 500).float().mean()) - 0.2) < 0.01
    assert torch.equal(Weight(80).mask(50, 50), Weight(80).mask(50, 50))


def test_compile_times_add_up(monkeypatch):
    measured = {"panels": (40.0, 160.0), "blocks": (60.0, 300.0), "strips": (50.0, 150.0)}
    answer = SimpleNamespace(stdout=json.dumps(measured))
    monkeypatch.setattr(compile_times.subprocess, "run", lambda *_, **__: answer)
    row = command.run_row("compile", TINY)
    reached = {target["label"]: target["reached"] for target in row["targets"]}
    assert (reached["median"], reached["worst"], reached["codegen, median"]) == (200.0, 360.0, 50.0)
    assert "blocks" in table([row])


def test_kinds_are_made():
    names = [name for name, _ in compile_times.calls()]
    assert len(names) == len(set(names)) > 15


def test_names_begin_with_the_rows():
    assert {"linear-1024-50", "linear-16-90", "linear-1-50", "linear-1024-32x1-90"} <= command.CASES.keys()
