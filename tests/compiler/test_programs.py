"""Random programs through every representation and through compiled kernels."""

from pathlib import Path

import pytest

from sparsify.errors import FormatError, UnsupportedProgramError

from .compare import Prepared, compile_cases, prepare, run_compiled
from .generate import Case, draw

REFUSALS = (UnsupportedProgramError, FormatError)


def prepared(case: Case, **how: object) -> Prepared | None:
    """The case lowered and compared, `None` when the compiler says that it cannot."""
    try:
        return prepare(case, **how)
    except REFUSALS:
        return None
    except Exception as error:
        error.add_note(str(case))
        raise


def compile_and_run(cases: list[Case], folder: Path, enough: float) -> None:
    """All cases in one unit; at least a share of `enough` is not refused."""
    done = [found for case in cases if (found := prepared(case)) is not None]
    assert len(done) >= enough * len(cases)
    compile_cases(done, folder)
    for found in done:
        try:
            run_compiled(found)
        except Exception as error:
            error.add_note(str(found.case))
            raise


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_interpreters_agree(first):
    for seed in range(first, first + 25):
        prepared(draw(seed))


@pytest.mark.parametrize("first", [150, 175])
def test_kernels_agree(first, tmp_path):
    compile_and_run([draw(seed) for seed in range(first, first + 25)], tmp_path, 0.6)
