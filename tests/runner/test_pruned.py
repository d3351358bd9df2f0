"""Runs of pruned models: the same pruned weights in torch and in kernels."""

import json
from dataclasses import replace

import pytest

from sparsify import options
from sparsify.report import Report
from sparsify.runner import progress
from sparsify.runner.measure import FEWEST
from sparsify.runner.peers import baselines
from sparsify.runner.preview import preview
from sparsify.runner.pruned_result import kind_of
from sparsify.runner.request import resolve
from sparsify.runner.run import FIRST_TURNS, run

MLP = {"features": 384, "hidden": 512, "layers": 2}
TINY = {"layers": 2, "hidden": 128, "heads": 4, "intermediate": 256}


@pytest.fixture(scope="module", autouse=True)
def untimed():
    """Formats as they are expected to be fastest: nothing depends on how busy the machine is."""
    with options.override(tune_seconds=0):
        yield


@pytest.fixture(scope="module")
def result(untimed):
    return run("mlp", overrides=MLP, sparse_weights="0.9", batch=96, seconds=0.0, quiet=True)


def test_a_pruned_model_is_verified(result, tmp_path):
    assert result.verified
    assert result.largest_error < 1e-4
    assert result.weights["zeros"] == pytest.approx(0.9, abs=1e-3)
    assert result.weights["pruned"] == 2
    before, after = result.bytes
    assert before >= 384 * 512 * 4 > 3 * after
    read = json.loads((result.write(tmp_path) / "result.json").read_text())
    assert (read["packed_bytes_before"], read["data"]["inputs"]) == (before, "96 rows of 384 features")


def test_the_table_says_why_weights_stayed_dense(result):
    text = str(result)
    for part in ("96 rows of 384 features", "90.0% zeros in 2 pruned ones", "bytes of packed weights", "yes"):
        assert part in text, part
    report = Report()
    for layer in (1, 2, 3):
        report.left_dense(
            f"linear_{layer}", "linear", "", f"the weight {layer}.weight is faster dense: {layer} us"
        )
    report.left_dense("matmul", "matmul", "", "x becomes sparse at run time")
    lines = str(replace(result, report=report)).splitlines()
    assert [line for line in lines if line.startswith("dense: ")] == [
        "dense: linear_1: the weight 1.weight is faster dense: 1 us (2 more such)",
        "dense: matmul: x becomes sparse at run time",
    ]


def test_reasons_of_a_kind():
    one, other = (f"the weight layer.{n}.query.weight is faster dense: {n}.0% stored" for n in (1, 12))
    assert kind_of(one) == kind_of(other)
    assert kind_of(one) != kind_of("matmul has no sparse form for x")


def test_an_autoencoder_is_a_program_for_each_layer():
    result = run("autoencoder", overrides={"features": 300, "hidden": 256}, seconds=0.0, quiet=True)
    assert result.verified
    assert [entry.einsum for entry in result.report.regions] == [
        "Y[i,k] = relu(sum(j, X[i,j] * W[k,j]) + b[k])",
        "Y[i,k] = sigmoid(sum(j, X[i,j] * W[k,j]) + b[k])",
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_recommendation_model(mode):
    sizes = {"rows": 60, "tables": 2, "columns": 16, "hidden": 64, "mode": mode}
    result = run("dlrm", overrides=sizes, batch=40, seconds=0.0, quiet=True)
    assert result.verified
    assert sum("A[i,j,f]" in entry.einsum for entry in result.report.regions) == 2
    shown = preview(resolve("dlrm", overrides=sizes, batch=40))
    found = [row for row in shown.rows if row.rule == "bags"]
    assert [row.format for row in found] == ["dense, coordinate, coordinate"] * 2
    assert all("A[i,j,f]" in row.kernels[0] for row in found)


def test_dry_run_shows_the_format_that_would_be_chosen():
    found = preview(resolve("mlp", overrides=MLP, batch=96))
    assert [row.tensor for row in found.rows] == ["_0_weight", "_2_weight"]
    assert "compressed(crd=int" in found.rows[0].format
    assert found.rows[0].bytes_after < found.rows[0].bytes_before


@pytest.mark.sampled(3)
def test_a_residual_network():
    sizes = {"blocks": (2, 1), "channels": 8, "image": 32, "classes": 5}
    found = run("resnet50", overrides=sizes, sparse_weights="0.8", batch=2, seconds=0.0, quiet=True)
    assert found.verified
    assert found.weights["pruned"] == len(found.report.regions) == 11
    assert sum("Z[n,o,p]" in region.einsum for region in found.report.regions) == 3


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("model", "overrides", "sizes", "regions"),
    [
        ("bert", {**TINY, "vocabulary": 50, "positions": 32}, {"batch": 4, "seq": 32}, 12),
        ("vit", {**TINY, "image": 32, "patch": 8}, {"batch": 8}, 12),
    ],
)
def test_transformers(model, overrides, sizes, regions):
    pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'sparsify-fx[text]'"
    )
    found = run(model, overrides=overrides, sparse_weights="0.95", seconds=0.0, quiet=True, **sizes)
    assert found.verified
    assert found.weights["pruned"] == 12
    assert len(found.report.regions) + len(found.report.dense) == regions
    assert len(found.report.regions) >= 4


@pytest.mark.parametrize("slow", [True, False])
def test_the_first_table_of_slow_passes_comes_before_other_libraries(monkeypatch, capsys, slow):
    """Other libraries need seconds to be ready: the table without them is shown on standard error before."""
    seen = []

    def make(model, inputs):
        seen.append(capsys.readouterr().err)
        return baselines.as_it_is(model, inputs)

    monkeypatch.setattr(progress, "LONG_MS", 0.0 if slow else 1e9)
    monkeypatch.setitem(baselines.LIBRARIES, "torch", replace(baselines.LIBRARIES["torch"], make=make))
    result = run("mlp", overrides=MLP, sparse_weights="0.9", batch=96, seconds=0.0, baseline="torch")
    (first,) = seen
    assert ("median of a pass" in first) == slow
    assert len(result.baselines[0].timing.runs_ms) == len(result.sparse.timing.runs_ms)


def test_turns_of_the_first_table_count_where_no_library_is_timed(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LONG_MS", 0.0)
    monkeypatch.setattr(baselines.Baselines, "made", lambda *_: ([], []))
    result = run("mlp", overrides=MLP, sparse_weights="0.9", batch=96, seconds=0.0)
    assert f"{FIRST_TURNS} turns" in capsys.readouterr().err
    assert len(result.dense.timing.runs_ms) == len(result.sparse.timing.runs_ms) >= FIRST_TURNS + FEWEST
