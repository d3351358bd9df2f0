"""Orders of loops: effect on notation, and refusals."""

import pytest

from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.errors import ScheduleError
from tests.compiler.schedule.directives.programs import BODY, SPMM


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("order i, j, k", f"forall i: forall j: forall k: {BODY}"),
        ("order Y: j, i, k", f"forall j: forall i: forall k: {BODY}"),
    ],
)
def test_loops_after(schedule, after):
    assert str(apply(SPMM, Schedule.parse(schedule)).body) == after


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("order x, y", "there is no loop x"),
        ("order i, z", "there is no loop z"),
        ("order i, i", "i is named twice"),
        ("order Z: i, k", "nothing is assigned to Z"),
    ],
)
def test_refusals(schedule, text):
    with pytest.raises(ScheduleError, match=text):
        apply(SPMM, Schedule.parse(schedule))
