"""Loops shared by threads: effect on notation, and refusals."""

import pytest

from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.errors import ScheduleError
from tests.compiler.schedule.directives.programs import BODY, SPMM


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("parallel i", f"parallel forall i: forall k: forall j: {BODY}"),
        ("parallel i in Y", f"parallel forall i: forall k: forall j: {BODY}"),
        (
            "parallel i dynamic A chunks 4",
            f"parallel forall i dynamic by positions of A chunks 4: forall k: forall j: {BODY}",
        ),
    ],
)
def test_loops_after(schedule, after):
    assert str(apply(SPMM, Schedule.parse(schedule)).body) == after


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("parallel j", "its iterations all write"),
        ("parallel z", "changes nothing"),
        ("parallel i in Z", "changes nothing"),
        ("parallel j in Y", "its iterations all write"),
    ],
)
def test_refusals(schedule, text):
    with pytest.raises(ScheduleError, match=text):
        apply(SPMM, Schedule.parse(schedule))
