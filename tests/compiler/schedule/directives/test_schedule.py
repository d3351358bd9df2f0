"""Schedules: directives apply in order, each must change something, and the order of loops is that of the origins."""

import pytest

from sparsify.compiler.schedule.directives import Order, Schedule, Split, Vector, apply
from sparsify.errors import ScheduleError
from tests.compiler.schedule.directives.programs import SPMM


def test_directives_apply_in_order():
    schedule = Schedule.parse("split k ko ki 8; order i, ko, j, ki; vector ki")
    assert schedule.directives == (Split("k", "ko", "ki", 8), Order(("i", "ko", "j", "ki")), Vector("ki"))
    assert str(apply(SPMM, schedule).body) == (
        "forall i: forall ko: forall j: vector forall ki: Y[i,k] += A[i,j] * T[j,k]"
    )
    with pytest.raises(ScheduleError, match="`vector ki` changes nothing"):
        apply(SPMM, Schedule(schedule.directives[::-1]))


def test_order_is_that_of_the_origins():
    assert Schedule.parse("pos j p A; split k ko ki 8; order i, p, ko, ki").order == ("i", "j", "k")
    assert Schedule.parse("vector k").order == ()


def test_an_order_may_be_the_present_one():
    assert apply(SPMM, Schedule.parse("order i, k, j")) == SPMM


@pytest.mark.parametrize("text", [None, 3, ["vector k"]])
def test_other_types_than_text(text):
    with pytest.raises(ScheduleError, match="a schedule of type"):
        Schedule.parse(text)
