"""Copies of operands inside loops: effect on notation, and refusals."""

import pytest

from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.errors import ScheduleError
from tests.compiler.schedule.directives.programs import SPMM, plain


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        (
            "pack P = T[k, j] at i in thread",
            "forall i: let P[k,j]: float32 in thread: (forall k: forall j: P[k,j] = T[j,k]); "
            "forall k: forall j: Y[i,k] += A[i,j] * P[k,j]",
        ),
        (
            "pack P = T[k, j] at i in thread for Y",
            "forall i: let P[k,j]: float32 in thread: (forall k: forall j: P[k,j] = T[j,k]); "
            "forall k: forall j: Y[i,k] += A[i,j] * P[k,j]",
        ),
    ],
)
def test_loops_after(schedule, after):
    assert str(apply(SPMM, Schedule.parse(schedule)).body) == after


def test_copies_do_not_know_what_is_stored():
    program = plain("Y[i,k] = where(stored(A[i,k]), T[i,k], 0)", A="csr", T="dense, dense")
    with pytest.raises(
        ScheduleError, match=r"stored\(A\[i,k\]\) asks what is stored, which a copy does not know"
    ):
        apply(program, Schedule.parse("pack P = A[k] at i in thread"))


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("pack P = Z[k] at i in thread", "changes nothing"),
    ],
)
def test_refusals(schedule, text):
    with pytest.raises(ScheduleError, match=text):
        apply(SPMM, Schedule.parse(schedule))
