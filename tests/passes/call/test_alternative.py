"""Which calls a rival of a kernel takes: those with the dtypes and about the sizes of the example."""

import pytest
import torch

from sparsify.passes.call.alternative import MOST, Alternative, ByRows, Preferred

LARGE = torch.zeros(3000, 2)


def preferred(*example: object) -> Preferred:
    return Preferred(Alternative("one", lambda call, arguments: arguments[0], 1.0), example)


@pytest.mark.parametrize(
    ("call", "is_taken"),
    [
        ((torch.ones(2100, 2), 5), True),
        ((torch.nn.Parameter(LARGE), 5), True),
        ((torch.zeros(5000, 2), 5), False),
        ((torch.zeros(3000, 3), 5), False),
        ((LARGE, 6), False),
        ((LARGE.double(), 5), False),
        ((LARGE, True), False),
        ((LARGE,), False),
        (([LARGE], 5), False),
    ],
)
def test_calls_like_the_example(call, is_taken):
    one = preferred(LARGE, 5)
    assert [one.takes(call) for _ in range(2)] == [is_taken, is_taken]


def test_few_shapes_are_remembered():
    one = preferred(LARGE)
    for rows in range(3 * MOST):
        one.takes((torch.zeros(rows, 1),))
    assert len(one._known) <= MOST


@pytest.mark.parametrize(("rows", "is_taken"), [(1, True), (3, True), (4, False), (19, False), (20, True)])
def test_calls_by_rows(rows, is_taken):
    one = ByRows(
        Alternative("one", lambda call, arguments: arguments[1], 1.0), 1, 0, ((0, 3.5), (20.0, 99.0))
    )
    assert one.takes((5, torch.zeros(rows, 2))) is is_taken
    assert not one.takes((5, [0] * rows))
