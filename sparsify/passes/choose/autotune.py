"""Autotuning: candidates for the same work timed in turns, the winner kept on disk.

In: a question, `"fastest call of ..."`, sizes, and candidates, the incumbent first. Out: a `Winner`: the time of each,
and which takes the place of the incumbent. Another process with the same question finds the times without timing.

Candidates run in turns until turns agree on the least time of each that may win, or the seconds are over. Within
`shared_seconds` all share their seconds: once these are over each comparison has one turn. Times on which turns did
not agree are known to this process alone.
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
from sparsify.compiler.kernel.decision_cache import recall
from sparsify.compiler.kernel.least_time import Least
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.options import Options
from sparsify.progress import stage

Call = Callable[[], Any]
# Turns in which all contenders run, those that are not far behind, and only those that may still win, to a last turn.
FIRST_TURNS: Final = 4
ALL_TURNS: Final = 8
MOST_TURNS: Final = 2000
FAR: Final = 3.0
HOPELESS: Final = 1.5
# Calls that take longer are not called twice: their data does not stay in the caches.
LONG_NS: Final = 5_000_000
# Where the fastest takes longer than this, those far behind stop after a turn, and turns end as soon as they agree.
SLOW_US: Final = 50_000.0
# How many turns must agree on a least time, and by what share they may differ.
AGREEING: Final = 3
APART: Final = 0.04
DISTURBED: Final = " (other work disturbed it)"


@dataclass(frozen=True, slots=True)
class Threshold:
    """When candidates of a kind are timed, and when one of them replaces the incumbent.

    Attributes:
        gain: by what share of the incumbent's time the winner must be faster.
        disturbed_gain: the same where turns disagree; 1 for a winner only where they agree.
        least_us: expected time of the incumbent below which nothing is timed.
        slower: how many times as long as the best a candidate may be expected to take.
        most: candidates that are timed beside the incumbent.
    """

    gain: float = 0.03
    disturbed_gain: float = 0.03
    least_us: float = 0.0
    slower: float = inf
    most: int = sys.maxsize


THRESHOLDS: Final = {
    "weight format": Threshold(slower=1.5, most=3),
    # Kernels to compare take their time to compile.
    "schedule": Threshold(disturbed_gain=1.0, least_us=100.0, most=4),
    # The kernel runs for other sizes too: where other work disturbed the turns, three times as fast.
    "alternative": Threshold(disturbed_gain=2 / 3, least_us=100.0, slower=1.5, most=3),
    "operator": Threshold(),
    "convolution": Threshold(),
    "recurrent layer": Threshold(),
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute something.

    Attributes:
        name: in words.
        call: computes it.
        share: of the work that the call does; times are those of the whole.
    """

    name: str
    call: Call
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Winner:
    """Times of candidates.

    Attributes:
        kind: of the candidates, a key of `THRESHOLDS`.
        times: names and microseconds, the incumbent first.
        is_agreed: whether turns agreed on the times of all that may win.

    >>> Winner("schedule", (("expected", 10.0), ("tiled", 5.0))).name
    'tiled'
    """

    kind: str
    times: tuple[tuple[str, float], ...]
    is_agreed: bool = True

    @property
    def name(self) -> str:
        """The fastest candidate that gains enough on the incumbent; "" where the incumbent stays."""
        threshold = THRESHOLDS[self.kind]
        gain = threshold.gain if self.is_agreed else threshold.disturbed_gain
        name, us = min(self.times[1:], key=lambda one: one[1], default=("", inf))
        return name if us <= (1 - gain) * self.us else ""

    @property
    def us(self) -> float:
        """Microseconds of the incumbent."""
        return self.times[0][1]

    def us_of(self, name: str) -> float:
        """Microseconds of a candidate; endless for one that could not run."""
        return dict(self.times).get(name, inf)

    @property
    def disturbed(self) -> str:
        """The words for turns that did not agree."""
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
        question: all that the times depend on besides sizes, machine and compiler.
        candidates: makes them, the incumbent first; called only where times are not known.
        sizes: of the operands.
        options: the directory of kernels and the number of threads.
        seconds: after which no further turn starts.
        has_gradients: whether the calls compute gradients.
    """
    return recall(
        f"{question} {calibrate.key_of(options)}",
        sizes,
        lambda: compare(kind, candidates(), seconds, has_gradients),
        options,
        lambda winner: winner.is_agreed,
        classes={"Winner": Winner},
    )


def compare(
    kind: str, candidates: Sequence[Candidate], seconds: float, has_gradients: bool = False
) -> Winner:
    """The times of candidates, measured now."""
    with torch.set_grad_enabled(has_gradients):
        found = race([one.call for one in candidates], seconds)
    times = tuple((one.name, least.us / one.share) for one, least in zip(candidates, found, strict=True))
    return Winner(kind, times, is_agreed(found))


class Shared:
    """Seconds that comparisons share.

    Attributes:
        seconds: of all of them.
        spent: by those that are over.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent = seconds, 0.0

    @property
    def left(self) -> float:
        """The candidates that are left."""
        return max(0.0, self.seconds - self.spent)

    def show(self) -> None:
        """Shows how far races are, if they take long; nothing runs beside them."""
        stage(f"timing what is fastest, {self.spent:.0f} s of at most {self.seconds:.0f}")


_shared: ContextVar[Shared | None] = ContextVar("shared", default=None)


@contextmanager
def shared_seconds(seconds: float) -> Iterator[None]:
    """Within this context comparisons take so many seconds in sum, beside the first turn of each."""
    shared = Shared(seconds)
    token = _shared.set(shared)
    try:
        yield
    finally:
        _shared.reset(token)


def race(calls: Sequence[Call], seconds: float) -> list[Least]:
    """The least microseconds of each call, run in turns; those that cannot win stop early.

    Args:
        calls: the contenders.
        seconds: after which no further turn starts; sooner where those that races share are over.
    """
    shared = _shared.get() or Shared(seconds)
    shared.show()
    found = [Least(AGREEING, APART) for _ in calls]
    for call in calls:
        call()  # a first call packs weights and finds its way
    begun = time.perf_counter()
    end = begun + min(seconds, shared.left)
    for turn in range(MOST_TURNS):
        is_slow = turn and min(one.us for one in found) > SLOW_US
        first_turns, all_turns = (1, AGREEING) if is_slow else (FIRST_TURNS, ALL_TURNS)
        behind = HOPELESS if turn >= all_turns else FAR
        hopeful = contenders(found, behind) if turn >= first_turns else range(len(calls))
        is_settled = turn >= all_turns and all(found[number].is_agreed for number in hopeful)
        if turn and (is_settled or time.perf_counter() > end):
            break
        for number in hopeful:
            found[number].add(once_us(calls[number]))
    shared.spent += time.perf_counter() - begun
    return found


def contenders(found: Sequence[Least], behind: float = HOPELESS) -> Sequence[int]:
    """The candidates whose least time is below so many times the least of all."""
    least = min(one.us for one in found)
    return [number for number, one in enumerate(found) if one.us <= behind * least]


def is_agreed(found: Sequence[Least]) -> bool:
    """Whether turns agree on the times of all that may win."""
    return all(found[number].is_agreed for number in contenders(found))


def once_us(call: Call) -> float:
    """The microseconds of a call whose own data, and not its neighbour's, is in the caches."""
    begun = time.perf_counter_ns()
    call()
    first = time.perf_counter_ns() - begun
    if first > LONG_NS:
        return first / 1e3
    begun = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begun) / 1e3
