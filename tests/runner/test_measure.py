"""Times and memory of calls."""

import pytest
import torch

from sparsify.runner import measure


def test_contenders_take_turns_after_one_warm_call_each():
    calls = []
    timings = measure.interleave(lambda: calls.append("a"), lambda: calls.append("b"), most=7)
    assert calls == ["a", "b"] * 8
    assert [len(timing.runs_ms) for timing in timings] == [7, 7]


def test_more_than_two_contenders_take_turns():
    calls = []
    timings = measure.interleave(*(lambda n=n: calls.append(n) for n in "abc"), most=2)
    assert calls == list("abc") * 3 and len(timings) == 3


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ([2.0, 2.1, 2.0, 1.9], "4.00x, 4 turns"),
        ([2.0, 4.0, 2.0, 4.0], "2.67x, 4 turns that disagree: 2.00x to 4.00x"),
        ([8.0, 8.0, 80.0, 8.0], "1.00x, 4 turns"),
    ],
)
def test_turns_that_disagree_are_marked(second, text):
    assert measure.agreement(measure.Timing(0.0, [8.0] * 4), measure.Timing(0.0, second)) == text


def test_least_turns_are_done_however_long_they_take():
    timings = measure.interleave(lambda: None, lambda: None, seconds=0.0, least=3, most=9)
    assert len(timings[0].runs_ms) == 3


def test_three_turns_are_enough_where_they_take_long(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def call():
        now[0] += 2.0

    told = []
    timings = measure.interleave(
        call, call, seconds=1.0, is_warm=True, told=lambda t: told.append(len(t[1].runs_ms))
    )
    assert [len(timing.runs_ms) for timing in timings] == [3, 3]
    assert told == [1, 2, 3]
    assert len(measure.interleave(call, call, seconds=10.0)[0].runs_ms) == 5


def test_warm_contenders_are_not_called_before():
    calls = []
    measure.interleave(lambda: calls.append("a"), lambda: calls.append("b"), most=2, is_warm=True)
    assert calls == ["a", "b"] * 2


@pytest.mark.parametrize(("long_ms", "count"), [(0.0, 1), (1e9, 3)])
def test_the_memory_of_long_calls_is_that_of_one(monkeypatch, long_ms, count):
    calls = []
    monkeypatch.setattr(measure, "LONG_MS", long_ms)
    monkeypatch.setattr(measure, "peak_once", lambda call: (call(), 5 - len(calls))[1])
    assert measure.peak_bytes(lambda: calls.append(1)) == 5 - count
    assert len(calls) == count


def test_median_ignores_an_outlier():
    assert measure.Timing(0.0, [1.0, 100.0, 2.0]).median_ms == 2.0


def test_once_returns_the_result():
    found, milliseconds = measure.once(lambda: 5)
    assert found == 5
    assert milliseconds >= 0


@pytest.mark.skipif(not measure.CLEAR.exists(), reason="the system keeps no resettable peak")
def test_peak_counts_what_one_call_takes():
    def call():
        first = torch.ones(8 << 20)  # 32 MiB
        return (first + 1).sum()  # and 32 more

    peak = measure.peak_bytes(call)
    assert peak is not None
    assert 56 * 2**20 < peak < 96 * 2**20


def test_peak_is_unknown_without_an_account(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "CLEAR", tmp_path / "missing/clear_refs")
    assert measure.peak_bytes(lambda: None) is None
