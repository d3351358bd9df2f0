"""Rows of attention at a tiny size: right results, a table."""

import pytest

from experiments.foundation.command import table
from experiments.fusion import command
from sparsify import options
from sparsify.bench.place import Place
from sparsify.sparsification.masks.patterns import bigbird

TINY = Place(None, 0.02)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "name",
    [
        "attention-window-4096-64",
        "attention-one-head-1024-16",
        "attention-backward-1024-16",
        "experts-8",
        "autoencoder-784",
        "bags-max-step",
        "experts-step-8",
        "gatconv-arxiv",
        "gatconv-step-arxiv",
        "gatv2conv-step-arxiv",
        "transformerconv-step-arxiv",
    ],
)
def test_row(name):
    row = command.run_row(name, TINY, quick=True)
    assert all(c["error"] is not None and c["median_us"] > 0 for c in row["contenders"])
    assert row["name"] in table([row])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "checked"), [("bert-1024", [True, False, False]), ("bigbird-1024", [True] * 2)]
)
def test_whole_models(name, checked):
    pytest.importorskip("transformers", reason="transformers is not installed")
    with options.override(tune_seconds=0):
        row = command.run_row(name, TINY, quick=True)
    assert [contender["error"] is not None for contender in row["contenders"]] == checked
    assert {target["baseline"] for target in row["targets"]} >= {"transformers' BigBird"}


@pytest.mark.sampled(3)
def test_only_ours_drops_what_is_known():
    row = command.run_row("attention-dropout-1024-16", TINY, quick=True)
    errors = {contender["name"]: contender["error"] for contender in row["contenders"]}
    assert errors["sparsify"] < 1e-5 and errors["SDPA with mask and dropout"] is None


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("compiled_optimised")  # the text is long
def test_memory_is_linear_in_what_is_stored():
    row = command.run_row("attention-memory-16384-64", Place(None, 0.25), quick=True)
    assert {target["label"]: target["reached"] for target in row["targets"] if not target["met"]} == {}
    assert "attention-memory-4096-64" in table([row])


def test_shares_of_scores_are_those_of_the_targets():
    shares = {(1024, 16): 0.15, (4096, 64): 0.15, (4096, 16): 0.04, (1024, 64): 0.56}
    for (tokens, block), share in shares.items():
        assert bigbird(tokens, block=block).density == pytest.approx(share, abs=0.015)


def test_names_begin_with_the_rows():
    assert {"attention-1024-16", "attention-4096-64", "attention-1024-64"} <= command.CASES.keys()
