"""Contenders measured in one process: in turns, checked first, medians with intervals.

In: a `Case` of contenders with the ratios that are asked. Out: a `Measured` case, whose `outcomes` say which
ratios were reached, against which baseline.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import scipy.sparse
import torch

from sparsify.bench.roofline import Limit, Work, limit
from sparsify.compiler import calibrate
from sparsify.compiler.cpp.toolchain import cache
from sparsify.options import current
from sparsify.storage.tensor import SparseTensor

# One sample of a short call is the mean over so many calls that it takes about this long.
SAMPLE_US = 1000.0
# Calls that take longer than this need no others before them.
LONG_US = 1e6
Clock = Callable[[], int]


def nothing() -> None:
    """The preparation of contenders that need none."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work of a case.

    Attributes:
        name: as the table shows it.
        call: does the work and returns the result.
        baseline: somebody else's, to be compared with.
        before: runs before each call, untimed.
        is_checked: whether its result is compared with the expected one.
    """

    name: str
    call: Callable[[], Any]
    baseline: bool = True
    before: Callable[[], None] = nothing
    is_checked: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio that is asked of `ours` against the fastest of `baselines`; `None` where none is asked."""

    ours: str
    baselines: tuple[str, ...]
    asked: float | None
    label: str = ""


@dataclass(slots=True)
class Case:
    """Contenders for one row of the table.

    Attributes:
        name: of the row.
        work: sizes of the operands, for the reader.
        data: where they come from, real or generated.
        contenders: in the order of a turn.
        targets: the ratios asked.
        expected: the result in float64; `None` when nothing is compared.
        tolerance: of the largest difference, relative to the largest expected value.
        prepared_ms: what was spent before and is not part of the timings, by name; what of it the compiler took
            stands behind it.
        least: what a call cannot do without; `None` where it is not known.
        missing: contenders that are not installed.
    """

    name: str
    work: str
    data: str
    contenders: list[Contender]
    targets: list[Target]
    expected: Callable[[], torch.Tensor] | None = None
    tolerance: float = 1e-5
    prepared_ms: dict[str, float] = field(default_factory=dict)
    least: Work | None = None
    missing: list[str] = field(default_factory=list)

    def prepare(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of `make`; its time is noted under `name`, and what of it the compiler took."""
        compiled = cache.compile_seconds()
        started = time.perf_counter_ns()
        made = make()
        self.prepared_ms[name] = (time.perf_counter_ns() - started) / 1e6
        if (seconds := cache.compile_seconds() - compiled) > 0:
            self.prepared_ms[f"compiler in {name}"] = seconds * 1e3
        return made


@dataclass(slots=True)
class Times:
    """The samples of one contender in microseconds, its first call and its error against float64.

    Calls that take long are timed one by one, with nothing before them.
    """

    name: str
    baseline: bool
    runs_us: list[float] = field(default_factory=list)
    first_us: float = 0.0
    error: float | None = None
    calls_a_sample: int = 1
    is_long: bool = False

    @property
    def median_us(self) -> float:
        """The median sample."""
        return statistics.median(self.runs_us)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the interval of the median."""
        low, high = interval(self.runs_us)
        return {
            "name": self.name,
            "baseline": self.baseline,
            "median_us": self.median_us,
            "low_us": low,
            "high_us": high,
            "least_us": min(self.runs_us),
            "first_us": self.first_us,
            "error": self.error,
            "calls_a_sample": self.calls_a_sample,
            "runs_us": self.runs_us,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """A ratio that was reached: of medians, with the interval of the ratios turn by turn."""

    label: str
    ours: str
    baseline: str
    asked: float | None
    reached: float
    low: float
    high: float

    @property
    def is_met(self) -> bool | None:
        """Whether it is what was asked; `None` when nothing was."""
        return None if self.asked is None else self.reached >= self.asked


@dataclass(slots=True)
class Measured:
    """A case with its times."""

    case: Case
    times: dict[str, Times]

    @property
    def outcomes(self) -> list[Outcome]:
        """Every target with what was reached, against the fastest of its baselines."""
        return [self._outcome(target) for target in self.case.targets]

    @property
    def limit(self) -> Limit | None:
        """The least time that the machine allows, by its figures as measured or, else, assumed."""
        return None if self.case.least is None else limit(self.case.least, calibrate.known(current()))

    def _outcome(self, target: Target) -> Outcome:
        ours = self.times[target.ours]
        best = min((self.times[name] for name in target.baselines), key=lambda times: times.median_us)
        pairs = zip(best.runs_us, ours.runs_us, strict=True)
        low, high = interval([theirs / mine for theirs, mine in pairs])
        reached = best.median_us / ours.median_us
        return Outcome(target.label, target.ours, best.name, target.asked, reached, low, high)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        fields = ("label", "ours", "baseline", "asked", "reached", "low", "high")
        return {
            "name": self.case.name,
            "kind": "ratios",
            "work": self.case.work,
            "data": self.case.data,
            "prepared_ms": self.case.prepared_ms,
            "limit": None if (least := self.limit) is None else {"us": least.us, "bound": least.bound},
            "missing": self.case.missing,
            "contenders": [times.to_dict() for times in self.times.values()],
            "targets": [
                {**{name: getattr(outcome, name) for name in fields}, "met": outcome.is_met}
                for outcome in self.outcomes
            ],
        }


class WrongResultError(AssertionError):
    """A contender's result is not the expected one: there is nothing to time."""


def measure(
    case: Case,
    *,
    seconds: float = 8.0,
    least: int = 5,
    most: int = 40,
    clock: Clock = time.perf_counter_ns,
) -> Measured:
    """The times of all contenders of a case: checked, then run in turns.

    Args:
        case: what to measure.
        seconds: after which no further turn starts, once `least` are done.
        least: turns at least.
        most: turns at most.
        clock: in nanoseconds; `time.thread_time_ns` for one thread on a machine that others use too.

    Raises:
        WrongResultError: a result is further from float64 than the case allows.
    """
    times = {c.name: Times(c.name, c.baseline) for c in case.contenders}
    expected = case.expected() if case.expected is not None else None
    for contender in case.contenders:
        _first_call(case, contender, times[contender.name], expected, clock)
    del expected
    started = time.perf_counter()
    for turn in range(most):
        if turn >= least and time.perf_counter() - started > seconds:
            break
        for contender in case.contenders:
            _sample(contender, times[contender.name], clock)
    return Measured(case, times)


def _first_call(
    case: Case, contender: Contender, times: Times, expected: torch.Tensor | None, clock: Clock
) -> None:
    """Notes the first call and the error, and how many calls make a sample."""
    started = clock()
    found = contender.call()
    times.first_us = (clock() - started) / 1e3
    if expected is not None and contender.is_checked:
        times.error = difference(found, expected)
        if not times.error <= case.tolerance:
            raise WrongResultError(
                f"{case.name}: {contender.name} differs from float64 by {times.error:.3g} of the largest value, "
                f"more than {case.tolerance:.3g}"
            )
    del found
    took = _timed(contender, clock)
    times.is_long = took > LONG_US
    if not times.is_long:
        took = min(took, *(_timed(contender, clock) for _ in range(2)))
    times.calls_a_sample = max(1, round(SAMPLE_US / max(took, 0.1)))


def _sample(contender: Contender, times: Times, clock: Clock) -> None:
    """One more sample, after a call that warms the caches unless calls take long."""
    if not times.is_long:
        contender.call()
    if contender.before is nothing and times.calls_a_sample > 1:
        started = clock()
        for _ in range(times.calls_a_sample):
            contender.call()
        times.runs_us.append((clock() - started) / 1e3 / times.calls_a_sample)
        return
    spent = [_timed(contender, clock) for _ in range(times.calls_a_sample)]
    times.runs_us.append(statistics.fmean(spent))


def _timed(contender: Contender, clock: Clock) -> float:
    """The microseconds of one call, the preparation aside; the result is freed inside, as a caller's would be."""
    contender.before()
    started = clock()
    contender.call()
    return (clock() - started) / 1e3


def difference(found: Any, expected: torch.Tensor) -> float:
    """The largest absolute difference, relative to the largest expected value; infinite for other shapes."""
    values = plain(found)
    if values.shape != expected.shape:
        return math.inf
    if not values.numel():
        return 0.0
    largest = float((values.double() - expected).abs().max())
    return largest / max(float(expected.abs().max()), 1e-30)


def plain(found: Any) -> torch.Tensor:
    """A result as a dense tensor of numbers: of a sparse one, its stored values by ascending coordinates.

    Those of several, one after the other, are a vector.
    """
    if isinstance(found, tuple):
        return torch.cat([plain(part).flatten() for part in found])
    if isinstance(found, SparseTensor):
        return found.values().detach()
    if hasattr(found, "to_scipy_sparse"):
        found = found.to_scipy_sparse().tocsr()
    if scipy.sparse.issparse(found):
        matrix: Any = found
        sorted_ = matrix.sorted_indices()
        return torch.from_numpy(sorted_.data)
    value = found if isinstance(found, torch.Tensor) else torch.as_tensor(found)
    if value.layout == torch.sparse_coo:
        return value.coalesce().values() if value.sparse_dim() == value.dim() else value.to_dense()
    if value.layout == torch.sparse_csr and value.dim() == 2:
        rows = torch.arange(value.shape[0]).repeat_interleave(value.crow_indices().diff())
        order = (rows * value.shape[1] + value.col_indices()).argsort()
        return value.values()[order].detach()
    return (value if value.layout == torch.strided else value.values()).detach()


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median of a sample, from its order statistics; the range when it is small.

    Source: Conover, Practical nonparametric statistics, 1999, section 3.2.

    >>> interval([3.0, 1.0, 2.0])
    (1.0, 3.0)
    """
    ranked = sorted(values)
    count = len(ranked)
    low = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ranked[low], ranked[count - 1 - low]
