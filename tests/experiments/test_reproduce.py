"""`sparsify reproduce`: rows are kept and continued, tables say what is missing, pictures and manifest are written."""

import csv
import json
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import pytest

from experiments.reproduce import manifest, picture, registry, table
from experiments.reproduce.figure import OURS, Figure, Outcome, Row, Setting, Time
from experiments.reproduce.run import run
from experiments.reproduce.store import Store
from sparsify.cli import reproduce
from sparsify.errors import DataError, SparsifyError


def times(**medians: float) -> dict[str, Time]:
    return {name.replace("_", " "): Time(ms, ms * 0.9, ms * 1.1) for name, ms in medians.items()}


@pytest.fixture
def measured(monkeypatch):
    """A paper of one figure with rows that are measured, without data, and wrong; the names of what was measured."""
    calls: list[str] = []

    def measure(name: str, setting: Setting) -> Outcome:
        calls.append(name)
        if name == "absent":
            raise DataError("absent is not here", "--data-root names its folder")
        if name == "wrong":
            raise SparsifyError("wrong is wrong")
        if name == "stopped":
            raise KeyboardInterrupt
        slow = times(sparsify=2.0, torch_CSR=3.0, peer=1.0)
        return Outcome(
            slow, {"DGL": "pip install dgl"}, {"accuracy": 0.5, "size": 10.0}, "generated features"
        )

    def figure(*names: str, **changes) -> Figure:
        rows = [Row(name, f"data of {name}", partial(measure, name), ("*.bin",)) for name in names]
        made = Figure(
            "figure1",
            "a figure",
            lambda setting: rows,
            "torch CSR",
            "3x of torch.",
            {"first": "3.1x"},
            ("accuracy",),
        )
        made = replace(made, why={"peer": "it does less"}, **changes)
        monkeypatch.setattr(registry, "FIGURES", {"paper": {"figure1": "somewhere"}})
        monkeypatch.setattr(registry, "find", lambda paper, name: made)
        return made

    return figure, calls


def test_names():
    assert registry.names("scorch") == ["figure5", "figure6", "figure7", "figure8", "slides"]
    assert registry.names("Scorch", "Figure 5") == registry.names("scorch", "5") == ["figure5"]
    with pytest.raises(SparsifyError, match="no paper 'scorh' to reproduce; one of scorch"):
        registry.names("scorh")
    with pytest.raises(SparsifyError, match="scorch has no 'figure55' to reproduce; did you mean figure5"):
        registry.names("scorch", "figure55")
    assert registry.names("sten") == ["figure2", "table1", "finetuning"]
    for paper in registry.FIGURES:
        for name in registry.names(paper):
            assert registry.find(paper, name).name == name


def test_the_table_says_what_was_measured_and_what_is_missing(measured, tmp_path):
    figure, _ = measured
    made = figure("first", "absent")
    records = run("paper", ["figure1"], Setting(), tmp_path)["figure1"]
    text = table.text(made, records)
    first = next(line for line in text.splitlines() if line.startswith("first"))
    assert first.split()[1:4] == ["2", "3", "1"]
    assert "not installed" in first and "1.50x" in first and "3.1x" in first and "generated features" in first
    assert "not measured: absent is not here; --data-root names its folder" in text
    assert "DGL is not installed: pip install dgl" in text
    assert "peer is ahead in 1 of 2 rows (first): it does less" in text
    assert "The paper reports, on its authors' machine: 3x of torch." in text
    rows = list(csv.DictReader((tmp_path / "figure1.csv").read_text().splitlines()))
    assert rows[0]["sparsify, ms"] == "2" and rows[0]["sparsify, low ms"] == "1.8"
    assert rows[1]["note"].startswith("not measured")
    assert reproduce.status({"figure1": records}) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kind": "points", "across": "size", "panels": lambda row: row[:1]},
        {"kind": "lines", "across": "size", "panels": lambda row: row[:1]},
    ],
)
def test_pictures(measured, tmp_path, changes):
    figure, _ = measured
    figure("first", "second", "absent", **changes)
    run("paper", ["figure1"], Setting(), tmp_path)
    root = ElementTree.parse(tmp_path / "figure1.svg").getroot()
    marks = root.findall(".//{*}circle" if changes else ".//{*}g//{*}rect")
    assert len(marks) == 6
    assert len(root.findall("{*}g")) == (2 if changes else 1)
    assert len(root.findall(".//{*}polyline")) == (6 if changes.get("kind") == "lines" else 0)


