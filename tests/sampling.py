"""Tables of cases of which every run takes some, and `-m exhaustive` the others.

In: `sampled(cases, 3)`. Out: parameters of `pytest.mark.parametrize`; two of three carry the marker `exhaustive`.
"""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Every `every`-th case in all runs, beginning with the first one."""
    return [chosen(case, not number % every) for number, case in enumerate(cases)]


def chosen(case: Any, always: bool) -> Any:
    """A case, a tuple of several parameters or a single one, of all runs or of exhaustive ones."""
    parameters = case if isinstance(case, tuple) else (case,)
    return pytest.param(*parameters, marks=() if always else pytest.mark.exhaustive)
