"""Schedules that differ from one in a single decision."""

import pytest

from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.neighbours import neighbours

ROWS = "order i, ko, j, ki; precompute w at ko in register; vector ki"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            f"split k ko ki 64 tail 32 8; {ROWS}; parallel i dynamic A; prefetch T 16",
            [
                f"split k ko ki 32 tail 8; {ROWS}; parallel i dynamic A; prefetch T 16",
                f"split k ko ki 64 tail 32 8; {ROWS}; parallel i balanced A; prefetch T 16",
                f"split k ko ki 128 tail 32 8; {ROWS}; parallel i dynamic A; prefetch T 16",
                f"split k ko ki 64 tail 32 8; {ROWS}; parallel i dynamic A",
            ],
        ),
        (f"split k ko ki 16; {ROWS}", [f"split k ko ki 32; {ROWS}"]),  # half of it is too narrow
        ("split j jo ji 64; order i, jo, ji; parallel i static", []),  # no lanes, no entries to balance by
    ],
)
def test_one_decision_at_a_time(before, after):
    assert [str(found) for found in neighbours(Schedule.parse(before), {"k": 200})] == after


def test_no_tile_is_larger_than_its_loop():
    found = list(neighbours(Schedule.parse(f"split k ko ki 32; {ROWS}"), {"k": 32}))
    assert [str(one) for one in found] == [f"split k ko ki 16; {ROWS}"]
