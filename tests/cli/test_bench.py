"""`sparsify bench`."""

import json
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
