"""The suites run, are compared with earlier runs, and say what they were asked."""

import json

import pytest

from sparsify.bench import compare
from sparsify.bench.harness import WrongResultError
from sparsify.bench.run import rows_of, run
from sparsify.bench.suites import SUITES
from sparsify.bench.table import behind, lines, write_csv
from sparsify.errors import SparsifyError


def test_rows_are_measured_and_written(tmp_path):
    file = tmp_path / "bench.json"
    found = run(["kernels"], ["spmv", "spgemm"], quick=True, scale=0.01, out=file)
    assert [row["name"] for row in found] == ["spmv-100000-20", "spgemm-20000-10"]
    assert compare.read(file, [found[0]["name"]]) == json.loads(json.dumps(found))
    write_csv(tmp_path / "bench.csv", found)
    assert len((tmp_path / "bench.csv").read_text().splitlines()) == 1 + len(lines(found))


def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setattr("sparsify.bench.harness.difference", lambda *_: 1.0)
    with pytest.raises(WrongResultError, match="spmv"):
        run(["kernels"], ["spmv"], quick=True, scale=0.01)


def test_packed_bytes_are_within_their_limits():
    (row,) = run(["memory"], ["weight-90"], quick=True, scale=0.2)
    limits = {target["label"]: target["met"] for target in row["targets"]}
    assert limits["bytes of the dense weight"]


@pytest.mark.parametrize(("suites", "rows", "match"), [(["kernel"], [], "kernels"), ([], ["gemm"], "spmm-")])
def test_names_that_are_none(suites, rows, match):
    with pytest.raises(SparsifyError) as error:
        rows_of(suites, rows)
    assert match in str(error.value)


def test_every_suite_has_rows_of_its_own():
    names = [name for rows in SUITES.values() for name in rows]
    assert len(names) == len(set(names))
    assert list(SUITES) == ["kernels", "layers", "models", "small", "memory"]


@pytest.fixture
def no_runtime(monkeypatch):
    monkeypatch.setattr("sparsify.bench.suites.network", lambda model, x: {"ONNX Runtime": None})


def test_rows_are_called_as_the_suite_says(no_runtime):
    found = run(["small"], quick=True, scale=0.5)
    assert [row["name"] for row in found] == list(SUITES["small"])


@pytest.mark.sampled(2)
def test_layers_of_a_transformer_name_missing_runtimes(no_runtime):
    (row,) = run(["models"], ["encoder-90-1-text"], quick=True, scale=0.2)
    assert row["missing"] == ["ONNX Runtime"]
    assert {one["baseline"] for one in row["targets"]} == {"torch"}


def ratio(reached: float, kind: str = "ratios") -> list[dict[str, object]]:
    return [{"name": "spmv", "kind": kind, "targets": [{"label": "torch", "reached": reached}]}]


@pytest.mark.parametrize(
    ("before", "now", "slower"),
    [
        (ratio(3.0), ratio(2.0), 1.5),
        (ratio(2.0), ratio(4.0), 0.5),
        (ratio(100.0, "limits"), ratio(150.0, "limits"), 1.5),
    ],
)
def test_runs_are_compared_by_their_ratios(before, now, slower):
    (change,) = compare.changes(before, now)
    assert change.slower == pytest.approx(slower)
    assert f"{slower:.2f}x" in compare.table([change])


def test_rows_of_one_run_alone_are_not_compared():
    assert not compare.changes([], ratio(2.0))


@pytest.mark.parametrize("content", ["", "{}", "[]"])
def test_what_is_no_run_is_named(tmp_path, content):
    file = tmp_path / "old.json"
    file.write_text(content)
    with pytest.raises(SparsifyError, match=r"old\.json holds no measurements"):
        compare.read(file, ["a"])


def measured_row(**changes):
    """A row as `Measured.to_dict` makes it: ours takes 10 us, the peer 5 us."""
    contenders = [{"name": "sparsify", "median_us": 10.0}, {"name": "peer", "median_us": 5.0}]
    target = {"ours": "sparsify", "baseline": "peer", "reached": 0.5, "low": 0.4, "high": 0.6}
    base = {"name": "row", "kind": "ratios", "contenders": contenders, "targets": [target], "limit": None}
    return {**base, **changes}


@pytest.mark.parametrize(
    "changes, said",
    [
        ({}, "row, sparsify, peer (2x): a call of 10 us has next to no work"),
        ({"why": {"peer": "it does less"}}, "row, sparsify, peer (2x): it does less"),
        ({"limit": {"us": 9.0, "bound": "memory"}}, "no reason is noted; `sparsify explain`"),
    ],
)
def test_the_table_says_why_others_are_ahead(changes, said):
    (line,) = behind(measured_row(**changes))
    assert said in line


def test_ratios_that_are_not_decided_need_no_reason():
    target = {**measured_row()["targets"][0], "high": 1.1}
    assert behind(measured_row(targets=[target])) == []
