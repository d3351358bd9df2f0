"""Random programs through every representation and through compiled kernels; `many.py` runs more of them.

A failure carries a note with its case; the `draw` of its kind makes the same case again from the seed.
"""

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.einsum.rename import all_indices
from sparsify.compiler.ir.node import find
from tests.compiler.random_programs.compare import Prepared, compile_cases, run_again, run_compiled
from tests.compiler.random_programs.coverage import covered
from tests.compiler.random_programs.data import refilled
from tests.compiler.random_programs.generate import WIDTHS
from tests.compiler.random_programs.kinds import KINDS
from tests.compiler.random_programs.writer import DRAWN, Writer
from tests.sampling import sampled


def lowered(kind: str, seeds: Iterable[int], *, interpreted: bool = True) -> list[Prepared]:
    """Cases that are not refused, each compared by all interpreters, or by the interpreter of programs alone."""
    found = [KINDS[kind].prepare(seed, interpreted=interpreted) for seed in seeds]
    return [case for case in found if case is not None]


def run(
    done: list[Prepared], folder: Path, compiler: str | None = None, flags: tuple[str, ...] = ("-O0",)
) -> None:
    """Runs the kernels of all cases, compiled in one unit, with their own and with other operands."""
    compile_cases(done, folder, flags, compiler)
    for found in done:
        other = refilled(found.case, found.case.seed)
        try:
            run_compiled(found)
            run_again(found, other)
        except Exception as error:
            error.add_note(f"{found.case}\n{other}")
            raise


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("kind", "seeds", "least"),
    [
        ("plain", range(20), 15),
        ("scheduled", range(100, 113), 5),
        ("blocked", range(60), 45),
        ("adjoint", range(8), 3),
        ("typed", range(300, 310), 6),
        ("windowed", range(10), 6),
        ("ranked", range(2), 1),
        ("reduced", range(5), 4),
        ("special", range(5), 4),
        ("drawn", range(6), 4),
        ("assembled", range(5), 4),
        ("packed scheduled", range(2), 1),
        ("rows", range(6), 6),
    ],
    ids=str,
)
def test_interpreters_agree(kind, seeds, least):
    assert len(lowered(kind, seeds)) >= least


@pytest.mark.sampled(4)
def test_optimised_kernels_agree(tmp_path):
    """Kernels with the compiler flags of users."""
    kinds = ("plain", "offered", "typed", "reduced", "special", "assembled")
    done = [case for kind in kinds for case in lowered(kind, range(150, 156), interpreted=False)]
    assert len(done) > 25
    run(done, tmp_path, flags=())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_packed_kernels_agree(tmp_path, compiler):
    """All widths of vectors, on one thread and on two."""
    if which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    kinds = ("packed", "packed offered", "packed scheduled")
    done = [case for kind in kinds for case in lowered(kind, range(8), interpreted=False)]
    widths = {(found.case.vector_bytes, found.case.threads) for found in done}
    assert widths == set(product(WIDTHS, (1, 2)))
    run(done, tmp_path, compiler)


@pytest.mark.sampled(3)
def test_rows_that_threads_share_agree(tmp_path):
    """All widths of vectors, on one thread and on two."""
    done = lowered("rows", range(32), interpreted=False)
    shared = [found for found in done if "directive parallel hubs" in covered(found)]
    widths = {(found.case.vector_bytes, found.case.threads) for found in shared}
    assert widths == set(product(WIDTHS, (1, 2)))
    run(shared, tmp_path)


@pytest.mark.sampled(6)
def test_sums_scattered_into_padded_rows_agree(tmp_path):
    """All widths of vectors; on one thread and on two."""
    rows = {"directive precompute in memory", "directive precompute of in memory"}
    padded = [found for found in lowered("padded", range(48)) if rows & {*covered(found)}]
    assert {found.case.vector_bytes for found in padded} == set(WIDTHS)
    assert {found.case.threads for found in padded} == {1, 2}
    run(padded, tmp_path)


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("first", sampled(range(1000, 1040, 10), 4))
def test_many_programs(first, tmp_path):
    """Some programs of each kind, interpreted and in kernels; `tests.compiler.random_programs.many` runs more."""
    run(
        [case for kind in KINDS for case in lowered(kind, range(first, first + 7), interpreted=False)],
        tmp_path,
    )


def test_drawn_programs_read_every_index_variable():
    """An index variable that occurs only in random numbers would have no extent, and its program would be refused."""
    for seed in range(500):
        for statement in Writer(np.random.default_rng(seed), DRAWN).statements():
            read = {name for access in find(statement.value, Access) for name in free_indices(access)}
            assert set(all_indices((statement,))) == read, f"seed {seed}: {statement}"


@pytest.mark.parametrize("kind", ["plain", "typed"])
def test_extents_along_a_diagonal_are_drawn_once(kind):
    assert KINDS[kind].prepare(28000314) is not None
