"""A figure of a paper: its rows, the measurement of a row, and the numbers of the paper.

In: a row of Figure 5 and a `Setting`. Out: its `Outcome`: times of sparsify and of peers, facts such as accuracies.
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
    """Setting of a measurement.

    Attributes:
        root: folder of real data, only read; `None` without one.
        quick: small: few epochs, few turns, few rows.
        seed: seed of weights, batches and generated operands.
    """

    root: Path | None = None
    quick: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Time:
    """Median of the runs in milliseconds, with the confidence interval of the median.

    Attributes:
        difference: largest difference of the result from float64, relative to the largest value; `None` if unchecked.
    """

    median_ms: float
    low_ms: float
    high_ms: float
    difference: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a row.

    Attributes:
        times: times by contender, sparsify included.
        missing: reasons by unmeasured peer: "not installed: pip install sparse".
        facts: further columns: accuracies, sizes.
        note: remarks for readers of the row.
    """

    times: Mapping[str, Time]
    missing: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    note: str = ""

    def ratio(self, peer: str) -> float:
        """Time of a peer over the time of sparsify; NaN if the latter is 0, too short for the clock."""
        if not self.times[OURS].median_ms:
            return nan
        return self.times[peer].median_ms / self.times[OURS].median_ms

    def to_dict(self) -> dict[str, Any]:
        """Outcome as plain data."""
        return asdict(self)

    @staticmethod
    def of(stored: Mapping[str, Any]) -> "Outcome":
        """Outcome from the plain data of `to_dict`."""
        times = {name: Time(**time) for name, time in stored["times"].items()}
        return Outcome(times, stored["missing"], stored["facts"], stored["note"])


@dataclass(frozen=True, slots=True)
class Row:
    """One row: one data set of a figure.

    Attributes:
        name: name of the row, unique in its figure.
        data: description of the data.
        measure: measurement of the outcome; raises `DataError` if data are missing.
        files: files read by the row, as patterns below the data root; the manifest has their hashes.
        seconds: rough duration, for the estimated end of a run.
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
        name: name on the command line, `figure5`.
        title: title in words.
        rows: rows to measure.
        against: baseline of the paper.
        cited: result reported by the paper, on its authors' machine.
        numbers: reported result by row, if the paper gives numbers.
        facts: columns of facts, in order.
        why: reason for a faster contender, by contender or by panel and contender ("SpMV scipy").
        kind: kind of the picture: bars of times a row; times against the fact `across`, as points on log-log axes or as
            lines over a linear axis.
        across: fact on the horizontal axis.
        panels: panel of a row, for pictures of points and lines.
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
    """A row with its outcome, or with the reason for a missing outcome.

    Attributes:
        failed: whether the row was wrong, not merely without data.
        hashes: SHA-256 of the row's files, by name below the data root.
        reused: whether an earlier run measured the row.
    """

    row: str
    data: str
    outcome: Outcome | None
    reason: str = ""
    failed: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)
    reused: bool = False


def timed(case: Case, setting: Setting, *, seconds: float = 8.0, runs: int = 50) -> dict[str, Time]:
    """Times of all contenders of a case, measured in turns in one process; every result is checked first."""
    if setting.quick:
        seconds, runs = min(seconds, 1.0), 5
    found = measure(case, seconds=seconds, least=3 if setting.quick else 5, most=runs)
    plain = [times.to_dict() for times in found.times.values()]
    return {
        t["name"]: Time(t["median_us"] / 1e3, t["low_us"] / 1e3, t["high_us"] / 1e3, t["error"])
        for t in plain
    }
