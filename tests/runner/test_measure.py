"""Times and memory of calls."""

import pytest
import torch

from sparsify.runner import measure


def test_contenders_take_turns_after_one_warm_call_each():
    calls = []
    timings = measure.interleave(lambda: calls.append("a"), lambda: calls.append("b"), most=7)
    assert calls == ["a", "b"] * 8
    assert [len(timing.runs_ms) for timing in timings] == [7, 7]


def test_least_turns_are_done_however_long_they_take():
    timings = measure.interleave(lambda: None, lambda: None, seconds=0.0, least=3, most=9)
    assert len(timings[0].runs_ms) == 3


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
