"""Random programs through every representation and through compiled kernels.

A failure carries a note with its case; `draw(seed)` in `generate.py` makes the same case again.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from sparsify.compiler.einsum.nodes import Call, Reduce
from sparsify.compiler.node import walk
from sparsify.errors import (
    DiscordantError,
    DtypeError,
    EinsumError,
    FormatError,
    ScheduleError,
    UnsupportedProgramError,
)

from .compare import Prepared, compile_cases, prepare, run_compiled
from .generate import Case, draw, draw_adjoint, draw_typed
from .schedules import Drawn

# What the compiler may say before it generates code; anything else is a mistake.
REFUSALS = (UnsupportedProgramError, FormatError)
REFUSED_DTYPES = (*REFUSALS, DtypeError)
REFUSED_SCHEDULES = (*REFUSALS, ScheduleError, DiscordantError)
REFUSED_ADJOINTS = (*REFUSALS, EinsumError)

Draw = Callable[[int], Case]


def lowered(cases: Iterable[Case], refusals: tuple[type[Exception], ...], scheduled: bool) -> list[Prepared]:
    """The cases that are not refused, each compared by all interpreters."""
    done = []
    for case in cases:
        try:
            done.append(prepare(case, Drawn(case.seed)) if scheduled else prepare(case))
        except refusals:
            continue
        except Exception as error:
            error.add_note(str(case))
            raise
    return done


def run(done: list[Prepared], folder: Path, flags: tuple[str, ...] = ("-O1",)) -> None:
    """The kernels of all cases, compiled in one unit."""
    compile_cases(done, folder, flags)
    for found in done:
        try:
            run_compiled(found)
        except Exception as error:
            error.add_note(str(found.case))
            raise


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_interpreters_agree(first):
    assert len(lowered(map(draw, range(first, first + 20)), REFUSALS, scheduled=False)) > 8


def test_interpreters_agree_on_scheduled_programs():
    assert len(lowered(map(draw, range(100, 140)), REFUSED_SCHEDULES, scheduled=True)) > 5


def test_interpreters_agree_on_gradients():
    assert len(lowered(map(draw_adjoint, range(25)), REFUSED_ADJOINTS, scheduled=False)) > 8


def test_interpreters_agree_on_dtypes():
    assert len(lowered(typed(range(300, 340)), REFUSED_DTYPES, scheduled=False)) > 12


def typed(seeds: Iterable[int]) -> Iterable[Case]:
    """Programs over operands of different dtypes; what has no meaning for them is refused when it is declared."""
    for seed in seeds:
        with suppress(DtypeError):
            yield draw_typed(seed)


def test_kernels_agree(tmp_path):
    done = lowered(map(draw, range(150, 175)), REFUSALS, scheduled=False)
    done += lowered(map(draw, range(200, 220)), REFUSED_SCHEDULES, scheduled=True)
    done += lowered(typed(range(400, 425)), REFUSED_DTYPES, scheduled=False)
    assert len(done) > 20
    run(done, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_many_programs(first, tmp_path):
    seeds = range(first, first + 100)
    done = lowered(map(draw, seeds), REFUSALS, scheduled=False)
    done += lowered(map(draw, seeds), REFUSED_SCHEDULES, scheduled=True)
    done += lowered(typed(seeds), REFUSED_DTYPES, scheduled=False)
    adjoints = (case for seed in range(first, first + 40) if not has_rounded_ties(case := draw_adjoint(seed)))
    done += lowered(adjoints, REFUSED_ADJOINTS, scheduled=False)
    run(done, tmp_path)


def has_rounded_ties(case):
    """Whether the ties of a maximum are found by comparing it with values that are computed again.

    Another order of sums, or another polynomial, may differ from the operand in the last place.
    """
    return any(
        isinstance(node, Call)
        and node.function == "eq"
        and any(isinstance(n, Call | Reduce) for n in node.args)
        for node in walk(case.program)
    )
