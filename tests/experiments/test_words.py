"""The report of pronouns counts docstrings alone, by folder."""

from pathlib import Path

import pytest

from experiments import words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text(
        '"""Where it is."""\n\ndef f():\n    """Loops of a kernel."""\n    return "it its them"\n'
    )
    (tmp_path / "inner" / "b.py").write_text('class C:\n    """Which of them reads rows."""\n')
    return tmp_path


def test_shares_are_of_docstrings(folder, capsys):
    assert words.by_folder([folder]) == {folder: (2, 7), folder / "inner": (2, 5)}
    assert words.main([str(folder)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "inner" in printed[0] and "40.0%" in printed[0], "the largest share first"
    assert printed[-1].split() == ["all", "12", "words", "33.3%"]


def test_first_lines(folder, capsys):
    words.main([str(folder), "--first-lines"])
    printed = capsys.readouterr().out
    assert "a.py: module: Where it is." in printed and "b.py: C: Which of them reads rows." in printed
    assert "Loops" not in printed
