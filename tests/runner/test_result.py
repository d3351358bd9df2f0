"""The table, the plain data and the files of a result."""

import csv
import json
from dataclasses import replace

import pytest

from sparsify.report import ConversionEntry, RegionEntry, Report, WholeCallEntry
from sparsify.runner.alternatives import Alternative
from sparsify.runner.measure import Timing
from sparsify.runner.peers.baselines import Baseline
from sparsify.runner.result import Contender, RunResult


@pytest.fixture
def result():
    report = Report(
        "GCN",
        "gcn",
        regions=[
            RegionEntry("r1", [], [], "Y[i,k] = ...", kernel="k1", cache="miss"),
            RegionEntry("r2", [], [], "Y[i,k] = ...", kernel="k1", cache="hit"),
            RegionEntry("r3", [], [], "Z[i,k] = ...", kernel="k2", cache="hit"),
        ],
        conversions=[ConversionEntry("A", "edges", "csr", 1, 1500.0)],
    )
    data = {
        "name": "cora",
        "nodes": 2708,
        "edges": 10556,
        "feature_count": 1433,
        "features": "bags of words",
        "feature_density": 0.0127,
        "classes": 7,
        "fingerprint": "f",
    }
    return RunResult(
        model="gcn",
        arguments={"hidden": 128},
        recipe="gcn",
        data=data,
        training={"epochs": 200, "seconds": 2.0, "val_accuracy": 0.8, "note": "", "reused": True},
        seed=0,
        dense=Contender(0.828, Timing(9.0, [8.0, 10.0, 9.0]), 3 << 20),
        sparse=Contender(0.828, Timing(30.0, [3.0, 2.0, 4.0]), 1 << 20),
        largest_error=2e-6,
        tolerance={"rtol": 1e-4, "atol": 1e-5},
        agrees=True,
        apply_ms=120.0,
        conversions_ms=(1.5, 0.25),
        report=report,
        machine={"cpu": "a CPU", "vector": "AVX2", "threads": 2, "torch": "2"},
    )


def test_table_shows_everything(result):
    text = str(result)
    for part in (
        "gcn(hidden=128)",
        "recipe gcn",
        "2708 nodes, 10556 directed edges, 1433 features, 7 classes",
        "bags of words, density 0.0127",
        "kept from an earlier run of 200 epochs",
        "0.8280",
        "2.00e-06",
        "9 ms",
        "3 ms",
        "3.00x, 3 turns that disagree: 2.25x to 5.00x",
        "30 ms",
        "120 ms",
        "1.5 ms",
        "of operands, within apply; 0.25 ms in the first call",
        "3.0 MiB",
        "1 built, 1 found",
        "yes",
        "a CPU (AVX2), 2 threads",
    ):
        assert part in text, part


def test_a_kernel_built_for_one_region_and_found_for_the_next_is_built(result):
    assert result.kernels == {"built": 1, "found": 1}


def test_json_has_a_schema_and_the_numbers(result):
    read = json.loads(json.dumps(result.to_dict()))
    assert read["schema"] == 1
    assert read["verified"] is True
    assert read["ratio"] == 3.0
    assert read["dense"] == {
        "test_accuracy": 0.828,
        "median_ms": 9.0,
        "first_call_ms": 9.0,
        "runs_ms": [8.0, 10.0, 9.0],
        "peak_bytes": 3 << 20,
    }
    assert read["conversions_ms"] == {"apply": 1.5, "first_call": 0.25}
    assert read["report"]["regions"][0]["name"] == "r1"


def test_difference_is_a_negative_result(result):
    wrong = replace(result, agrees=False)
    assert (wrong.exit_status, result.exit_status) == (1, 0)
    assert "outputs differ" in str(wrong)


def test_nothing_sparse_is_a_negative_result(result):
    nothing = replace(result, report=Report("GCN", "gcn"))
    assert nothing.exit_status == 1
    assert "no part of the model became sparse" in str(nothing)


def test_torch_by_hand_and_each_rule_have_a_row(result, tmp_path):
    others = [
        Alternative("torch", 1e-6, True, Timing(0.0, [6.0, 6.0, 6.0])),
        Alternative("adjacency", 0.5, False, Timing(0.0, [4.0, 5.0, 4.5])),
    ]
    more = replace(result, others=others)
    text = str(more)
    assert "2.00x, 3 turns" in next(line for line in text.splitlines() if line.startswith("torch by hand"))
    row = next(line for line in text.splitlines() if line.startswith("rules up to adjacency"))
    assert "4.5 ms" in row and "WRONG by 5.00e-01" in row
    assert [one["name"] for one in more.to_dict()["alternatives"]] == ["torch", "adjacency"]
    rows = (more.write(tmp_path) / "times.csv").read_text().splitlines()
    assert len(rows) == 1 + 4 * 3


def test_training_of_the_sparse_model_is_said(result):
    trained = replace(result, training=result.training | {"trains_sparse": True})
    assert "epochs of the sparse model" in str(trained)


def test_shortened_training_is_said(result):
    short = replace(result, training=result.training | {"reused": False, "note": "30 epochs at most"})
    assert "200 epochs in 2.0 s (30 epochs at most)" in str(short)


def test_writes_json_csv_and_report(result, tmp_path):
    place = result.write(tmp_path / "a/b")
    assert json.loads((place / "result.json").read_text())["schema"] == 1
    with (place / "times.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["contender"] for row in rows] == ["dense"] * 3 + ["sparse"] * 3
    assert float(rows[0]["milliseconds"]) == 8.0
    assert "Regions" in (place / "report.txt").read_text()
    assert "<table" in (place / "report.html").read_text()


@pytest.mark.parametrize(
    "name, ms, error, winner",
    [
        ("inductor", 2.0, 0.0, "inductor"),
        ("inductor", 2.95, 0.0, None),  # within noise
        ("inductor", 2.0, 0.5, None),  # another result
        ("bf16", 2.0, 0.0, None),  # fewer digits
    ],
)
def test_a_faster_baseline_is_named(result, name, ms, error, winner):
    timing = Timing(1.0, [ms] * 3)
    result.baselines = [Baseline(name, largest_error=error, timing=timing), Baseline("onednn", "missing")]
    assert result.to_dict()["faster_baseline"] == winner
    note = "the dense model by inductor is faster: 2 ms, sparse 3 ms"
    assert (note in result.notes()) == (winner is not None)


def test_regions_undone_by_apply_are_noted(result):
    result.report.whole_call = WholeCallEntry("oneDNN", 1000.0, 900.0)
    assert result.notes() == []
    result.report.whole_call.undone = ["layer.0", "layer.1", "layer.2", "layer.3"]
    times, undone = result.notes()
    assert times == "a call by apply: 1 ms of the dense model in oneDNN, 0.9 ms now"
    assert undone == "undone, as kernels lost within the call: layer.{0-3} (4)"
