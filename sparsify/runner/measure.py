"""Time and memory of contenders in one process.

In: calls. Out: medians of interleaved runs, and the memory that one call takes on top. Of calls that take long
fewer runs make a median, and the memory is that of one call.
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
# Calls that take longer than this are not repeated for more than their median.
LONG_MS: Final = 1000.0
# Turns that make a median at least, and the multiple of the seconds given after which they are enough.
FEWEST: Final = 3
PATIENCE: Final = 5
# Turns disagree where the middle half of their ratios is spread by more than this factor.
SPREAD: Final = 1.25


@dataclass(slots=True)
class Timing:
    """The times of one contender, in milliseconds: its first call, and its runs in order."""

    first_ms: float = 0.0
    runs_ms: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """The median run."""
        return statistics.median(self.runs_ms)


def once(call: Call) -> tuple[Any, float]:
    """The result of a call, and the milliseconds that it took."""
    started = time.perf_counter_ns()
    found = call()
    return found, (time.perf_counter_ns() - started) / 1e6


def agreement(first: Timing, second: Timing) -> str:
    """The factor by which the second is faster, the number of turns, and whether the turns disagree.

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
    most: int = 50,
    is_warm: bool = False,
    told: Callable[[list[Timing]], None] = lambda _: None,
) -> list[Timing]:
    """The timings of calls, run in turns after one warm call each.

    Args:
        calls: the contenders.
        seconds: after which no further turn starts, once `least` turns are done; after five times as long three are
            enough.
        least: turns wanted.
        most: turns at most.
        is_warm: whether all were called before.
        told: is called with the timings so far after each turn.
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
    """Rise of the process's memory by one call; None where the system cannot tell.

    The least of a few calls, of one that takes long: memory that the allocator holds back differs from call to call.
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
    """A size in the kernel's account of this process, in bytes."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    return int(lines[name].split()[0]) * 1024
