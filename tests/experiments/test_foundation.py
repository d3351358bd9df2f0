"""Every row at a tiny size: right results, a table, JSON."""

import json

import pytest

from experiments.foundation import command, firsts
from sparsify.bench import environment
from sparsify.bench.place import Place

TINY = Place(None, 0.004)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", command.CASES)
def test_row(name):
    row = command.run_row(name, TINY, quick=True)
    assert row["name"] == name
    ours = [c for c in row["contenders"] if not c["baseline"]]
    assert ours
    assert all(c["error"] is not None and c["median_us"] > 0 for c in row["contenders"])
    assert all(target["low"] <= target["high"] and target["reached"] > 0 for target in row["targets"])
    assert row["prepared_ms"]["first call"] > 0
    assert name in command.table([row])


def test_call_overhead():
    row = command.run_row("call-overhead", TINY, quick=True)
    assert [target["asked"] for target in row["targets"]] == [5.0, 10.0]
    assert " us " in command.table([row])


def test_first_calls_are_made_in_this_order():
    assert len({name for name, _ in firsts.programs()}) == 12


@pytest.mark.sampled(4)
@pytest.mark.slow
def test_first_kernels_are_built_once_and_found_afterwards(monkeypatch):
    monkeypatch.setenv("SPARSIFY_CXXFLAGS", "-O0")  # what is built matters here, not how fast it is
    row = firsts.row()
    assert row["built_ms"].keys() == row["found_ms"].keys()
    assert [target["label"] for target in row["targets"]] == list(firsts.ASKED)
    assert sum(row["found_ms"].values()) < sum(row["built_ms"].values())


def test_command_prints_a_table_and_writes_json(tmp_path, capsys):
    out = tmp_path / "bench.json"
    assert command.main(["--rows", "spmm-cora", "--quick", "--scale", "0.02", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "spmm-cora-128" in printed.out
    assert "[1/1] spmm-cora-128" in printed.err
    document = json.loads(out.read_text())
    assert document["schema"] == 1
    assert {"cpu", "threads", "affinity", "compiler", "torch"} <= document["machine"].keys()
    assert document["rows"][0]["targets"][0]["asked"] == 2.2


def test_a_stopped_run_leaves_its_finished_rows(tmp_path, monkeypatch):
    out = tmp_path / "folder" / "bench.json"
    seen = []

    def run_row(name, *_, **__):
        if out.exists():
            seen.extend(row["name"] for row in json.loads(out.read_text())["rows"])
        return {"name": name, "kind": "limits", "unit": "ms", "data": "", "targets": []}

    monkeypatch.setattr(command, "run_row", run_row)
    command.main(["--rows", "spmm-cora", "spmm-pubmed", "--out", str(out)])
    assert seen == ["spmm-cora-128"]
    assert [file.name for file in out.parent.iterdir()] == ["bench.json"]


def test_rows_without_their_package_are_left_out(monkeypatch, capsys):
    def run_row(name, *_, **__):
        if name == "spmm-cora-128":
            raise ModuleNotFoundError("No module named 'peer'", name="peer")
        return {"name": name, "kind": "limits", "unit": "ms", "data": "", "targets": []}

    monkeypatch.setattr(command, "run_row", run_row)
    assert command.main(["--rows", "spmm-cora", "spmm-pubmed"]) == 0
    printed = capsys.readouterr()
    assert "spmm-cora-128 is left out, peer is not installed" in printed.err
    assert "spmm-cora-128" not in printed.out


def test_time_on_the_processor(capsys):
    assert command.main(["--rows", "spmm-cora", "--quick", "--scale", "0.02", "--cpu-time"]) == 0
    assert "spmm-cora-128" in capsys.readouterr().out


def test_unknown_rows(capsys):
    assert command.main(["--rows", "spgemm"]) == 2
    assert "there are spmm-cora-128" in capsys.readouterr().err


def test_beginnings_choose_rows():
    assert command.chosen(["sddmm-a", "first"]) == ["sddmm-arxiv-128", "first-kernel"]
    assert command.chosen([""]) == list(command.ROWS)


def test_threads_are_pinned_before_torch_only():
    with pytest.raises(AssertionError, match="OpenMP runtime already"):
        environment.pin_threads()
