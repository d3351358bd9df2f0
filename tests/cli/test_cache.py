"""`sparsify cache`: where, how large, prune, clean."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsify import options
from sparsify.errors import FINE

from .conftest import Cli

KERNEL_BYTES = 2**20
OLD, NEW = "0" * 16, "1" * 16


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[Path]:
    """A cache with two kernels of a mebibyte, `old` used before `new`."""
    directory = tmp_path / "kernels"
    directory.mkdir()
    for name, used in ((OLD, 1_000), (NEW, 2_000)):
        (directory / f"{name}.so").write_bytes(b"\0" * KERNEL_BYTES)
        (directory / f"{name}.json").write_text("{}")
        os.utime(directory / f"{name}.so", (used, used))
    with options.override(cache_dir=tmp_path):
        yield directory


def test_dir(cli: Cli, kernels: Path) -> None:
    assert cli("cache", "dir").out == f"{kernels}\n"
    found = json.loads(cli("cache", "dir", "--json").out)
    assert found == {"schema": 1, "directory": str(kernels), "exists": True}


def test_size(cli: Cli, kernels: Path) -> None:
    assert cli("cache", "size").out == "2 kernels, 2.0 MiB\n"
    assert json.loads(cli("cache", "size", "--json").out) == {
        "schema": 1,
        "kernels": 2,
        "bytes": 2 * KERNEL_BYTES + 4,
    }


def test_prune_keeps_what_was_used_last(cli: Cli, kernels: Path) -> None:
    assert cli("cache", "prune", "--to", "1.5").out == "1 kernels deleted\n"
    assert sorted(path.name for path in kernels.iterdir()) == [f"{NEW}.json", f"{NEW}.so"]


def test_clean(cli: Cli, kernels: Path) -> None:
    found = cli("cache", "clean", "--json")
    assert (found.status, json.loads(found.out)) == (FINE, {"schema": 1, "deleted": 2})
    assert list(kernels.iterdir()) == []


def test_no_cache_yet(cli: Cli, tmp_path: Path) -> None:
    with options.override(cache_dir=tmp_path / "none"):
        assert cli("cache", "size").out == "0 kernels, 0.0 MiB\n"
        assert cli("cache", "clean").out == "0 kernels deleted\n"
