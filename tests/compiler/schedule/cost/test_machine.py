"""Rates by size, and machines as plain data."""

import pytest

from sparsify.compiler.schedule.cost.machine import Curve, Machine, from_dict, scaled


@pytest.mark.parametrize(
    ("size", "rate"), [(1, 8.0), (100, 8.0), (1000, 6.0), (10_000, 4.0), (100_000, 3.0), (10**9, 2.0)]
)
def test_rates_lie_between_those_of_the_nearest_sizes(size, rate):
    assert Curve(((100, 8.0), (10_000, 4.0), (1_000_000, 2.0))).at(size) == pytest.approx(rate)


def test_a_machine_is_read_back():
    data = {**scaled(2, 32).to_dict(), "call_us": 1.25}
    found = from_dict(data)
    assert found.is_measured
    assert (found.call_us, found.threads, found.reads) == (1.25, 2, Machine().reads)


@pytest.mark.parametrize("change", [{"fma": 0}, {"fma": "nan"}, {"reads": 3}, {"threads": None}], ids=str)
def test_what_is_no_machine_is_refused(change):
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_dict({**scaled(2, 32).to_dict(), **change})


def test_more_threads_and_wider_vectors_are_assumed_to_be_faster():
    assert scaled(4, 64).fma_all == 8 * scaled(1, 32).fma_all
    assert scaled(1, 0).fma == scaled(1, 32).fma / 8
    assert scaled(1, 0).vector_us == scaled(1, 32).vector_us
    assert scaled(16, 32).reads_all.at(1 << 26) == 2 * scaled(1, 32).reads_all.at(1 << 26)
