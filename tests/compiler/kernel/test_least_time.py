"""The least time of a call: agreed on once several runs are as fast."""

from sparsify.compiler.kernel.least_time import Least


def test_one_fast_run_is_no_agreement():
    found = Least(wanted=3, apart=0.05)
    assert found.us == float("inf")
    for us in (50.0, 10.0, 30.0, 10.4):
        found.add(us)
        assert not found.is_agreed
    found.add(10.2)
    assert found.us == 10.0
    assert found.is_agreed


def test_a_faster_run_asks_for_others():
    found = Least(wanted=2, apart=0.1)
    for us in (10.0, 10.0):
        found.add(us)
    assert found.is_agreed
    found.add(8.0)
    assert (found.us, found.is_agreed) == (8.0, False)
