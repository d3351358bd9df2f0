"""`docs/scorch.md` and `docs/sten.md`: each item of the papers has a row, and what rows name is there."""

import re
from pathlib import Path

import pytest

import sparsify
from sparsify import sparsifiers

ROOT = Path(__file__).resolve().parent.parent
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("scorch", "sten")}
SECTIONS = "1 2 3 3.1 3.2 4 4.1 4.2 4.3 5 5.1 5.2 5.3 5.4 6"
APPENDICES = "A B B.1 B.2 B.3 C.1 D D.1 D.2 D.3 D.4 E E.1 E.2 E.3 E.4 F"
ITEMS = {
    "scorch": [
        *(f"section {name}" for name in SECTIONS.split()),
        *(f"appendix {name}" for name in APPENDICES.split()),
        *(f"algorithm {number}" for number in range(1, 5)),
        *(f"figure {number}" for number in range(1, 9)),
        *(f"table {number}" for number in range(1, 4)),
        *(f"equation {number}" for number in range(1, 3)),
        *(f"listing of {name}" for name in ("figure 1", "appendix D.3")),
        "slides",
    ],
    "sten": [
        *(f"section {name}" for name in ["1", "2", "2.1", "3", "4", "5"]),
        *(f"appendix {name}" for name in ["A.1", "A.2", "A.3"]),
        *(f"figure {number}" for number in range(1, 3)),
        "table 1",
        *(f"listing of {name}" for name in ("section 3", "appendix A.1", "appendix A.2", "appendix A.3")),
    ],
}
"""The headings, algorithms, figures, tables, equations and listings of each paper."""

FILE = re.compile(r"`((?:compiler|experiments|models|ops|sparsification|sparsify|storage)/[\w/]+(?:\.py|/))`")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def rows(page: str) -> list[list[str]]:
    """The cells of all rows of tables."""
    lines = [line for line in PAGES[page].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_each_item_has_a_row_with_a_test(page):
    found = rows(page)
    for item in ITEMS[page]:
        mine = [row for row in found if re.match(rf"{re.escape(item)}(?![\w.]*\w)", row[0])]
        assert mine, f"{page}.md has no row for {item}"
        for row in mine:
            assert TEST.search(row[-1]), f"the row of {row[0]} names no test"


@pytest.mark.parametrize("page", PAGES)
def test_tests_exist(page):
    found = TEST.findall(PAGES[page])
    assert len(found) > 30
    for file, name in found:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, f"{file} has no {name}"


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page):
    for file in FILE.findall(PAGES[page]):
        assert (ROOT / file).exists() or (ROOT / "sparsify" / file).exists(), file


def test_names_exist():
    for page in PAGES.values():
        for name in re.findall(r"`sparsify\.(\w+)", page):
            assert hasattr(sparsify, name), name
        for name in re.findall(r"`sparsifiers\.(\w+)", page):
            assert hasattr(sparsifiers, name), name
