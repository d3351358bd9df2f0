"""The figures of STen: on tiny sizes, interrupted and continued, and without data."""

import json

import pytest
import torch

from experiments.reproduce.figure import OURS, Setting
from experiments.scorch.texts import Part
from experiments.sten import figure2, finetuning, table1
from experiments.sten import texts as text_figure
from experiments.sten.structures import GROUPS, PERCENT, STRUCTURES, zeros
from sparsify import options
from tests.cli.conftest import cli  # noqa: F401


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("percent", PERCENT)
def test_zeros_have_their_structure(structure, percent):
    mask = zeros(structure, percent, (480, 768), seed=0)
    assert mask.shape == (480, 768) and mask.dtype == torch.bool
    assert 1 - mask.float().mean().item() == pytest.approx(percent / 100, abs=0.02)
    if structure == "blocked":
        shares = mask.float().unflatten(0, (-1, 16)).unflatten(2, (-1, 16)).mean((1, 3))
        assert ((shares == 0) | (shares == 1)).all()
    keep, of, _ = GROUPS[percent]
    if structure == "n:m:g" and 480 % of == 0:
        assert (mask.unflatten(0, (-1, of)).sum(1) == keep).all()
    assert torch.equal(mask, zeros(structure, percent, (480, 768), seed=0))


def test_each_pattern_of_a_chunk_occurs_as_often():
    mask = zeros("n:m:g", 50, (4, 96), seed=1)
    patterns, counts = mask.T.unique(dim=0, return_counts=True)
    assert len(patterns) == 6 and counts.tolist() == [16] * 6


