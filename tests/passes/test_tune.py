"""Formats timed against each other and against torch: what was found is kept, and can be switched off."""

import time
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.passes import tune
from sparsify.passes.pack import is_worth_it
from sparsify.passes.tune import Timed

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


def test_what_was_timed_is_found_again(model, tmp_path, monkeypatch):
    x = torch.randn(128, 96)
    with options.override(tune_seconds=0.01, cache_dir=tmp_path):
        first = sparsify.apply(model, RECIPE, x)
        monkeypatch.setattr(tune, "timed", lambda *_: pytest.fail("timed again"))
        second = sparsify.apply(model, RECIPE, x)
    assert first.report.to_dict()["regions"][0]["notes"] == second.report.to_dict()["regions"][0]["notes"]
    told = [*first.report.regions[0].notes, *(entry.reason for entry in first.report.dense)]
    assert "0.weight packed: 5" in told[0] or "dense" in told[0]
    assert "expected" in told[0]
    assert "; timed" in told[0]
    torch.testing.assert_close(second(x), model(x), rtol=1e-4, atol=1e-5)


def test_nothing_is_timed_where_it_is_switched_off(model, monkeypatch):
    monkeypatch.setattr(tune, "timed", lambda *_: pytest.fail("timed"))
    with options.override(tune_seconds=0.0):
        sparse = sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False)
    assert "timed" not in sparse.report.regions[0].notes[0]


@pytest.mark.parametrize(("us", "dense_us", "is_packed"), [(10.0, 20.0, True), (21.0, 20.0, False)])
def test_what_loses_stays_dense(model, monkeypatch, us, dense_us, is_packed):
    def found(draft: Any, region: Any, trials: Any, formats: Any) -> Timed:
        return Timed(formats[-1], "", us, dense_us)

    monkeypatch.setattr(tune, "timed", found)
    monkeypatch.setattr(tune, "recall", lambda question, sizes, answer, options: answer())
    with options.override(tune_seconds=1.0):
        report = sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False).report
    assert len(report.regions) == is_packed
    told = report.regions[0].notes[0] if is_packed else report.dense[0].reason
    assert f"timed {us:.0f} us, torch's {dense_us:.0f}" in told


def test_memory_decides_before_time():
    assert not is_worth_it({"W": packing(bytes_=500)}, "fast", Timed("", "", 1.0, 2.0))
    assert is_worth_it({"W": packing(bytes_=100)}, "compact", Timed("", "", 3.0, 2.0))


def packing(bytes_: int) -> Any:
    return tune.Packing(sparsify.Format("csr"), 10, 100, bytes_, 400, 1.0, 2.0)


def test_the_fastest_wins_and_the_hopeless_stop():
    calls = [0, 0]

    def wait(number: int, seconds: float) -> None:
        calls[number] += 1
        time.sleep(seconds)

    slow, fast = tune.race([lambda: wait(0, 0.004), lambda: wait(1, 0.0005)], 10.0)
    assert slow > 4000 > fast
    assert calls == [2 * tune.ALL_TURNS, 2 * tune.MOST_TURNS]
