"""Tiles of loops: effect on notation, and refusals."""

import pytest

from sparsify.compiler.schedule.directives import Schedule, apply
from sparsify.errors import ScheduleError
from tests.compiler.schedule.directives.programs import BODY, SPMM


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("split k ko ki 8", f"forall i: forall ko: forall ki: forall j: {BODY}"),
    ],
)
def test_loops_after(schedule, after):
    assert str(apply(SPMM, Schedule.parse(schedule)).body) == after


@pytest.mark.parametrize(
    ("schedule", "relation"),
    [
        ("split k ko ki 8 tail 4", "split k ko ki 8 tail 4"),
    ],
)
def test_relations(schedule, relation):
    assert [str(r) for r in apply(SPMM, Schedule.parse(schedule)).relations] == [relation]


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("split z zo zi 4", "changes nothing"),
        ("split k i ki 4", "a loop i exists"),
        ("split k ki ki 4", "a loop ki exists"),
        ("vector k; split k ko ki 4", "comes after another directive on k"),
    ],
)
def test_refusals(schedule, text):
    with pytest.raises(ScheduleError, match=text):
        apply(SPMM, Schedule.parse(schedule))
