"""Vector lanes, unrolled loops, and tiles transposed in registers: effect on notation, and refusals."""

import pytest

from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.errors import ScheduleError
from tests.compiler.schedule.directives.programs import BODY, SPMM


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("vector k", f"forall i: vector forall k: forall j: {BODY}"),
        ("vector k in Y", f"forall i: vector forall k: forall j: {BODY}"),
        ("unroll k", f"forall i: unrolled forall k: forall j: {BODY}"),
        ("transpose i k in Y", f"transposed forall i: vector forall k: forall j: {BODY}"),
    ],
)
def test_loops_after(schedule, after):
    assert str(apply(SPMM, Schedule.parse(schedule)).body) == after


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("vector z", "changes nothing"),
        ("unroll z", "changes nothing"),
        ("transpose i z in Y", "no loop over z around Y"),
        ("transpose z k in Y", "no loop over z around Y"),
    ],
)
def test_refusals(schedule, text):
    with pytest.raises(ScheduleError, match=text):
        apply(SPMM, Schedule.parse(schedule))
