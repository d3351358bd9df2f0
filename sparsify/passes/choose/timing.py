"""Calls timed in turns, until turns agree on the least time of each that may win.

In: calls without arguments, seconds. Out: a `Least` for each. Within `together(seconds)` all races share their seconds:
once these are over a race has one turn.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from sparsify.compiler.least import Least
from sparsify.options import current

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
# By what share of another's time something must be faster to take its place.
GAIN: Final = 0.03
# Races that took longer than this together show a line.
QUIET_SECONDS: Final = 2.0


class Shared:
    """Seconds that races share.

    Attributes:
        seconds: of all of them.
        spent: by those that are over.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent = seconds, 0.0
        self.is_shown = False

    @property
    def left(self) -> float:
        """Those that are left."""
        return max(0.0, self.seconds - self.spent)

    def show(self) -> None:
        """Shows on a terminal how far races are, if they take long; nothing runs beside them."""
        if self.spent > QUIET_SECONDS and sys.stderr.isatty() and not current().quiet:
            self.is_shown = True
            print(
                f"\rtiming what is fastest, {self.spent:.0f} s of at most {self.seconds:.0f}",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def clear(self) -> None:
        """Takes away what was shown."""
        if self.is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


_shared: ContextVar[Shared | None] = ContextVar("shared", default=None)


@contextmanager
def together(seconds: float) -> Iterator[None]:
    """Within this context races take so many seconds together, beside the first turn of each."""
    shared = Shared(seconds)
    token = _shared.set(shared)
    try:
        yield
    finally:
        _shared.reset(token)
        shared.clear()


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
    """Those whose least time is less than so many times the least of all."""
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
