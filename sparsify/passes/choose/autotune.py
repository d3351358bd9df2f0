"""Autotuning: interleaved timing of candidates for the same work, with the winner kept on disk.

In: a question, `"fastest call of ..."`, sizes, and candidates, the incumbent first. Out: a `Winner`: the time of each
candidate, and the replacement of the incumbent if any. Another process with the same question reads the times without
timing.

Candidates run in turns until turns agree on the least time of each possible winner, until one is far faster than all
others, or until the budget is spent. Candidates far behind run no further turns. Within
`shared_seconds` all comparisons share one budget: once spent, each comparison has one turn. Times without agreement are
kept for this process alone.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import torch

from sparsify.compiler import calibrate
from sparsify.compiler.kernel import decision_cache
from sparsify.compiler.kernel.decision_cache import recall
from sparsify.compiler.kernel.least_time import Least
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.options import Options
from sparsify.progress import stage

Call = Callable[[], Any]
# Least microseconds of the fastest call, turns with all candidates, and turns with the nearly fastest ones; the longer
# calls are, the fewer turns they need.
TURNS: Final = ((50_000.0, 1, 3), (5_000.0, 2, 4), (0.0, 4, 8))
# Limit of turns with possible winners alone.
MOST_TURNS: Final = 2000
FAR: Final = 3.0
HOPELESS: Final = 1.5
# Longer calls are not repeated for warm caches: their data does not stay in the caches.
LONG_NS: Final = 5_000_000
# Number of turns that must agree on a least time, and their maximum relative difference.
AGREEING: Final = 3
APART: Final = 0.04
DISTURBED: Final = " (other work disturbed it)"


@dataclass(frozen=True, slots=True)
class Threshold:
    """When to time candidates of a kind, and when to replace the incumbent.

    Attributes:
        gain: share of the incumbent's time by which the winner must be faster.
        disturbed_gain: `gain` for disagreeing turns; 1 requires agreement for a winner.
        least_us: expected time of the incumbent below which nothing is timed.
        slower: maximum ratio of a candidate's expected time to the best.
        most: maximum number of candidates timed in addition to the incumbent.
    """

    gain: float = 0.03
    disturbed_gain: float = 0.03
    least_us: float = 0.0
    slower: float = inf
    most: int = sys.maxsize


THRESHOLDS: Final = {
    "weight format": Threshold(slower=1.5, most=3),
    # Each kernel compared has a compile time.
    "schedule": Threshold(disturbed_gain=1.0, least_us=100.0, most=4),
    # The kernel runs for other sizes too: after disturbed turns, an alternative must be three times as fast.
    "alternative": Threshold(disturbed_gain=2 / 3, least_us=100.0, slower=1.5, most=3),
    "operator": Threshold(),
    "rows": Threshold(),
    "convolution": Threshold(),
    "recurrent layer": Threshold(),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation of a computation.

    Attributes:
        name: name for reports.
        call: function that runs the computation.
        share: share of the whole work done by a call; times are scaled to the whole.
    """

    name: str
    call: Call
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Winner:
    """Times of candidates.

    Attributes:
        kind: kind of the candidates, a key of `THRESHOLDS`.
        times: names and microseconds, the incumbent first.
        is_agreed: whether turns agreed on the times of all possible winners.

    >>> Winner("schedule", (("expected", 10.0), ("tiled", 5.0))).name
    'tiled'
    """

    kind: str
    times: tuple[tuple[str, float], ...]
    is_agreed: bool = True

    @property
    def name(self) -> str:
        """The fastest candidate with a sufficient gain over the incumbent; "" to keep the incumbent."""
        threshold = THRESHOLDS[self.kind]
        gain = threshold.gain if self.is_agreed else threshold.disturbed_gain
        name, us = min(self.times[1:], key=lambda one: one[1], default=("", inf))
        return name if us <= (1 - gain) * self.us else ""

    @property
    def us(self) -> float:
        """Microseconds of the incumbent."""
        return self.times[0][1]

    def us_of(self, name: str) -> float:
        """Microseconds of a candidate; infinite for a failed one."""
        return dict(self.times).get(name, inf)

    @property
    def disturbed(self) -> str:
        """The note for turns that did not agree."""
        return "" if self.is_agreed else DISTURBED


