"""`sparsify bench`."""

import json
from importlib.util import find_spec
from pathlib import Path

from sparsify.errors import FINE, NEGATIVE, USAGE

from .conftest import Cli

SMALL = ("bench", "small", "--rows", "spmv", "--quick", "--scale", "0.5")


def test_runs_are_compared(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    first = cli(*SMALL, "--out", str(file))
    assert first.status == FINE
    assert "spmv-10-2" in first.out
    again = cli(*SMALL, "--compare", str(file), "--fail-if", "1e6")
    assert again.status == FINE
    assert "slower" in again.out
    assert cli(*SMALL, "--compare", str(file), "--fail-if", "1e-6").status == NEGATIVE


def test_json(cli: Cli) -> None:
    data = json.loads(cli(*SMALL, "--json").out)
    assert data["schema"] == 1
    assert data["rows"][0]["name"] == "spmv-10-2"
    assert data["machine"]["torch"]


def test_mistakes_are_named(cli: Cli) -> None:
    assert cli("bench", "kernel").status == USAGE
    found = cli("bench", "--fail-if", "1.1")
    assert found.status == USAGE
    assert "--compare" in found.err
    for wrong, said in (
        (("--model", "small"), "--model measures kernels of its own"),
        (("--compare", "x.json", "--fail-if", "nan"), "--fail-if nan; how many times worse"),
        (("--scale", "nan"), "--scale nan; more than 0"),
    ):
        found = cli("bench", *wrong)
        assert (found.status, said in found.err) == (USAGE, True)


def test_what_cannot_be_written_or_compared_is_said_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text('{"rows": [1]}')
    for option, path, said in (
        ("--out", tmp_path, "cannot be written: Is a directory"),
        ("--csv", file / "x.csv", "cannot be written: "),
        ("--compare", file, "holds no measurements"),
        ("--plot", tmp_path / "x.xyz", "cannot be drawn" if find_spec("matplotlib") else "sparsify-fx[plot]"),
    ):
        found = cli(*SMALL, option, str(path))
        assert found.status != FINE and said in found.err and "[1/" not in found.err
    file.write_text('{"rows": []}')
    found = cli(*SMALL, "--compare", str(file))
    assert found.status == USAGE and "has none of these rows; choose" in found.err and "[1/" not in found.err
