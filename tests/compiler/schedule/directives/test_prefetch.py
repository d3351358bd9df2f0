"""Distances of prefetching: effect on notation, and refusals."""

import pytest

from sparsify.compiler.schedule.directives import Schedule, apply
from tests.compiler.schedule.directives.programs import SPMM


@pytest.mark.parametrize(
    ("schedule", "relation"),
    [
        ("prefetch T 16", "prefetch T 16"),
    ],
)
def test_relations(schedule, relation):
    assert [str(r) for r in apply(SPMM, Schedule.parse(schedule)).relations] == [relation]
