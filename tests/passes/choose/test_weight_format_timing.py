"""Formats timed against each other and against torch: what was found is kept, and can be switched off."""

import time
from functools import partial
from math import inf
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.compiler import recall
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.choose import timing, weight_format_timing
from sparsify.passes.choose.pack import is_worth_it
from sparsify.passes.choose.weight_format_timing import Timed
from sparsify.recipe.schema import Compile

RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "role": "weight", "source": "given"}],
}


@pytest.fixture(autouse=True)
def without_optimisation() -> None:
    """The options in force are those of users."""


@pytest.fixture(scope="module")
def model() -> nn.Sequential:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(96, 128), nn.ReLU()).eval().requires_grad_(False)
    found[0].weight *= torch.rand(128, 96) < 0.05
    return found


def is_kernel(call: Any) -> bool:
    return call() is not None and isinstance(call.func, RegionCall) and call.func.library is None


def test_what_was_timed_is_found_again(model, tmp_path, monkeypatch):
    x = torch.randn(128, 96)
    monkeypatch.setattr(timing, "once_us", lambda call: 1.0 if is_kernel(call) else 2.0)
    with options.override(tune_seconds=1.0, cache_dir=tmp_path):
        first = sparsify.apply(model, RECIPE, x)
        monkeypatch.setattr(weight_format_timing, "timed", lambda *_: pytest.fail("timed again"))
        second = sparsify.apply(model, RECIPE, x)
    assert first.report.to_dict()["regions"][0]["notes"] == second.report.to_dict()["regions"][0]["notes"]
    told = [*first.report.regions[0].notes, *(entry.reason for entry in first.report.dense)]
    assert "0.weight packed: 5" in told[0] or "dense" in told[0]
    assert "expected" in told[0]
    assert "; timed" in told[0]
    torch.testing.assert_close(second(x), model(x), rtol=1e-4, atol=1e-5)


def test_nothing_is_timed_where_it_is_switched_off(model, monkeypatch):
    monkeypatch.setattr(weight_format_timing, "timed", lambda *_: pytest.fail("timed"))
    with options.override(tune_seconds=0.0):
        sparse = sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False)
    assert "timed" not in sparse.report.regions[0].notes[0]


@pytest.mark.parametrize(
    ("us", "dense_us", "is_packed"), [(10.0, 20.0, True), (21.0, 20.0, False), (19.9, 20.0, False)]
)
def test_what_loses_stays_dense(model, monkeypatch, us, dense_us, is_packed):
    def found(draft: Any, region: Any, trials: Any, formats: Any, libraries: Any) -> Timed:
        return Timed(formats[-1], "", us, dense_us)

    monkeypatch.setattr(weight_format_timing, "timed", found)
    monkeypatch.setattr(weight_format_timing, "recall", lambda question, sizes, answer, *_, **__: answer())
    with options.override(tune_seconds=1.0):
        report = sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False).report
    assert len(report.regions) == is_packed
    told = report.regions[0].notes[0] if is_packed else report.dense[0].reason
    assert f"timed {weight_format_timing.rounded(us)} us, torch's {dense_us:.0f}" in told


def test_memory_decides_before_time():
    slower, faster = Timed("", "", 3.0, 2.0), Timed("", "", 1.0, 2.0)
    assert not is_worth_it({"W": packing(bytes_=500)}, Compile(), faster)
    assert not is_worth_it({"W": packing(bytes_=100)}, Compile(), slower)
    assert is_worth_it({"W": packing(bytes_=100)}, Compile(memory="compact"), slower)
    assert is_worth_it({"W": packing(bytes_=100)}, Compile(backends=("own",)), slower)


def packing(bytes_: int) -> Any:
    return weight_format_timing.Packing(sparsify.Format("csr"), 10, 100, bytes_, 400, 1.0, 2.0)


def times(monkeypatch: pytest.MonkeyPatch, *found: Any) -> list[int]:
    """Makes each call take the next of its times, the last one again and again; how often each was called."""
    calls = [0] * len(found)

    def once(call: Any) -> float:
        number = call()
        calls[number] += 1
        return float(found[number][min(calls[number], len(found[number])) - 1])

    monkeypatch.setattr(timing, "once_us", once)
    return calls


def test_the_fastest_wins_and_the_hopeless_stop(monkeypatch):
    calls = times(monkeypatch, [40.0], [20.0], [10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 30.0, 40.0, 10.1, 10.2])
    far, slow, fast = timing.race([partial(int, n) for n in range(3)], 10.0)
    assert (far.us, slow.us, fast.us, fast.is_agreed) == (40.0, 20.0, 10.0, True)
    assert calls == [timing.FIRST_TURNS, timing.ALL_TURNS, 10]


def test_slow_calls_stop_as_soon_as_they_agree(monkeypatch):
    slow = 2 * timing.SLOW_US
    calls = times(monkeypatch, [slow], [4 * slow], [2 * slow])
    found = timing.race([partial(int, n) for n in range(3)], 10.0)
    assert (found[0].us, found[0].is_agreed) == (slow, True)
    assert calls == [timing.AGREEING, 1, timing.AGREEING]


def test_first_calls_do_not_count():
    calls = []

    def first_is_long() -> None:
        calls.append(1)
        if len(calls) == 1:
            time.sleep(0.05)

    (found,) = timing.race([first_is_long], 0.01)
    assert found.us < 50_000


