"""Schedules as text: parsing and printing are inverse; parse errors list the valid forms."""

import pytest

from sparsify.compiler.schedule.directives import Schedule
from sparsify.errors import ScheduleError
from tests.compiler.schedule.test_describe import TEXTS


@pytest.mark.parametrize("text", TEXTS)
def test_prints_what_was_parsed(text):
    schedule = Schedule.parse(text)
    assert Schedule.parse(str(schedule)) == schedule
    assert str(schedule).startswith(text)


def test_lines_and_semicolons():
    assert str(Schedule.parse("order i,j ;\n\n vector j;")) == "order i, j; vector j"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tile k 4", "`tile k 4` is no directive"),
        ("split k ko ki", r"split k ko ki 64 \[tail 32 8\|masked\]"),
        ("split k ko ki 1", "a tile of 1"),
        ("split k ko ki 8 tail 2 4", "falling sizes below 8"),
        ("split k ko ki 8 tail 8", "falling sizes below 8"),
        ("split k ko ki 8 masked tail 4", "is no directive"),
        ("precompute w at i in cache", "there is no scope cache"),
        ("pack P = B at ko in thread", "pack P = B"),
        ("parallel i dynamic A chunks 0", "0 chunks"),
        ("parallel i dynamic hubs 64", "64 positions of which rows"),
    ],
)
def test_refused(text, message):
    with pytest.raises(ScheduleError, match=message):
        Schedule.parse(text)
