"""CHANGELOG.md: releases with the headings of Keep a Changelog, entries of one line, the version of the package."""

import re
from pathlib import Path

import pytest

import sparsify

TEXT = (Path(__file__).resolve().parent.parent / "CHANGELOG.md").read_text(encoding="utf-8")
HEADINGS = ["Security", "Added", "Changed", "Fixed", "Removed"]
RELEASES = re.findall(
    r"^## \[(.*?)\](?: - (\d{4}-\d\d-\d\d))?\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL
)


def test_releases_end_with_the_version_of_the_package() -> None:
    names = [name for name, _, _ in RELEASES]
    assert names[:2] == ["Unreleased", sparsify.__version__]
    assert [bool(date) for _, date, _ in RELEASES] == [name != "Unreleased" for name in names]
    assert re.findall(r"^## ", TEXT, re.MULTILINE) == ["## "] * len(names)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, _, text in RELEASES])
def test_each_heading_is_there_once_and_in_order(name: str, text: str) -> None:
    found = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert found == (HEADINGS if name == "Unreleased" else [one for one in HEADINGS if one in found])


def test_entries_have_one_line_each() -> None:
    entries = [line for line in TEXT.splitlines() if line.startswith("- ")]
    continued = [line for line in TEXT.splitlines() if line.startswith(" ")]
    assert continued == []
    assert len(entries) == len(set(entries)) > 100
    assert [line for line in entries if len(line) > 160] == []
