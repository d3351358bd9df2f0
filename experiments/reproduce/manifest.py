"""Provenance of a run's numbers: versions, processor, threads, seeds, hashes of data.

In: a setting and the records of a run. Out: the contents of `manifest.json`.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import sparsify.models
import sparsify.recipes
from sparsify.bench.environment import facts
from sparsify.bench.table import command
from sparsify.runtime.machine import version

from .figure import Record, Setting

PACKAGES: Final = (
    *("numpy", "scipy", "torch-geometric", "transformers", "torchvision", "sparse", "dgl", "pillow"),
    "matplotlib",
)
BLOCK: Final = 1 << 20
EXPERIMENTS: Final = Path(__file__).resolve().parents[1]


def versions() -> dict[str, str]:
    """Installed versions of the packages that rows may use; "not installed" for absent packages."""
    return {name: version(name) or "not installed" for name in PACKAGES}


def hashes(root: Path | None, patterns: Sequence[str]) -> dict[str, str]:
    """SHA-256 of the files below the data root matching patterns, by name; empty without a root."""
    if root is None:
        return {}
    files = sorted({file for pattern in patterns for file in root.glob(pattern) if file.is_file()})
    return {str(file.relative_to(root)): digest(file, file.stat().st_mtime_ns) for file in files}


def sources(*folders: Path) -> str:
    """Digest of the sources behind the rows, so that edited code is measured anew.

    Default: the sources of sparsify, its models and recipes, and of the experiments.
    """
    packages = [Path(place) for m in (sparsify, sparsify.models, sparsify.recipes) for place in m.__path__]
    roots = folders or [*packages, EXPERIMENTS]
    found = hashlib.sha256()
    for root in dict.fromkeys(roots):
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                found.update(f"{file.relative_to(root)} {digest(file, file.stat().st_mtime_ns)}\n".encode())
    return found.hexdigest()


@cache
def digest(file: Path, changed: int) -> str:
    """SHA-256 of a file, memoized by its modification time."""
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def manifest(
    paper: str, setting: Setting, records: Mapping[str, Sequence[Record]], conditions: Mapping[str, Any]
) -> dict[str, Any]:
    """Versions, machine, seeds and digests of data, sufficient to repeat the numbers."""
    every = [record for found in records.values() for record in found]
    return {
        "schema": 1,
        "paper": paper,
        "command": command(sys.orig_argv),
        "quick": setting.quick,
        "seed": setting.seed,
        "data_root": None if setting.root is None else str(setting.root),
        "machine": facts(),
        "versions": versions(),
        "conditions": conditions,
        "data": {name: digest for record in every for name, digest in record.hashes.items()},
        "rows": {
            figure: {
                record.row: {
                    "measured": record.outcome is not None,
                    "reused": record.reused,
                    "reason": record.reason,
                }
                for record in found
            }
            for figure, found in records.items()
        },
    }
