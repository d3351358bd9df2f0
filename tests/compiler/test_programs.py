"""Random programs through every representation and through compiled kernels; `many.py` runs more of them.

A failure carries a note with its case; the `draw` of its kind makes the same case again from the seed.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from .compare import Prepared, compile_cases, run_again, run_compiled
from .data import refilled
from .kinds import KINDS


def lowered(kind: str, seeds: Iterable[int], *, interpreted: bool = True) -> list[Prepared]:
    """The cases that are not refused, each compared by all interpreters or by that of programs alone."""
    found = [KINDS[kind].prepare(seed, interpreted=interpreted) for seed in seeds]
    return [case for case in found if case is not None]


def run(done: list[Prepared], folder: Path) -> None:
    """The kernels of all cases, compiled in one unit, with their operands and with others."""
    compile_cases(done, folder, ("-O0",))
    for found in done:
        other = refilled(found.case, found.case.seed)
        try:
            run_compiled(found)
            run_again(found, other)
        except Exception as error:
            error.add_note(f"{found.case}\n{other}")
            raise


@pytest.mark.parametrize(
    ("kind", "seeds", "least"),
    [
        ("plain", range(20), 15),
        ("plain", range(20, 40), 15),
        ("scheduled", range(100, 120), 10),
        ("adjoint", range(15), 6),
        ("typed", range(300, 320), 12),
        ("windowed", range(20), 12),
        ("ranked", range(4), 3),
        ("reduced", range(10), 8),
        ("special", range(10), 8),
        ("assembled", range(10), 8),
    ],
    ids=str,
)
def test_interpreters_agree(kind, seeds, least):
    assert len(lowered(kind, seeds)) >= least


def test_kernels_agree(tmp_path):
    kinds = ("plain", "offered", "typed", "reduced", "special", "assembled")
    done = [case for kind in kinds for case in lowered(kind, range(150, 156), interpreted=False)]
    assert len(done) > 25
    run(done, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1020, 10))
def test_many_programs(first, tmp_path):
    """`python -m tests.compiler.many` runs more of them."""
    run(
        [case for kind in KINDS for case in lowered(kind, range(first, first + 10), interpreted=False)],
        tmp_path,
    )
