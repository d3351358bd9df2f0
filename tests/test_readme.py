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
from typer.main import get_command

from sparsify.cli.main import app, main
from tests.fork_server import run_script

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_LANGUAGES = {"python", "console"}
READ_LANGUAGES = {"sh", "yaml", "text", "diff"}
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
    environment = {**os.environ, "SPARSIFY_CACHE_DIR": str(kernel_cache)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("blocks", documents("python"))
def test_python(blocks: list[Block], tmp_path: Path, kernel_cache: Path) -> None:
    script = tmp_path / "document.py"
    script.write_text("\n".join(block.text for block in blocks), encoding="utf-8")
    ended = run_script(script, {**os.environ, "SPARSIFY_CACHE_DIR": str(kernel_cache)})
    assert ended.status == 0, ended.errors


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


@pytest.mark.sampled(4)
def test_the_page_of_scale_trains_in_two_processes(tmp_path: Path, kernel_cache: Path) -> None:
    """Its `train.py` under `torchrun`, with its graph and its network."""
    page = ROOT / "docs" / "scale.md"
    (script,) = (block.text for block in of_language("sh")[page] if block.text.startswith("# train.py"))
    python = [block.text for block in of_language("python")[page]]
    graph = next(text for text in python if "graph.pt" in text)
    network = next(text for text in python if "class Network" in text).partition("\n\n\npartition(")[0]
    (tmp_path / "graph.py").write_text(graph)
    (tmp_path / "network.py").write_text(f"import torch\n{network}\n")
    (tmp_path / "train.py").write_text(script.replace("range(100)", "range(3)"))
    asked = [[sys.executable, "graph.py"]]
    asked.append(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    )
    found = [run(command, tmp_path, kernel_cache) for command in asked]
    assert [one.returncode for one in found] == [0, 0], found[-1].stderr
    assert found[-1].stdout.count("tensor(") == 6


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_written_commands_have_known_options(path: Path) -> None:
    """Commands in blocks of `sh` and in lines of text, which no test runs, are parsed."""
    text = path.read_text(encoding="utf-8")
    lines = [line for block in of_language("sh").get(path, []) for line in block.text.splitlines()]
    lines += re.findall(r"`(sparsify [a-z][^`\n]*)`", text)
    for line in lines:
        _, program, asked = line.partition("sparsify ")
        if not program or line.lstrip().startswith(("#", "pip ")) or "[" in asked:
            continue
        error = parse_error(shlex.split(asked, comments=True))
        assert error is None, f"{line}: {error}"


def parse_error(words: list[str]) -> str | None:
    """Why a command line has no meaning; arguments that it leaves out are none."""
    command = get_command(app)
    try:
        while hasattr(command, "commands") and words:
            command = command.commands[words[0]]
            words = words[1:]
        command.make_context("sparsify", [word for word in words if word != "..."])
    except Exception as error:  # typer's copy of click has no public names for them
        kind = type(error).__name__
        return None if kind in {"MissingParameter", "BadParameter", "Exit"} else f"{kind}: {error}"
    return None


def test_command_lines_are_parsed() -> None:
    assert parse_error(["bench", "layers", "--quick"]) is parse_error(["partition"]) is None
    assert parse_error(["bench", "layers", "--nope"]) == "NoSuchOption: No such option: --nope"
    assert "KeyError" in str(parse_error(["nosuch"]))


def test_reasons_are_those_of_the_report() -> None:
    """The page of slow models quotes what the passes write."""
    page = (ROOT / "docs" / "why_not_faster.md").read_text(encoding="utf-8")
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "sparsify").rglob("*.py"))
    quoted = [part for row in re.findall(r'^\| "(.*?)"', page, re.MULTILINE) for part in row.split(" ... ")]
    assert len(quoted) > 8
    assert [part for part in quoted if part not in written] == []


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
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`?make ([\w-]+)`", path.read_text(encoding="utf-8"))) <= set(targets)


def test_readme_names_the_first_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "`make demo`" in text
    assert "`make test`" in text