@pytest.fixture
def tiny(monkeypatch):
    """A small encoder layer, a small weight, and one row of each figure."""
    monkeypatch.setattr(figure2, "HIDDEN", 64)
    monkeypatch.setattr(figure2, "HEADS", 2)
    monkeypatch.setattr(figure2, "INTERMEDIATE", 128)
    monkeypatch.setattr(figure2, "TOKENS", 8)
    monkeypatch.setattr(table1, "SHAPE", (64, 128))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_encoder_layer(tiny, structure):
    pytest.importorskip("transformers", reason="the encoder layer is that of transformers")
    outcome = figure2.measure(structure, 75, Setting(quick=True))
    assert {OURS, figure2.DENSE, figure2.CSR} <= set(outcome.times)
    assert ("sparsify csr" in outcome.times) == (structure == "unstructured")
    assert (figure2.BSR in outcome.times) == (structure == "blocked")
    assert outcome.times[OURS].difference <= 1e-5
    assert outcome.facts[figure2.SHARE] == pytest.approx(75, abs=6) and outcome.facts["format"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", table1.NAMES)
def test_sparsifiers(tiny, name):
    outcome = table1.measure(name, Setting(quick=True))
    assert (table1.TORCH in outcome.times) == (name != "PerBlockFraction with a group")
    assert outcome.times[OURS].difference == 0 and outcome.facts["ns an entry"] > 0
    declared = f"{outcome.facts['passes']}, {outcome.facts['memory']}, {outcome.facts['kind']}"
    cited = table1.FIGURE.numbers.get(name, declared)
    assert declared == cited or cited.startswith(">=")


def test_interrupted_runs_continue(tiny, monkeypatch, tmp_path, cli):  # noqa: F811
    monkeypatch.setattr(table1, "NAMES", ("KeepAll", "Where"))
    asked = ("reproduce", "sten", "table1", "--quick", "--out", str(tmp_path))
    measure = table1.measure

    def stopped(name, setting):
        if name == "Where":
            raise KeyboardInterrupt
        return measure(name, setting)

    monkeypatch.setattr(table1, "measure", stopped)
    assert cli(*asked).status not in (0, 3)
    assert "KeepAll" in (tmp_path / "table1.txt").read_text()
    monkeypatch.setattr(table1, "measure", measure)
    found = json.loads(cli(*asked, "--json").out)["figures"]["table1"]
    assert [row["reused"] for row in found] == [True, False]
    assert {"table1.csv", "table1.svg", "table1.txt", "manifest.json"} <= {f.name for f in tmp_path.iterdir()}


def test_nothing_could_run(tmp_path, cli):  # noqa: F811
    found = cli(
        "reproduce", "sten", "finetuning", "--data-root", str(tmp_path), "--out", str(tmp_path / "out")
    )
    assert found.status == 3
    assert "not measured: there are no trained weights" in found.out and "akamaster" in found.out


@pytest.mark.sampled(3)
@pytest.mark.parametrize("structure", finetuning.STRUCTURES)
def test_fine_tuning(monkeypatch, tmp_path, structure):
    settings = finetuning.settings_of

    def small(structure, percent, setting):
        monkeypatch.setattr(finetuning, "DATASET", "synthetic")
        overrides = {"channels": "4", "blocks": "1"}
        resolve = finetuning.resolve
        monkeypatch.setattr(
            finetuning,
            "resolve",
            lambda *a, **k: resolve(*a, **{**k, "overrides": overrides, "data_root": None}),
        )
        return settings(structure, percent, setting)

    place = tmp_path / finetuning.CHECKPOINT
    place.parent.mkdir(parents=True)
    place.write_bytes(b"")
    monkeypatch.setattr(finetuning, "settings_of", small)
    monkeypatch.setattr(finetuning, "BATCH", 8)
    monkeypatch.setattr(finetuning, "QUICK_STEPS", 4)
    with options.override(quiet=True):
        outcome = finetuning.measure(structure, 75, Setting(tmp_path, quick=True))
    assert set(outcome.times) == {OURS, finetuning.DENSE} and outcome.times[OURS].difference <= 1e-4
    assert outcome.facts["zeros, %"] == pytest.approx(75, abs=1)
    assert outcome.facts["accuracy"] == pytest.approx(outcome.facts["accuracy of torch"], abs=0.01)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("structure", text_figure.STRUCTURES)
def test_fine_tuning_of_texts(monkeypatch, tmp_path, structure):
    """Texts whose class is their first token: fine-tuned weights keep their zeros, kernels the accuracy."""
    pytest.importorskip("transformers")
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 40, (64, 8), generator=draw)
    part = Part(tokens, torch.ones_like(tokens), tokens[:, 0] % 2)
    monkeypatch.setattr(text_figure, "parts", lambda root, is_quick: (part, part, 2))
    sizes = {"HIDDEN": 32, "HEADS": 2, "INTERMEDIATE": 64, "TOKENS": 8, "BATCH": 8, "TEST_BATCH": 16}
    for name, value in {**sizes, "QUICK_STEPS": 4, "QUICK_FINE_STEPS": 4}.items():
        monkeypatch.setattr(text_figure, name, value)
    with options.override(cache_dir=tmp_path, quiet=True):
        outcome = text_figure.measure(structure, 75, Setting(tmp_path, quick=True))
        monkeypatch.setattr(text_figure, "train", None)  # the weights of the first training are in the cache
        text_figure.dense(Setting(tmp_path, quick=True))
    assert {OURS, text_figure.DENSE} <= set(outcome.times) and outcome.times[OURS].difference <= 1e-4
    assert outcome.facts["zeros, %"] == pytest.approx(75, abs=1)
    assert outcome.facts["accuracy"] == pytest.approx(outcome.facts["accuracy of torch"], abs=0.02)
    assert {"accuracy, not fine-tuned", "accuracy, no zeros"} <= set(outcome.facts)


def test_all_zeros_at_once_have_no_schedule():
    for structure in text_figure.STRUCTURES:
        (rule,) = text_figure.recipe(structure, 90, 0, ["a.", "b."], "Linear")["sparsify"]
        assert "schedule" not in rule and rule["prune"]["method"] == "magnitude"
