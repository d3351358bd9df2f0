"""Names folded by pattern, and tables that fit a width."""

import pytest

from sparsify.report_text import UNLIMITED, fitted, fold, fold_rows, terminal_width, wrapped


@pytest.mark.parametrize(
    ("texts", "folded"),
    [
        ([], []),
        (["a.0", "a.1"], ["a.0", "a.1"]),
        ([f"a.{n}.w" for n in range(12)], ["a.{0-11}.w (12)"]),
        (["a.1", "a.3", "a.2", "a.7"], ["a.{1-3,7} (4)"]),
        (["a.1", "a.3", "a.5", "a.7", "a.9"], ["a.{1...9} (5)"]),
        (["x", "a.1", "y", "a.2", "a.3"], ["x", "a.{1-3} (3)", "y"]),
        (["a.1.b.5", "a.2.b.5", "a.3.b.5"], ["a.{1-3}.b.5 (3)"]),
        (["a.1.b.5", "a.2.b.6", "a.3.b.6"], ["a.{1-3}.b.{5-6} (3)"]),
        (["8 KiB", "9.5 KiB", "10.25 KiB"], ["{8...10.25} KiB (3)"]),
        (["layers.0.1.w", "layers.0.2.w", "layers.0.3.w"], ["layers.0.{1-3}.w (3)"]),
        (["#1", "1#", "##", "#2", "#3"], ["#{1-3} (3)", "1#", "##"]),
        (["same"] * 4, ["same (4)"]),
        (["a.01", "a.1", "a.10"], ["a.{01...10} (3)"]),
    ],
)
def test_fold(texts, folded):
    assert fold(texts) == folded


def test_rows_fold_where_all_cells_agree():
    rows = [[f"layer.{n}", "linear", f"{n}.5 KiB"] for n in range(4)] + [["layer.9", "conv", "1.0 KiB"]]
    assert fold_rows(rows) == [
        ["layer.{0-3} (4)", "linear", "{0.5...3.5} KiB"],
        ["layer.9", "conv", "1.0 KiB"],
    ]


def test_tables_become_paragraphs():
    rows = [["w" * 30, "first; second part", ""], ["v", "third", "5"]]
    assert fitted(("name", "notes", "us"), rows, 100).startswith("name ")
    assert fitted(("name", "notes", "us"), rows, 24).splitlines() == [
        "w" * 24,
        "  " + "w" * 6,
        "  notes  first",
        "         second part",
        "v",
        "  notes  third",
        "  us     5",
    ]


@pytest.mark.parametrize("width", [1, 20, 21, 40, 80])
def test_lines_are_not_wider(width):
    words = "warning: " + " ".join("x" * n for n in range(1, 60, 7)) + "\nshort"
    assert max(map(len, wrapped(words, width).splitlines())) <= max(width, 20)
    text = fitted(("a", "long header", "c"), [[words, words, words], ["", "", ""]], width)
    assert max(map(len, text.splitlines())) <= max(width, 20)


def test_terminal_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "93")
    assert terminal_width() == terminal_width(UNLIMITED) == 93
    for columns in ("", "wide"):
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal_width(UNLIMITED) in (UNLIMITED, 80) or terminal_width(UNLIMITED) > 0
