"""Contenders, intervals and outcomes."""

import math

import pytest
import scipy.sparse
import torch

import sparsify
from sparsify.bench import harness
from sparsify.bench.harness import Case, Contender, Measured, Target, Times


def case(*contenders, targets=(), expected=None):
    return Case("row", "work", "generated", list(contenders), list(targets), expected)


def measured(**runs):
    times = {name: Times(name, name != "ours", list(values)) for name, values in runs.items()}
    theirs = tuple(name for name in runs if name != "ours")
    return Measured(case(targets=[Target("ours", theirs, 2.0, "pooled")]), times)


def test_contenders_take_turns():
    calls = []
    slow = [Contender(n, lambda n=n: calls.append(n), before=lambda: None) for n in "ab"]
    found = harness.measure(case(*slow), seconds=0.0, least=3, most=9)
    assert [len(times.runs_us) for times in found.times.values()] == [3, 3]
    assert calls.index("b") < len(calls) - calls[::-1].index("a")


def test_preparation_runs_before_each_timed_call():
    order = []
    contender = Contender("a", lambda: order.append("call"), before=lambda: order.append("before"))
    harness.measure(case(contender), seconds=0.0, least=1, most=1)
    assert "before" in order
    assert all(order[n + 1] == "call" for n, what in enumerate(order) if what == "before")


def test_any_clock_counts():
    ticks = iter(range(0, 10**9, 500_000))
    found = harness.measure(case(Contender("a", lambda: None)), least=2, most=2, clock=lambda: next(ticks))
    assert found.times["a"].runs_us == [250.0, 250.0]
    assert found.times["a"].calls_a_sample == 2


def test_long_calls_have_no_others_before_them():
    calls, now = [], [0]

    def call():
        calls.append(1)
        now[0] += 3_000_000_000

    found = harness.measure(case(Contender("a", call)), seconds=0.0, least=3, most=9, clock=lambda: now[0])
    assert len(calls) == 1 + 1 + 3  # the first, how long one takes, samples
    assert found.times["a"].runs_us == [3e6] * 3


def test_a_wrong_result_is_not_timed():
    wrong = Contender("wrong", lambda: torch.ones(2))
    with pytest.raises(harness.WrongResultError, match=r"row: wrong differs from float64 by 0\.5"):
        harness.measure(case(wrong, expected=lambda: torch.full((2,), 2.0, dtype=torch.float64)))


def test_the_fastest_baseline_counts():
    (outcome,) = measured(ours=[1.0, 1.0, 2.0], slow=[9.0, 9.0, 9.0], fast=[3.0, 4.0, 3.0]).outcomes
    assert (outcome.baseline, outcome.reached, outcome.is_met) == ("fast", 3.0, True)
    assert (outcome.low, outcome.high) == (1.5, 4.0)


def test_nothing_asked_is_neither_met_nor_missed():
    found = measured(ours=[1.0], other=[2.0])
    found.case.targets = [Target("ours", ("other",), None)]
    assert found.outcomes[0].is_met is None
    assert found.to_dict()["targets"][0]["met"] is None


def test_interval_narrows_with_the_sample():
    assert harness.interval([5.0, 1.0, 3.0]) == (1.0, 5.0)
    low, high = harness.interval([float(n) for n in range(101)])
    assert 38 <= low <= 41
    assert 59 <= high <= 62


def test_difference_is_relative_to_the_largest_value():
    expected = torch.tensor([0.0, 10.0], dtype=torch.float64)
    assert harness.difference(torch.tensor([1.0, 10.0]), expected) == pytest.approx(0.1)
    assert harness.difference(torch.ones(3), expected) == math.inf


@pytest.mark.parametrize(
    "make",
    [
        lambda d: sparsify.tensor(d, "csr"),
        lambda d: d.to_sparse_csr(),
        lambda d: d.to_sparse_coo(),
        lambda d: d[d != 0].numpy(),
        lambda d: torch.from_numpy(scipy.sparse.csr_array(d.numpy()).data),
    ],
)
def test_results_of_all_kinds_are_compared(make):
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert torch.equal(harness.plain(make(dense)), torch.tensor([1.0, 2.0]))
