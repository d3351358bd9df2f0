"""The README and the documentation are true: their Python and console blocks run from an empty folder."""

import doctest
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparsify.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_LANGUAGES = {"python", "console"}
READ_LANGUAGES = {"sh", "yaml", "text"}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    language: str
    text: str


BLOCKS = [
    Block(path, *found) for path in DOCUMENTS for found in BLOCK.findall(path.read_text(encoding="utf-8"))
]


def of_language(language: str) -> dict[Path, list[Block]]:
    """The blocks of a language by document."""
    found: dict[Path, list[Block]] = {}
    for block in BLOCKS:
        if block.language == language:
            found.setdefault(block.document, []).append(block)
    return found


def documents(language: str) -> list[object]:
    """One test parameter for each document that has blocks of a language."""
    return [pytest.param(blocks, id=path.name) for path, blocks in of_language(language).items()]


def run(command: list[str], folder: Path, kernel_cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SPARSIFY_CACHE_DIR": str(kernel_cache), "SPARSIFY_CXXFLAGS": "-O0"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("blocks", documents("python"))
def test_python(blocks: list[Block], tmp_path: Path, kernel_cache: Path) -> None:
    script = tmp_path / "document.py"
    script.write_text("\n".join(block.text for block in blocks), encoding="utf-8")
    result = run([sys.executable, str(script)], tmp_path, kernel_cache)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("blocks", documents("console"))
def test_console(
    blocks: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    checker = doctest.OutputChecker()
    for command, expected in (pair for block in blocks for pair in commands(block.text)):
        program, *arguments = shlex.split(command)
        assert program == "sparsify", f"no test can run {command!r}; put it into a block of sh"
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert not ended.value.code, f"{command}: {err}"
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert checker.check_output(expected, out, flags), f"{command} prints\n{out}"


def commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console block and what each prints."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def test_commands() -> None:
    assert commands("$ a b\nc\nd\n$ e\n") == [("a b", "c\nd\n"), ("e", "")]


def test_blocks_name_their_language() -> None:
    assert {block.language for block in BLOCKS} <= RUN_LANGUAGES | READ_LANGUAGES
    assert {block.language for block in BLOCKS} >= RUN_LANGUAGES


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(path: Path) -> None:
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(path: Path) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`?make (\w+)`", path.read_text(encoding="utf-8"))) <= set(targets)


def test_readme_names_the_first_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "`make demo`" in text
    assert "`make test`" in text
