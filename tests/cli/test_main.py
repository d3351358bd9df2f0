"""The command line as a whole: start-up, help, errors, exit statuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparsify
from sparsify import providers
from sparsify.errors import ENVIRONMENT, FINE, USAGE

from .conftest import Cli

# A command takes under 0.3 s on an idle machine; importing torch takes more than a second.
START_CPU_SECONDS = 0.7
NO_TORCH = """
import sys
from sparsify.cli.main import main
try:
    main(sys.argv[1:])
finally:
    assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["recipes", "ls"],
        ["recipes", "validate", "gcn"],
        ["cache", "dir"],
        ["run", "--help"],
        ["explain", "--help"],
    ],
    ids=" ".join,
)
def test_starts_fast_and_without_torch(arguments: list[str], tmp_path: Path) -> None:
    assert any(cpu_seconds(arguments, tmp_path) < START_CPU_SECONDS for _ in range(3))


def cpu_seconds(arguments: list[str], folder: Path) -> float:
    """What a command line costs in a process of its own, which must not import torch."""
    before = os.times()
    subprocess.run([sys.executable, "-c", NO_TORCH, *arguments], cwd=folder, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"sparsify {sparsify.__version__}\n"


def test_help_lists_the_verbs(cli: Cli) -> None:
    found = cli("--help")
    assert found.status == FINE
    assert all(verb in found.out for verb in ("run", "explain", "recipes", "env", "doctor", "cache"))


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["recipes", "ls", "--nonsense"], ["cache", "prune", "--to", "x"]]
)
def test_usage_errors(cli: Cli, arguments: list[str]) -> None:
    found = cli(*arguments)
    assert (found.status, found.out) == (USAGE, "")
    assert "Usage: sparsify" in found.err


def test_errors_go_to_standard_error(cli: Cli) -> None:
    found = cli("recipes", "show", "gnc")
    assert (found.status, found.out) == (USAGE, "")
    assert found.err.startswith("sparsify: no built-in recipe 'gnc'; did you mean gcn or gin? there are ")


def test_console_script_and_module_agree(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "sparsify"
    if not script.is_file():
        pytest.skip(f"sparsify is not installed beside {sys.executable}")
    outputs = [
        subprocess.run(
            [*command, "recipes", "ls"], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
        for command in ([str(script)], [sys.executable, "-m", "sparsify"])
    ]
    assert outputs[0] == outputs[1]
    assert "\ngcn " in f"\n{outputs[0]}"


def test_intruder_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sparsify").mkdir()
    info = tmp_path / "sparsify_nightly-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("sparsify/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = cli("recipes", "ls")
    assert (found.status, found.out) == (ENVIRONMENT, "")
    assert found.err.startswith(f"sparsify: the distribution sparsify-nightly in {tmp_path} provides")
    assert "pip uninstall sparsify-nightly" in found.err


@pytest.mark.parametrize(
    "file, text, found",
    [
        ("top_level.txt", "sparsify\n", True),
        ("top_level.txt", "sparsify_tools\n", False),
        ("RECORD", "a.py,,\nsparsify/__init__.py,,\n", True),
        ("RECORD", "other/sparsify/__init__.py,,\n", False),
        ("METADATA", "Name: sparsify\n", False),
    ],
)
def test_providers(tmp_path: Path, file: str, text: str, found: bool) -> None:
    (tmp_path / "sparsify").mkdir()
    info = tmp_path / "Some_Thing-2.0.dist-info"
    info.mkdir()
    (info / file).write_text(text)
    assert providers.providers([str(tmp_path)]) == ({"some-thing": tmp_path} if found else {})


def test_our_own_distribution_is_no_intruder(tmp_path: Path) -> None:
    (tmp_path / "sparsify").mkdir()
    info = tmp_path / f"sparsify_fx-{sparsify.__version__}.dist-info"
    info.mkdir()
    (info / "top_level.txt").write_text("sparsify\n")
    providers.require_sole_provider([str(tmp_path)])
    assert providers.providers([str(tmp_path)]) == {"sparsify-fx": tmp_path}