def test_turns_end_with_the_time(monkeypatch):
    calls = times(monkeypatch, [2.0**n for n in range(20, 0, -1)])
    (found,) = timing.race([partial(int, 0)], 0.0)
    assert (calls, found.is_agreed) == ([1], False)


def test_races_share_their_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def once(call: Any) -> float:
        now[0] += 1.0
        return 1.0 / now[0]  # never two alike

    monkeypatch.setattr(timing, "once_us", once)
    turns = []
    with timing.together(7.5):
        for _ in range(4):
            begun = now[0]
            timing.race([partial(int, 0)], 4.5)
            turns.append(now[0] - begun)
    assert turns == [5.0, 3.0, 1.0, 1.0]
    timing.race([partial(int, 0)], 4.5)
    assert now[0] == 10.0 + 5.0


@pytest.mark.parametrize(
    ("quiet", "shown"),
    [(False, "\rtiming what is fastest, 0 s of at most 30\r\033[K"), (True, "")],
)
def test_long_races_show_a_line_on_a_terminal(monkeypatch, capsys, quiet, shown):
    monkeypatch.setattr(timing, "QUIET_SECONDS", -1.0)
    monkeypatch.setattr(timing.sys.stderr, "isatty", lambda: True, raising=False)
    with options.override(quiet=quiet), timing.together(30.0):
        timing.race([partial(int, 0)], 0.0)
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize("is_agreed", [True, False])
def test_what_was_disturbed_is_timed_again_elsewhere(model, tmp_path, monkeypatch, is_agreed):
    asked = []

    def found(draft: Any, region: Any, trials: Any, formats: Any, libraries: Any) -> Timed:
        asked.append(libraries)
        return Timed(formats[0], "", 1.0, 2.0, is_agreed=is_agreed)

    monkeypatch.setattr(weight_format_timing, "timed", found)
    with options.override(tune_seconds=1.0, cache_dir=tmp_path):
        for _ in range(2):
            sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False)
        assert len(asked) == 1
        monkeypatch.setattr(recall, "_DOUBTED", {})  # as in another process
        sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False)
    assert len(asked) == (1 if is_agreed else 2)
    assert asked[0] == ["onednn", "torch_sparse"]


@pytest.mark.parametrize(("backends", "libraries"), [(None, ["onednn"]), (["own", "torch"], None)])
def test_dense_products_alone_are_timed_for_weights_without_zeros(model, monkeypatch, backends, libraries):
    asked = []

    def found(draft: Any, region: Any, trials: Any, formats: Any, libraries: Any) -> Timed:
        asked.append((trials, formats, libraries))
        return Timed("", "", inf, 5.0, (("onednn", 3.0),))

    monkeypatch.setattr(weight_format_timing, "timed", found)
    monkeypatch.setattr(weight_format_timing, "recall", lambda question, sizes, answer, *_, **__: answer())
    full = nn.Sequential(nn.Linear(96, 128), nn.ReLU()).eval().requires_grad_(False)
    x = torch.randn(128, 96)
    recipe = RECIPE if backends is None else {**RECIPE, "compile": {"backends": backends}}
    with options.override(tune_seconds=1.0):
        sparse = sparsify.apply(full, recipe, x)
    assert asked == ([] if libraries is None else [([], [], libraries)])
    told = [*(note for entry in sparse.report.regions for note in entry.notes)]
    told += [entry.reason for entry in sparse.report.dense]
    assert len(told) == 1
    assert ("timed torch's 5.0 us, oneDNN 3.0" in told[0]) == (libraries is not None)
    torch.testing.assert_close(sparse(x), full(x), rtol=1e-4, atol=1e-5)


def test_weights_without_zeros_are_timed_for_real(tmp_path):
    full = nn.Sequential(nn.Linear(96, 128), nn.ReLU()).eval().requires_grad_(False)
    with options.override(tune_seconds=0.001, cache_dir=tmp_path):
        report = sparsify.apply(full, RECIPE, torch.randn(16, 96)).report
    told = [*(note for entry in report.regions for note in entry.notes), *(e.reason for e in report.dense)]
    assert "timed torch's" in told[0] or not torch.backends.mkldnn.is_available()


def test_small_work_is_timed(model, monkeypatch):
    told = []

    def found(draft: Any, region: Any, trials: Any, formats: Any, libraries: Any) -> Timed:
        told.append(1)
        return Timed(formats[0], "", 2.0, 1.0)

    monkeypatch.setattr(weight_format_timing, "timed", found)
    monkeypatch.setattr(weight_format_timing, "recall", lambda question, sizes, answer, *_, **__: answer())
    with options.override(tune_seconds=1.0):
        sparsify.apply(model, RECIPE, torch.randn(2, 96), verify=False)
    assert told == [1]


@pytest.mark.parametrize(
    ("us", "libraries", "chosen"),
    [
        (10.0, (("onednn", 11.0),), "own"),
        (10.0, (("onednn", 9.0), ("torch_sparse", 8.0)), "torch_sparse"),
        (30.0, (("onednn", 19.9),), ""),
        (30.0, (("onednn", 15.0),), "onednn"),
    ],
)
def test_the_choice(us, libraries, chosen):
    found = Timed("", "", us, 20.0, libraries)
    assert ("own" if found.is_faster else found.library) == chosen
