"""A figure of a paper: its rows, the measurement of a row, and the numbers of the paper.

In: a row of Figure 5 and a `Setting`. Out: its `Outcome`: times of ours and of peers, facts such as accuracies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from typing import Any, Final, Literal

from sparsify.bench.harness import Case, measure

OURS: Final = "sparsify"
Kind = Literal["bars", "points", "lines"]
Fact = str | int | float


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of a measurement.

    Attributes:
        root: the folder of real data, only read; `None` without one.
        quick: small: few epochs, few turns, few rows.
        seed: of weights, batches and generated operands.
    """

    root: Path | None = None
    quick: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Time:
    """The median of the runs in milliseconds, with the interval of the median.

    Attributes:
        difference: of the result from float64, of the largest value; `None` where results were not compared.
    """

    median_ms: float
    low_ms: float
    high_ms: float
    difference: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a row.

    Attributes:
        times: by contender, ours among them.
        missing: peers that are not installed, and how to get each.
        facts: further columns: accuracies, sizes.
        note: what a reader must know of the row.
    """

    times: Mapping[str, Time]
    missing: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    note: str = ""

    def ratio(self, peer: str) -> float:
        """The time of a peer over that of sparsify; NaN where the latter is 0, too short for the clock."""
        if not self.times[OURS].median_ms:
            return nan
        return self.times[peer].median_ms / self.times[OURS].median_ms

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @staticmethod
    def of(stored: Mapping[str, Any]) -> "Outcome":
        """The outcome that `to_dict` wrote."""
        times = {name: Time(**time) for name, time in stored["times"].items()}
        return Outcome(times, stored["missing"], stored["facts"], stored["note"])


@dataclass(frozen=True, slots=True)
class Row:
    """One row: one data set of a figure.

    Attributes:
        name: of the row, unique in its figure.
        data: what it runs on, in words.
        measure: its outcome; raises `DataError` where data are missing.
        files: what it reads, as patterns below the data root; their hashes go into the manifest.
        seconds: that it takes, roughly, for the expected end.
    """

    name: str
    data: str
    measure: Callable[[Setting], Outcome]
    files: tuple[str, ...] = ()
    seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure or a table of a paper.

    Attributes:
        name: how the command calls it, `figure5`.
        title: in words.
        rows: what is measured.
        against: the contender that the paper compares itself with.
        cited: what the paper reports, on its authors' machine.
        numbers: the same row by row, where the paper gives numbers.
        facts: the columns of facts, in order.
        why: by contender, the reason where it is the faster one.
        kind: of the picture: bars of times a row; times against the fact `across`, points log-log, lines by a plain
            scale across.
        across: that fact.
        panels: of pictures of points and lines: the panel of a row.
    """

    name: str
    title: str
    rows: Callable[[Setting], Sequence[Row]]
    against: str
    cited: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    facts: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = "bars"
    across: str = ""
    panels: Callable[[str], str] = lambda row: ""


@dataclass(frozen=True, slots=True)
class Record:
    """A row and what became of it: an outcome, or the reason why there is none.

    Attributes:
        failed: whether the row was wrong, and not merely without its data.
        hashes: SHA-256 of the files that it read, by their names below the data root.
        reused: whether an earlier run had measured it.
    """

    row: str
    data: str
    outcome: Outcome | None
    reason: str = ""
    failed: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)
    reused: bool = False


def timed(case: Case, setting: Setting, *, seconds: float = 8.0, runs: int = 50) -> dict[str, Time]:
    """The times of all contenders of a case, in turns in one process; every result is checked first."""
    if setting.quick:
        seconds, runs = min(seconds, 1.0), 5
    found = measure(case, seconds=seconds, least=3 if setting.quick else 5, most=runs)
    plain = [times.to_dict() for times in found.times.values()]
    return {
        t["name"]: Time(t["median_us"] / 1e3, t["low_us"] / 1e3, t["high_us"] / 1e3, t["error"])
        for t in plain
    }
