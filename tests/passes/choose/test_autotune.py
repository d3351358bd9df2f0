"""Candidates timed in turns: when turns end, which candidate wins, and that another process finds the times."""

import time
from functools import partial
from typing import Any

import pytest

from sparsify import options, progress
from sparsify.compiler.kernel import decision_cache
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.passes.choose import autotune
from sparsify.passes.choose.autotune import Candidate, Winner


def times(monkeypatch: pytest.MonkeyPatch, *found: Any) -> list[int]:
    """Makes each call take the next of its times, the last one again and again; how often each was called."""
    calls = [0] * len(found)

    def once(call: Any) -> float:
        number = call()
        calls[number] += 1
        return float(found[number][min(calls[number], len(found[number])) - 1])

    monkeypatch.setattr(autotune, "once_us", once)
    return calls


def test_the_fastest_wins_and_the_hopeless_stop(monkeypatch):
    calls = times(monkeypatch, [40.0], [20.0], [10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 30.0, 40.0, 10.1, 10.2])
    far, slow, fast = autotune.race([partial(int, n) for n in range(3)], 10.0)
    assert (far.us, slow.us, fast.us, fast.is_agreed) == (40.0, 20.0, 10.0, True)
    _, first_turns, near_turns = autotune.TURNS[-1]
    assert calls == [first_turns, near_turns, 10]


def test_slow_calls_stop_as_soon_as_they_agree(monkeypatch):
    slow = 2 * autotune.TURNS[0][0]
    calls = times(monkeypatch, [slow], [4 * slow], [2 * slow])
    found = autotune.race([partial(int, n) for n in range(3)], 10.0)
    assert (found[0].us, found[0].is_agreed) == (slow, True)
    assert calls == [autotune.AGREEING, 1, autotune.AGREEING]


@pytest.mark.parametrize(("least", "first_turns"), [(us, first) for us, first, _ in autotune.TURNS])
def test_a_candidate_far_ahead_needs_no_agreement(monkeypatch, least, first_turns):
    us = 2 * least + 1
    calls = times(monkeypatch, [4 * us], [us, 2 * us], [5 * us])
    assert autotune.is_agreed(autotune.race([partial(int, n) for n in range(3)], 10.0))
    assert calls == [first_turns] * 3


@pytest.mark.parametrize(("us", "agrees"), [(10.0, False), (2 * autotune.TURNS[0][0], True)])
def test_one_turn_of_short_calls_does_not_agree(monkeypatch, us, agrees):
    """A call of some microseconds takes many times as long where other work interrupts it once."""
    times(monkeypatch, [4 * us, us, us, us, us], [us])
    found = autotune.race([partial(int, n) for n in range(2)], 0.0)
    assert [len(one.times) for one in found] == [1, 1]
    assert autotune.is_agreed(found) is agrees


def test_first_calls_do_not_count():
    calls = []

    def first_is_long() -> None:
        calls.append(1)
        if len(calls) == 1:
            time.sleep(0.05)

    (found,) = autotune.race([first_is_long], 0.01)
    assert found.us < 50_000


def test_turns_end_with_the_time(monkeypatch):
    calls = times(monkeypatch, [2.0**n for n in range(20, 0, -1)])
    (found,) = autotune.race([partial(int, 0)], 0.0)
    assert (calls, found.is_agreed) == ([1], False)


def test_races_share_their_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(autotune.time, "perf_counter", lambda: now[0])

    def once(call: Any) -> float:
        now[0] += 1.0
        return 1.0 / now[0]  # never two alike

    monkeypatch.setattr(autotune, "once_us", once)
    turns = []
    with autotune.shared_seconds(7.5):
        for _ in range(4):
            begun = now[0]
            autotune.race([partial(int, 0)], 4.5)
            turns.append(now[0] - begun)
    assert turns == [5.0, 3.0, 1.0, 1.0]
    autotune.race([partial(int, 0)], 4.5)
    assert now[0] == 10.0 + 5.0


def test_long_races_show_a_line_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    with progress.working("Model"), autotune.shared_seconds(30.0):
        autotune.race([partial(int, 0)], 0.0)
    assert capsys.readouterr().err == (
        "\r\033[KModel: timing what is fastest, 0 s of at most 30, 0 s\r" + progress.CLEAR
    )


@pytest.mark.parametrize(
    ("kind", "us", "is_agreed", "winner"),
    [
        ("alternative", 9.6, True, "one"),
        ("alternative", 9.8, True, ""),
        ("alternative", 9.6, False, ""),
        ("alternative", 3.3, False, "one"),
        ("schedule", 9.6, True, "one"),
        ("schedule", 0.1, False, ""),
        ("operator", 9.6, False, "one"),
        ("operator", 9.8, False, ""),
    ],
)
def test_the_winner(kind, us, is_agreed, winner):
    found = Winner(kind, (("kernel", 10.0), ("one", us), ("other", 20.0)), is_agreed)
    assert (found.name, found.us, found.us_of("one"), found.us_of("none")) == (winner, 10.0, us, float("inf"))


@pytest.mark.parametrize("is_agreed", [True, False])
def test_times_are_found_again_where_turns_agreed(monkeypatch, tmp_path, is_agreed):
    monkeypatch.setattr(decision_cache, "_DOUBTED", {})
    monkeypatch.setattr(autotune, "is_agreed", lambda found: is_agreed)
    times(monkeypatch, [4.0], [2.0])
    made = []

    def candidates() -> list[Candidate]:
        made.append(1)
        return [Candidate("usual", partial(int, 0)), Candidate("other", partial(int, 1))]

    def ask() -> Winner:
        with options.override(cache_dir=tmp_path):
            given = {"sizes": Sizes({"i": 3}), "options": options.current(), "seconds": 0.0}
            return autotune.autotune("operator", "which", candidates, **given)

    assert ask() == ask() == Winner("operator", (("usual", 4.0), ("other", 2.0)), is_agreed)
    assert len(made) == 1
    monkeypatch.setattr(decision_cache, "_DOUBTED", {})  # as in another process
    assert ask().name == "other"
    assert len(made) == (1 if is_agreed else 2)
