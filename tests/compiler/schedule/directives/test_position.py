"""Loops over stored positions: effect on notation, and refusals."""

import pytest

from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.errors import ScheduleError
from tests.compiler.schedule.directives.programs import BODY, SPMM


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("pos j p A", f"forall i: forall k: forall p: {BODY}"),
    ],
)
def test_loops_after(schedule, after):
    assert str(apply(SPMM, Schedule.parse(schedule)).body) == after


@pytest.mark.parametrize(
    ("schedule", "relation"),
    [
        ("pos j p A", "pos j p A"),
    ],
)
def test_relations(schedule, relation):
    assert [str(r) for r in apply(SPMM, Schedule.parse(schedule)).relations] == [relation]


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("split k ko ki 4; pos j k A", "a loop k exists"),
        ("pos j j A", "a loop j exists"),
    ],
)
def test_refusals(schedule, text):
    with pytest.raises(ScheduleError, match=text):
        apply(SPMM, Schedule.parse(schedule))
