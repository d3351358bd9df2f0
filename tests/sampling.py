"""Tests of which every run takes some cases, and `-m exhaustive` the others.

In: `sampled(cases, 3)`. Out: parameters of `pytest.mark.parametrize`; two of three carry the marker `exhaustive`.

In: `@pytest.mark.sampled(3)` on a test, or as `pytestmark` of a module. Out: each day a third of the cases of each test
is without the marker `exhaustive`, and each case once in three days. `SPARSIFY_TEST_DAY=20000` takes the cases of
another day.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any
from zlib import crc32

import pytest

DAY_VARIABLE = "SPARSIFY_TEST_DAY"
SECONDS_OF_A_DAY = 86400


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Every `every`-th case in all runs, beginning with the first one."""
    return [chosen(case, not number % every) for number, case in enumerate(cases)]


def chosen(case: Any, always: bool) -> Any:
    """A case, a tuple of several parameters or a single one, of all runs or of exhaustive ones."""
    parameters = case if isinstance(case, tuple) else (case,)
    return pytest.param(*parameters, marks=() if always else pytest.mark.exhaustive)


def fix_day() -> None:
    """Writes today's number into the environment, so that workers of a run that passes midnight agree."""
    os.environ.setdefault(DAY_VARIABLE, str(int(time.time() // SECONDS_OF_A_DAY)))


def mark_other_days(items: Iterable[pytest.Item], day: int) -> None:
    """Adds the marker `exhaustive` to the cases of tests marked `sampled` that another day takes.

    The first day of a test depends on its name, so that all days have about as many cases.
    """
    numbers: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None or item.get_closest_marker("exhaustive"):
            continue
        (every,) = marker.args
        test = item.nodeid.partition("[")[0]
        if (numbers[test] + crc32(test.encode()) + day) % every:
            item.add_marker(pytest.mark.exhaustive)
        numbers[test] += 1