def test_an_interrupted_run_continues(measured, tmp_path):
    figure, calls = measured
    figure("first", "stopped", "second")
    with pytest.raises(KeyboardInterrupt):
        run("paper", ["figure1"], Setting(), tmp_path)
    assert "first" in (tmp_path / "figure1.txt").read_text()
    figure("first", "second")
    found = run("paper", ["figure1"], Setting(), tmp_path)["figure1"]
    assert calls == ["first", "stopped", "second"]
    assert [record.reused for record in found] == [True, False]
    assert found[0].outcome.times[OURS].median_ms == 2.0
    run("paper", ["figure1"], Setting(), tmp_path, fresh=True)
    run("paper", ["figure1"], Setting(seed=1), tmp_path)
    run("paper", ["figure1"], Setting(quick=True), tmp_path)
    assert calls[3:] == ["first", "second"] * 3


def test_rows_depend_on_the_files_that_they_read(measured, tmp_path):
    figure, calls = measured
    figure("first")
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "a.bin").write_bytes(b"1")
    run("paper", ["figure1"], Setting(data), out)
    (data / "a.bin").write_bytes(b"22")
    run("paper", ["figure1"], Setting(data), out)
    run("paper", ["figure1"], Setting(data), out)
    assert calls == ["first", "first"]
    written = json.loads((out / "manifest.json").read_text())
    assert list(written["data"]) == ["a.bin"] and len(written["data"]["a.bin"]) == 64
    assert written["seed"] == 0 and written["machine"]["threads"] and written["versions"]["numpy"]
    assert written["rows"]["figure1"]["first"]["reused"]


@pytest.mark.parametrize("changes", [{}, {"kind": "points", "across": "size"}])
@pytest.mark.parametrize("ours, peer, marks", [(0.0, 3.0, 1), (2.0, 0.0, 1), (0.0, 0.0, 0)])
def test_times_too_short_for_the_clock_are_not_drawn(
    measured, monkeypatch, tmp_path, changes, ours, peer, marks
):
    figure, _ = measured
    outcome = Outcome(times(sparsify=ours, torch_CSR=peer), {}, {"accuracy": 0.5, "size": 10.0}, "")
    made = figure("first", **changes)
    row = Row("first", "data", lambda setting: outcome, ())
    monkeypatch.setattr(registry, "find", lambda paper, name: replace(made, rows=lambda setting: [row]))
    run("paper", ["figure1"], Setting(), tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["rows"]["figure1"]["first"]["measured"]
    assert (tmp_path / "figure1.svg").exists() == (marks > 0)
    if marks:
        root = ElementTree.parse(tmp_path / "figure1.svg").getroot()
        assert len(root.findall(".//{*}circle" if changes else ".//{*}g//{*}rect")) == marks
    line = next(
        line for line in (tmp_path / "figure1.txt").read_text().splitlines() if line.startswith("first")
    )
    assert not any(text in line for text in ("0.00x", "infx", "nan"))


def test_the_manifest_outlives_a_picture_that_cannot_be_drawn(measured, monkeypatch, tmp_path):
    def svg(*given):
        raise ValueError("math domain error")

    figure, _ = measured
    figure("first")
    monkeypatch.setattr(picture, "svg", svg)
    with pytest.raises(ValueError, match="domain"):
        run("paper", ["figure1"], Setting(), tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["rows"]["figure1"]["first"]["measured"]


def test_each_row_has_its_own_file(tmp_path):
    names = ["a/b c", "a__b_c", "a__b c", "a%2Fb c", ".."]
    assert len({Store(tmp_path).place("figure1", name) for name in names}) == len(names)
    assert {Store(tmp_path).place("figure1", name).parent for name in names} == {tmp_path / "figure1"}


def test_rows_depend_on_the_sources(measured, monkeypatch, tmp_path):
    figure, calls = measured
    figure("first")
    code, sources = tmp_path / "code", manifest.sources
    (code / "inside").mkdir(parents=True)
    (code / "inside" / "a.py").write_text("a = 1")
    monkeypatch.setattr(manifest, "sources", lambda: sources(code))
    for text in ("a = 1", "a = 22", "a = 22"):
        (code / "inside" / "a.py").write_text(text)
        run("paper", ["figure1"], Setting(), tmp_path)
    assert calls == ["first", "first"]
    assert sources() == sources() != sources(code)
    monkeypatch.setattr(manifest, "EXPERIMENTS", code)  # rows are written there
    before = sources()
    (code / "inside" / "a.py").write_text("a = 333")
    assert sources() != before


def test_status(measured, tmp_path):
    figure, _ = measured
    figure("absent")
    assert reproduce.status(run("paper", ["figure1"], Setting(), tmp_path)) == 3
    figure("first", "wrong")
    records = run("paper", ["figure1"], Setting(), tmp_path)
    assert records["figure1"][1].reason == "wrong is wrong" and reproduce.status(records) == 1