def autotune(
    kind: str,
    question: str,
    candidates: Callable[[], Sequence[Candidate]],
    *,
    sizes: Sizes,
    options: Options,
    seconds: float,
    has_gradients: bool = False,
) -> Winner:
    """The times of candidates, from disk where an earlier process timed them.

    Args:
        kind: a key of `THRESHOLDS`.
        question: key of the times, in addition to sizes, machine and compiler.
        candidates: factory of the candidates, the incumbent first; called only for unknown times.
        sizes: sizes of the operands.
        options: directory of kernels and number of threads.
        seconds: budget after which no further turn starts.
        has_gradients: whether the calls compute gradients.
    """
    return recall(
        on_machine(question, options),
        sizes,
        lambda: compare(kind, candidates(), seconds, has_gradients),
        options,
        lambda winner: winner.is_agreed,
        classes={"Winner": Winner},
    )


def is_known(question: str, sizes: Sizes, options: Options) -> bool:
    """Whether `autotune` has times for a question and sizes without timing."""
    return decision_cache.is_known(on_machine(question, options), sizes, options)


def on_machine(question: str, options: Options) -> str:
    """A question about this machine."""
    return f"{question} {calibrate.key_of(options)}"


def compare(
    kind: str, candidates: Sequence[Candidate], seconds: float, has_gradients: bool = False
) -> Winner:
    """The times of candidates, measured now."""
    with torch.set_grad_enabled(has_gradients):
        least_times = race([one.call for one in candidates], seconds)
    times = tuple(
        (one.name, least.us / one.share) for one, least in zip(candidates, least_times, strict=True)
    )
    return Winner(kind, times, is_agreed(least_times))


class Shared:
    """A time budget shared by comparisons.

    Attributes:
        seconds: whole budget.
        spent: time of finished comparisons.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent = seconds, 0.0

    @property
    def left(self) -> float:
        """The remaining seconds."""
        return max(0.0, self.seconds - self.spent)

    def show(self) -> None:
        """Shows the progress of benchmarks that take long; nothing runs concurrently."""
        stage(f"timing what is fastest, {self.spent:.0f} s of at most {self.seconds:.0f}")


_shared: ContextVar[Shared | None] = ContextVar("shared", default=None)


@contextmanager
def shared_seconds(seconds: float) -> Iterator[None]:
    """A context in which comparisons share a budget of seconds, in addition to the first turn of each."""
    shared = Shared(seconds)
    token = _shared.set(shared)
    try:
        yield
    finally:
        _shared.reset(token)


def race(calls: Sequence[Call], seconds: float, *, is_warm: bool = False) -> list[Least]:
    """The least microseconds of each call, run in turns; calls without a chance to win stop early.

    Args:
        calls: the contenders.
        seconds: budget after which no further turn starts, limited by the shared budget.
        is_warm: whether all calls have run before.
    """
    shared = _shared.get() or Shared(seconds)
    shared.show()
    times = [Least(AGREEING, APART) for _ in calls]
    for call in () if is_warm else calls:
        call()  # a first call packs weights and fills caches
    begun = time.perf_counter()
    end = begun + min(seconds, shared.left)
    for turn in range(MOST_TURNS):
        first_turns, all_turns = turns_for(times)
        behind = HOPELESS if turn >= all_turns else FAR
        hopeful = contenders(times, behind) if turn >= first_turns else range(len(calls))
        is_settled = turn >= (first_turns if is_clear(times) else all_turns) and is_agreed(times)
        if turn and (is_settled or time.perf_counter() > end):
            break
        for number in hopeful:
            times[number].add(once_us(calls[number]))
    shared.spent += time.perf_counter() - begun
    return times


def turns_for(times: Sequence[Least]) -> tuple[int, int]:
    """Turns with all candidates and turns with the nearly fastest ones, by the least time so far."""
    least = min(one.us for one in times)
    return next((first, near) for us, first, near in TURNS if least >= us)


def is_clear(times: Sequence[Least]) -> bool:
    """Whether one candidate is far faster than all others, after the turns with all candidates."""
    runs = min(turns_for(times)[0], AGREEING)
    has_runs = all(len(one.times) >= runs for one in times)
    return has_runs and len(contenders(times, FAR)) == 1 < len(times)


def contenders(times: Sequence[Least], behind: float = HOPELESS) -> Sequence[int]:
    """The candidates with a least time below `behind` times the least of all."""
    least = min(one.us for one in times)
    return [number for number, one in enumerate(times) if one.us <= behind * least]


def is_agreed(times: Sequence[Least]) -> bool:
    """Whether turns agree on the times of all possible winners, or one candidate is far faster than all others."""
    return is_clear(times) or all(times[number].is_agreed for number in contenders(times))


def once_us(call: Call) -> float:
    """The microseconds of a call with its own data in the caches, not its neighbour's."""
    begun = time.perf_counter_ns()
    call()
    first = time.perf_counter_ns() - begun
    if first > LONG_NS:
        return first / 1e3
    begun = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begun) / 1e3
