"""The least time of a call on a machine."""

import pytest

from sparsify.bench import roofline
from sparsify.bench.roofline import Limit, Work, level, limit
from sparsify.compiler.schedule.cost.machine import Curve, Machine

FLAT = Machine(
    threads=2,
    fma_all=1000.0,
    reads_all=Curve(((1 << 14, 400.0), (1 << 26, 100.0))),
    call_us=2.0,
)


@pytest.fixture(autouse=True)
def caches(monkeypatch):
    monkeypatch.setattr(roofline, "cache_sizes", lambda: {"l1_kib": 32, "l2_kib": 512, "l3_kib": 16384})


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (Work(operations=50_000, streamed=400), Limit(52.0, "arithmetic")),
        (Work(operations=100, streamed=4000), Limit(12.0, "L1")),
        (Work(operations=100, streamed=400, gathered=8000, table=1 << 14), Limit(22.0, "L1")),
        (Work(operations=100, streamed=400, gathered=8000, table=1 << 26), Limit(82.0, "memory")),
        (Work(operations=100, streamed=400), Limit(3.0, "call")),
        (Work(operations=0, streamed=0), Limit(2.0, "call")),
    ],
)
def test_the_longer_part_sets_the_limit(work, found):
    assert limit(work, FLAT) == found


@pytest.mark.parametrize(
    ("size", "name"), [(100, "L1"), (1 << 16, "L2"), (1 << 20, "L3"), (1 << 30, "memory")]
)
def test_levels(size, name):
    assert level(size) == name
