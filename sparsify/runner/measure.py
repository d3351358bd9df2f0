"""Time and memory of contenders in one process.

In: calls. Out: medians of interleaved runs, and the additional memory of one call. Slow calls are run fewer times, and
measured for memory only once.
"""

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Call = Callable[[], Any]
STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
# Slow calls, in milliseconds: measured for memory once, and reported with progress.
LONG_MS: Final = 1000.0
# Minimum and maximum turns of a median, and the multiple of the time budget after which the minimum is enough.
FEWEST: Final = 3
MOST: Final = 50
PATIENCE: Final = 2
# Turns disagree if the middle half of the ratios is spread by more than a factor of SPREAD.
SPREAD: Final = 1.25


@dataclass(slots=True)
class Timing:
    """The times of one contender, in milliseconds: the first call, and all runs in order."""

    first_ms: float = 0.0
    runs_ms: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """The median run."""
        return statistics.median(self.runs_ms)


def once(call: Call) -> tuple[Any, float]:
    """The result of a call, and the elapsed time in milliseconds."""
    started = time.perf_counter_ns()
    found = call()
    return found, (time.perf_counter_ns() - started) / 1e6


def agreement(first: Timing, second: Timing) -> str:
    """Speedup of the second contender, the number of turns, and the range of ratios if the turns disagree.

    >>> agreement(Timing(0.0, [8.0] * 4), Timing(0.0, [2.0, 2.0, 4.0, 4.0]))
    '2.67x, 4 turns that disagree: 2.00x to 4.00x'
    """
    ratios = sorted(one / other for one, other in zip(first.runs_ms, second.runs_ms, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    text = f"{first.median_ms / second.median_ms:.2f}x, {len(ratios)} turns"
    return f"{text} that disagree: {low:.2f}x to {high:.2f}x" if high > SPREAD * low else text


def interleave(
    *calls: Call,
    seconds: float = 4.0,
    least: int = 5,
    most: int = MOST,
    is_warm: bool = False,
    told: Callable[[list[Timing]], None] = lambda _: None,
) -> list[Timing]:
    """The timings of calls, run in turns after one warm call each.

    Args:
        calls: the contenders.
        seconds: time budget: no further turn starts once it is spent and `least` turns are done; after twice the
            budget three turns are enough.
        least: turns wanted.
        most: maximum number of turns.
        is_warm: whether all calls were warmed up before.
        told: callback after each turn, with the timings so far.
    """
    timings = [Timing() for _ in calls]
    if not is_warm:
        for call in calls:
            call()
    started = time.perf_counter()
    for turn in range(most):
        spent = time.perf_counter() - started
        if (turn >= least and spent > seconds) or (turn >= FEWEST and spent > PATIENCE * seconds):
            break
        for timing, call in zip(timings, calls, strict=True):
            timing.runs_ms.append(once(call)[1])
        told(timings)
    return timings


def peak_bytes(call: Call, repeats: int = 3) -> int | None:
    """Rise of the process's memory by one call; None if the system does not report it.

    The minimum over `repeats` calls, because memory retained by the allocator varies from call to call; a slow call
    runs once.
    """
    found: list[int] = []
    for _ in range(repeats):
        peak, took_ms = once(lambda: peak_once(call))
        if peak is None:
            return None
        found.append(peak)
        if took_ms > LONG_MS:
            break
    return min(found)


def peak_once(call: Call) -> int | None:
    """As `peak_bytes`, for one call."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR.write_text("5")  # Linux: the highest resident size starts anew
        before = resident("VmRSS")
        call()
        return max(0, resident("VmHWM") - before)
    except (OSError, AttributeError, KeyError, TypeError):
        return None


def resident(name: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024


def milliseconds(value: float) -> str:
    """A time with three digits or so."""
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"
