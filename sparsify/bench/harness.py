"""Contenders measured in one process: in turns, checked first, medians with intervals.

In: a `Case` of contenders with required ratios. Out: a `Measured` case; `outcomes` has the reached ratios and the
baselines.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import scipy.sparse
import torch

from sparsify.bench.roofline import Limit, Work, limit
from sparsify.compiler import calibrate
from sparsify.compiler.cpp.toolchain import cache
from sparsify.options import current
from sparsify.runner.peers.installed import reason
from sparsify.storage.tensor import SparseTensor

# Target duration of a sample: a sample of short calls is the mean over many calls.
SAMPLE_US = 1000.0
# Long calls, without a warming call before each sample.
LONG_US = 1e6
Clock = Callable[[], int]


def nothing() -> None:
    """Empty preparation of a contender."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work of a case.

    Attributes:
        name: name in the table.
        call: function that does the work and returns the result.
        baseline: whether the contender is another project's, to compare with.
        before: untimed preparation before each call.
        is_checked: whether the result is compared with the expected one.
    """

    name: str
    call: Callable[[], Any]
    baseline: bool = True
    before: Callable[[], None] = nothing
    is_checked: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """A required ratio (`asked`) of `ours` against the fastest of `baselines`; `None` without a requirement."""

    ours: str
    baselines: tuple[str, ...]
    asked: float | None
    label: str = ""


@dataclass(slots=True)
class Case:
    """Contenders for one row of the table.

    Attributes:
        name: name of the row.
        work: sizes of the operands, for the reader.
        data: origin of the operands, real or generated.
        contenders: contenders in the order of a turn.
        targets: required ratios.
        expected: the result in float64; `None` without comparison.
        tolerance: bound of the largest difference, relative to the largest expected value.
        prepared_ms: untimed preparation by name, each followed by the compiler's share.
        least: the least work of a call; `None` if unknown.
        missing: contenders not installed, or not runnable on this machine.
        why: reasons for faster contenders, by name.
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
    why: dict[str, str] = field(default_factory=dict)

    def prepare(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of `make`; records the time under `name`, and the compiler's share."""
        compiled = cache.compile_seconds()
        started = time.perf_counter_ns()
        made = make()
        self.prepared_ms[name] = (time.perf_counter_ns() - started) / 1e6
        if (seconds := cache.compile_seconds() - compiled) > 0:
            self.prepared_ms[f"compiler in {name}"] = seconds * 1e3
        return made


@dataclass(slots=True)
class Times:
    """Samples of one contender in microseconds, the first call and the error against float64.

    Long calls are timed one by one, without a warming call.
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
    """A reached ratio of medians, with the interval of the ratios turn by turn."""

    label: str
    ours: str
    baseline: str
    asked: float | None
    reached: float
    low: float
    high: float

    @property
    def is_met(self) -> bool | None:
        """Whether the required ratio is reached; `None` without a requirement."""
        return None if self.asked is None else self.reached >= self.asked


@dataclass(slots=True)
class Measured:
    """A case with its times."""

    case: Case
    times: dict[str, Times]

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcome of every target, against the fastest of the target's baselines."""
        return [self._outcome(target) for target in self.case.targets]

    @property
    def limit(self) -> Limit | None:
        """The least time on the machine, by measured (else assumed) machine figures; None if the work is unknown."""
        return (
            None if self.case.least is None else limit(self.case.least, calibrate.cached_machine(current()))
        )

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
            "reasons": {name: why for name in self.case.missing if (why := reason(name))},
            "why": self.case.why,
            "contenders": [times.to_dict() for times in self.times.values()],
            "targets": [
                {**{name: getattr(outcome, name) for name in fields}, "met": outcome.is_met}
                for outcome in self.outcomes
            ],
        }


class WrongResultError(AssertionError):
    """A contender's result differs from the expected one; nothing is timed."""


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
        case: case to measure.
        seconds: time budget; no further turn starts once it is spent and `least` turns are done.
        least: minimum number of turns.
        most: maximum number of turns.
        clock: clock in nanoseconds; `time.thread_time_ns` for one thread on a shared machine.

    Raises:
        WrongResultError: the difference of a result from float64 exceeds the case's tolerance.
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
    """Takes one more sample, after a cache-warming call unless calls are long."""
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
    """Microseconds of one call without preparation, including the release of the result."""
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
    """A result as a dense tensor; for a sparse result, the stored values by ascending coordinates.

    Several results are concatenated into a vector.
    """
    if isinstance(found, tuple):
        return torch.cat([plain(part).flatten() for part in found])
    if isinstance(found, SparseTensor):
        return found.values().detach()
    if type(found).__module__.startswith("graphblas."):
        found = import_module("graphblas").io.to_scipy_sparse(found)
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
    """The 95 % interval of a sample's median, from order statistics; the range for small samples.

    Source: Conover, Practical nonparametric statistics, 1999, section 3.2.

    >>> interval([3.0, 1.0, 2.0])
    (1.0, 3.0)
    """
    ranked = sorted(values)
    count = len(ranked)
    low = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ranked[low], ranked[count - 1 - low]
