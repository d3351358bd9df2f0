"""Targets over steps against the formulas of the papers."""

from math import cos, pi

import pytest

from sparsify.pruning.schedule import Schedule


@pytest.mark.parametrize(
    "kind, formula",
    [
        ("linear", lambda t: 0.2 + 0.7 * t),
        ("cubic", lambda t: 0.9 + (0.2 - 0.9) * (1 - t) ** 3),
        ("cosine", lambda t: 0.2 + 0.7 * (1 - cos(pi * t)) / 2),
        ("oneshot", lambda t: 0.9),
        ("constant", lambda t: 0.9),
    ],
)
def test_targets_follow_the_formula(kind, formula):
    schedule = Schedule(kind, to=0.9, start_at=0.2, start=10, end=50, every=7)
    for step in range(10, 51):
        assert schedule.target(step) == pytest.approx(formula((step - 10) / 40), abs=1e-12)
    assert schedule.target(3) == (0.9 if kind == "constant" else 0.2)
    assert schedule.target(99) == pytest.approx(0.9)


def test_updates_are_every_so_many_steps_and_at_the_end():
    schedule = Schedule("cubic", to=0.9, start=2, end=12, every=4)
    assert [step for step in range(20) if schedule.is_update(step)] == [2, 6, 10, 12]


def test_the_exchanged_share_is_the_cosine_of_rigl():
    schedule = Schedule("cosine", to=0.9, start_at=0.9, end=100, every=10)
    for step in range(0, 101, 10):
        assert schedule.exchanged(0.3, step) == pytest.approx(0.15 * (1 + cos(pi * step / 100)), abs=1e-12)
