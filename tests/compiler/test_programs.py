"""Random programs through every representation and through compiled kernels; `many.py` runs more of them.

A failure carries a note with its case; the `draw` of its kind makes the same case again from the seed.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from .compare import Prepared, compile_cases, run_compiled
from .kinds import KINDS


def lowered(kind: str, seeds: Iterable[int]) -> list[Prepared]:
    """The cases that are not refused, each compared by all interpreters."""
    found = map(KINDS[kind].prepare, seeds)
    return [case for case in found if case is not None]


def run(done: list[Prepared], folder: Path, flag: str = "-O1") -> None:
    """The kernels of all cases, compiled in one unit."""
    compile_cases(done, folder, (flag,))
    for found in done:
        try:
            run_compiled(found)
        except Exception as error:
            error.add_note(str(found.case))
            raise


@pytest.mark.parametrize(
    ("kind", "seeds", "least"),
    [
        *(("plain", range(first, first + 20), 9) for first in range(0, 80, 20)),
        ("scheduled", range(100, 140), 5),
        ("adjoint", range(25), 8),
        ("typed", range(300, 340), 12),
        ("windowed", range(30), 9),
    ],
    ids=str,
)
def test_interpreters_agree(kind, seeds, least):
    assert len(lowered(kind, seeds)) >= least


def test_kernels_agree(tmp_path):
    done = [*lowered("plain", range(150, 175)), *lowered("scheduled", range(200, 220))]
    done += lowered("typed", range(400, 425))
    assert len(done) > 20
    run(done, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1060, 30))
def test_many_programs(first, tmp_path):
    """`python -m tests.compiler.many` runs more of them."""
    run([case for kind in KINDS for case in lowered(kind, range(first, first + 30))], tmp_path, "-O0")
