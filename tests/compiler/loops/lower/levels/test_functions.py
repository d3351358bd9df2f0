"""Level functions on numbers of a kernel: uniform ones fold, lanes keep their step."""

import pytest

from sparsify.compiler.loops.arithmetic import ONE, integer
from sparsify.compiler.loops.lower.environment import Coordinate, scalar
from sparsify.compiler.loops.lower.levels.functions import Number
from sparsify.errors import ScheduleError
from tests.compiler.loops.build import var

ROW, N = Number(scalar(var("i"))), Number(scalar(var("n")))
LANES = Number(Coordinate(var("k"), ONE))


@pytest.mark.parametrize(
    ("number", "start", "step"),
    [
        (ROW * N + 2, "i * n + 2", "0"),
        (2 + ROW, "i + 2", "0"),
        (3 * ROW - ROW, "i * 3 - i", "0"),
        (5 - ROW, "5 - i", "0"),
        (ROW // 4, "i // 4", "0"),
        (ROW % 4, "i % 4", "0"),
        (ROW * N + LANES, "i * n + k", "1"),
        (LANES * 3, "k * 3", "3"),
        (LANES - ROW, "k + i * -1", "1"),
    ],
    ids=str,
)
def test_arithmetic(number, start, step):
    assert (str(number.value.start), str(number.value.step)) == (start, step)


@pytest.mark.parametrize("divided", [lambda: LANES // 2, lambda: LANES % 2])
def test_lanes_are_not_divided(divided):
    with pytest.raises(
        ScheduleError, match="the lanes of a vector loop have coordinates that a level divides"
    ):
        divided()


def test_constants_fold():
    assert (Number(scalar(integer(7))) // 2).value.start == integer(3)
