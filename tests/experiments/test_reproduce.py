"""`sparsify reproduce`: rows are kept and continued, tables say what is missing, pictures and manifest are written."""

import csv
import json
import shutil
import struct
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from xml.etree import ElementTree

import pytest

from experiments.reproduce import manifest, picture, png, registry, table
from experiments.reproduce.figure import OURS, Figure, Outcome, Record, Row, Setting, Time
from experiments.reproduce.run import run
from experiments.reproduce.store import Store
from sparsify.cli import reproduce
from sparsify.errors import DataError, SparsifyError


def times(**medians: float) -> dict[str, Time]:
    return {name.replace("_", " "): Time(ms, ms * 0.9, ms * 1.1) for name, ms in medians.items()}


def bars(root: ElementTree.Element) -> list[ElementTree.Element]:
    """The bars of a drawing, which have the time as a title, without the squares of its legend."""
    return [rect for rect in root.iterfind(".//{*}g//{*}rect") if rect.find("{*}title") is not None]


@pytest.fixture(autouse=True)
def no_browser(request, monkeypatch):
    """Most runs here draw no PNG, which takes a browser a second."""
    if "png" not in request.node.name:
        monkeypatch.setattr(png, "BROWSERS", ())


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
            slow,
            {"DGL": "not installed: pip install dgl"},
            {"accuracy": 0.5, "size": 10.0},
            "generated features",
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
    assert registry.names("sten") == ["figure2", "table1", "finetuning", "texts"]
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
    assert "not installed" in first and "1.50x" in first and "3.1x" in first
    assert "Note of first: generated features" in text and "Data of absent: data of absent" in text
    assert "Note of absent: not measured: absent is not here; --data-root names its folder" in text
    assert "DGL is not installed: pip install dgl" in text
    assert "A peer is ahead in 1 of 2 rows:\n  first: peer: 2.00x, it does less" in text
    assert "The paper reports, on its authors' machine: 3x of torch." in text
    rows = list(csv.DictReader((tmp_path / "figure1.csv").read_text().splitlines()))
    assert rows[0]["sparsify, ms"] == "2" and rows[0]["sparsify, low ms"] == "1.8"
    assert rows[1]["note"].startswith("not measured")
    assert rows[0]["why"] == "peer: 2.00x, it does less" and rows[1]["why"] == ""
    assert reproduce.status({"figure1": records}) == 0


def test_each_row_says_why_a_peer_is_ahead():
    figure = Figure("figure1", "a figure", lambda setting: [], "peer", "", panels=lambda row: row.split()[0])
    figure = replace(figure, why={"peer": "it does less", "SpMV peer": "it has no threads"})

    def reason(row: str, **medians: float) -> str:
        return table.reason(figure, row, Outcome(times(**medians)), "peer")

    assert reason("SpMM a", sparsify=2.0, peer=1.0) == "2.00x, it does less"
    assert reason("SpMV a", sparsify=2.0, peer=1.0) == "2.00x, it has no threads"
    close = reason("SpMM a", sparsify=2.0, peer=1.9)
    assert close == "1.05x, it does less (the intervals of the two medians overlap)"
    assert reason("SpMM a", sparsify=2.0, peer=0.0) == "it does less"


def test_long_texts_stand_below_the_table(measured, tmp_path):
    figure, _ = measured
    text = "j/128: dense, i: dense, j%128: compressed(crd=int8) (4); j/384: dense, i: dense"
    outcome = Outcome(times(sparsify=2.0, torch_CSR=3.0), {}, {"format": text})
    row = Row("first", "data", lambda setting: outcome)
    made = replace(figure("first"), facts=("format",), rows=lambda setting: [row])
    shown = table.text(made, [Record("first", "data", outcome), Record("second", "data", outcome)])
    assert f"Format: {text}" in shown and shown.count(text) == 1


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
    assert len(bars(root) if not changes else root.findall(".//{*}circle")) == 6
    assert len(root.findall("{*}g")) == (2 if changes else 1)
    assert len(root.findall(".//{*}polyline")) == (6 if changes.get("kind") == "lines" else 0)


def test_long_labels_are_slanted_below_the_drawing(measured, tmp_path):
    figure, _ = measured
    heights = []
    for names in (("first", "second"), [f"a row with a long name, {n}" for n in range(8)]):
        figure(*names)
        run("paper", ["figure1"], Setting(), tmp_path)
        root = ElementTree.parse(tmp_path / "figure1.svg").getroot()
        slanted = [text for text in root.iterfind(".//{*}text") if text.get("transform")]
        assert len(slanted) == (0 if names[0] == "first" else 8)
        heights.append(int(root.get("viewBox").split()[-1]))
    assert heights[1] > heights[0] == picture.HEIGHT


def test_png_is_the_drawing(measured, monkeypatch, tmp_path):
    """By a browser or by matplotlib; without both there is none, not an older one either, and a way to get it."""
    figure, _ = measured
    figure("first", "second")
    if not any(map(shutil.which, png.BROWSERS)) and find_spec("matplotlib") is None:
        pytest.skip("neither a browser nor matplotlib is installed")
    run("paper", ["figure1"], Setting(), tmp_path)
    content = (tmp_path / "figure1.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    if any(map(shutil.which, png.BROWSERS)):
        width, height = png.size((tmp_path / "figure1.svg").read_text())
        assert struct.unpack(">II", content[16:24]) == (png.SCALE * width, png.SCALE * height)
    monkeypatch.setattr(png, "BROWSERS", ("no-such-browser",))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    run("paper", ["figure1"], Setting(), tmp_path)
    assert not (tmp_path / "figure1.png").exists() and "chromium" in png.HOW and "plot" in png.HOW


def test_browsers_that_fail_are_passed_over(monkeypatch, tmp_path):
    drawing = tmp_path / "a.svg"
    drawing.write_text('<svg viewBox="0 0 10 10"/>')
    monkeypatch.setattr(png, "BROWSERS", ("false",))
    assert not png.by_browser(drawing, tmp_path / "a.png")


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
        assert len(root.findall(".//{*}circle") if changes else bars(root)) == marks
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
