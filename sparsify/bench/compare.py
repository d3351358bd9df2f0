"""Comparison of two runs of the same rows, to find slowdowns.

In: a file of an earlier run, the rows of the new run. Out: `Change("spmm-2708-5-128", "torch CSR", 2.9, 2.1)`.

Compared are ratios against the baseline of the same run: a busier or another machine slows down both contenders.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from sparsify.errors import SparsifyError


@dataclass(frozen=True, slots=True)
class Change:
    """A ratio before and now."""

    row: str
    label: str
    before: float
    now: float

    @property
    def slower(self) -> float:
        """Slowdown factor relative to the baseline; below 1 for a speedup."""
        return self.before / self.now

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "slower": self.slower}


def read(file: Path, names: Collection[str]) -> list[Mapping[str, Any]]:
    """The rows of an earlier run.

    Args:
        file: file of the earlier run.
        names: names of the rows to compare.

    Raises:
        SparsifyError: the file has no measurements, or none of the named rows.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["rows"]
        dict(_ratios(found))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SparsifyError(
            f"{file} holds no measurements: {error}", "a file that `sparsify bench --out` has written"
        ) from error
    if not any(row["name"] in names for row in found):
        raise SparsifyError(f"{file} has none of these rows", "choose rows that it has")
    return list(found)


def changes(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[Change]:
    """Changes of the rows measured in both runs."""
    known = dict(_ratios(before))
    return [Change(*key, known[key], reached) for key, reached in _ratios(now) if key in known]


def _ratios(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], float]]:
    """Ratios by row and label; for limits (lower is better), the inverse."""
    for row in rows:
        for target in row["targets"]:
            reached = float(target["reached"])
            if reached > 0:
                yield (row["name"], target["label"]), reached if row["kind"] == "ratios" else 1 / reached


def table(found: Sequence[Change]) -> str:
    """All changes."""
    lines = [(c.row, c.label, f"{c.before:.3g}", f"{c.now:.3g}", f"{c.slower:.2f}x") for c in found]
    return tabulate(lines, headers=("row", "against", "before", "now", "slower"), disable_numparse=True)
