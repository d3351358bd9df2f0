"""Every kind of row of training steps at a tiny size: right gradients, a table."""

import copy
import json
from pathlib import Path

import pytest
import torch

from experiments.foundation.command import table
from experiments.training import command, language, steps
from sparsify.bench.harness import WrongResultError
from sparsify.bench.place import Place

ROOT = Path(__file__).resolve().parents[2]
TINY = Place(None, 0.05)


@pytest.mark.parametrize("name", ["step-90", "adamw-90", "gradient-90", "grid-50-256-768"])
def test_row(name):
    row = command.run_row(name, TINY, quick=True)
    assert row["name"] == name
    assert all(contender["median_us"] > 0 for contender in row["contenders"])
    assert name in table([row])


@pytest.mark.sampled(6)
def test_encoder():
    pytest.importorskip("transformers", reason="transformers is not installed")
    row = command.run_row("bert-layer-90", Place(None, 0.1), quick=True)
    assert [c["name"] for c in row["contenders"]] == ["sparsify", "torch", "torch bfloat16"]


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("compiled_optimised")  # the text is long
def test_language_model():
    row = command.run_row("gpt-90", TINY, quick=True)
    names = [contender["name"] for contender in row["contenders"]] + row["missing"]
    assert sorted(names) == ["SparseLab", "sparsify", "torch"]
    assert row["targets"][0]["asked"] == 1.7


@pytest.mark.sampled(4)
def test_losses_of_other_masks_are_not_timed():
    net, batches = language.model(TINY), language.Batches(TINY)
    other = copy.deepcopy(net)
    with torch.no_grad():
        next(language.pruned(other)).weight.mul_(0.5)
    with pytest.raises(WrongResultError, match="row: losses of us are"):
        language.require_equal_losses("row", {"us": other}, net, batches)


def test_updates():
    row = command.run_row("rigl-update-90", TINY, quick=True)
    (target,) = row["targets"]
    step, both = (contender["median_us"] for contender in row["contenders"])
    assert target["reached"] == pytest.approx((both - 2 * step) / step)
    assert target["met"] == (target["reached"] < 3)
    assert "rigl-update-90" in table([row])


def test_wrong_gradients_are_not_timed():
    right, wrong = torch.ones(2, dtype=torch.float64), torch.tensor([1.0, 1.1])
    with pytest.raises(WrongResultError, match=r"row: w of us differs from float64 by 0\.1"):
        steps._require("row", "us", {"w": (wrong, right)})


def test_gradients_of_nothing_are_measured_by_the_others():
    noise, nothing = torch.full((2,), 1e-9), torch.zeros(2, dtype=torch.float64)
    one = torch.ones(2)
    steps._require("row", "us", {"w": (one, one.double()), "key.bias": (noise, nothing)})


def test_the_documentation_has_what_was_measured():
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    folder = ROOT / "docs" / "measurements" / "training"
    rows = json.loads((folder / "steps.json").read_text(encoding="utf-8"))["rows"]
    reached = {(row["name"], one["baseline"]): one["reached"] for row in rows for one in row["targets"]}
    for kind, baseline in (
        ("step", "torch"),
        ("step", "SparseLab"),
        ("adamw", "torch"),
        ("gradient", "torch"),
    ):
        cells = " | ".join(f"{reached[f'{kind}-{zeros}', baseline]:.2f}x" for zeros in (80, 90, 95))
        assert f"| {cells} |" in page, (kind, baseline)
    (row,) = json.loads((folder / "rigl.json").read_text(encoding="utf-8"))["rows"]
    assert f"takes {row['targets'][0]['reached']:.1f} % of the time" in page
    (row,) = json.loads((folder / "gpt.json").read_text(encoding="utf-8"))["rows"]
    for target in row["targets"]:
        assert f"{target['reached']:.2f}x as" in page
    recovery = json.loads((folder / "recovery.json").read_text(encoding="utf-8"))
    for stage in recovery["stages"]:
        for one in stage["validations"]:
            row = f"| {stage['name']} | {one['step']} | {100 * one['zeros']:.0f} % | {one['cosine']:.3f} |"
            assert row in page
