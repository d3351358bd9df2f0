"""Pictures of ratios."""

import sys

import pytest

from sparsify.bench import plot
from sparsify.errors import SparsifyError


def row(name, *reached):
    targets = [
        {
            "ours": "sparsify",
            "baseline": f"b{n}",
            "reached": r,
            "low": 0.9 * r,
            "high": 1.1 * r,
            "asked": None,
        }
        for n, r in enumerate(reached)
    ]
    return {"name": name, "kind": "ratios", "targets": targets}


def test_matplotlib_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SparsifyError, match=r"sparsify-fx\[plot\]"):
        plot.plot([row("spmm", 2.0)], tmp_path / "a.png")


def test_each_row_has_a_place_for_its_name():
    rows = [row("spmm", 2.0, 0.5), row("spmv", 3.0)]
    places, names = plot._places(rows)
    assert (places, names) == ([0.0, 1.0, 3.0], ["b0", "b1", "b0"])
    assert plot._firsts(rows, places) == [0.0, 3.0]


def test_a_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    plot.plot([row("spmm", 2.0, 0.5)], tmp_path / "a.svg")
    assert "spmm" in (tmp_path / "a.svg").read_text()
    with pytest.raises(SparsifyError, match=r"a.xyz cannot be drawn.*end it in .png"):
        plot.plot([row("spmm", 2.0)], tmp_path / "a.xyz")
    with pytest.raises(SparsifyError, match="no ratios"):
        plot.plot([], tmp_path / "a.png")
