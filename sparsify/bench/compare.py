"""Two runs of the same rows: what became slower.

In: a file of an earlier run, the rows of this one. Out: `Change("spmm-2708-5-128", "torch CSR", 2.9, 2.1)`.

Ratios against the baseline of the same run are compared: a machine that is busier, or another one, slows down both.
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
        """The factor by which it is slower, relative to the baseline; below 1 it is faster."""
        return self.before / self.now

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "slower": self.slower}


def read(file: Path, names: Collection[str]) -> list[Mapping[str, Any]]:
    """The rows of an earlier run.

    Args:
        file: that has them.
        names: of the rows that will be compared with them.

    Raises:
        SparsifyError: it has none of these rows.
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
    """The rows that both runs have measured."""
    known = dict(_ratios(before))
    return [Change(*key, known[key], reached) for key, reached in _ratios(now) if key in known]


def _ratios(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], float]]:
    """The ratios by row and label; of limits, which must be low, their inverse."""
    for row in rows:
        for target in row["targets"]:
            reached = float(target["reached"])
            if reached > 0:
                yield (row["name"], target["label"]), reached if row["kind"] == "ratios" else 1 / reached


def table(found: Sequence[Change]) -> str:
    """All changes."""
    lines = [(c.row, c.label, f"{c.before:.3g}", f"{c.now:.3g}", f"{c.slower:.2f}x") for c in found]
    return tabulate(lines, headers=("row", "against", "before", "now", "slower"), disable_numparse=True)
