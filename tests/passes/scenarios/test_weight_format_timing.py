"""Formats timed against each other and against torch: what was found is kept, and can be switched off."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.compiler.kernel import decision_cache
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.choose import autotune, pack
from sparsify.passes.choose.autotune import Winner
from sparsify.passes.choose.pack import fastest_format, is_worth_it
from sparsify.recipe.schema import Compile

Times = tuple[tuple[str, float], ...]
RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "role": "weight", "source": "given"}],
}


@pytest.fixture(scope="module")
def model() -> nn.Sequential:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(96, 128), nn.ReLU()).eval().requires_grad_(False)
    found[0].weight *= torch.rand(128, 96) < 0.05
    return found


def is_kernel(call: Any) -> bool:
    func = getattr(call, "func", None)  # calls of whole models have none
    return call() is not None and isinstance(func, RegionCall) and func.library is None


def measured(monkeypatch: pytest.MonkeyPatch, found: Callable[[list[str], list[str]], Times]) -> None:
    """As if the times, of formats and libraries, were those that `found` returns; torch's comes first."""
    offered = lambda draft, region, trials, libraries: ([*trials], libraries)  # noqa: E731
    monkeypatch.setattr(pack, "candidates", offered)
    monkeypatch.setattr(autotune, "compare", lambda kind, made, *_: Winner(kind, found(*made)))
    monkeypatch.setattr(autotune, "recall", lambda question, sizes, answer, *_, **__: answer())


def test_what_was_timed_is_found_again(model, tmp_path, monkeypatch):
    x = torch.randn(128, 96)
    monkeypatch.setattr(autotune, "once_us", lambda call: 1.0 if is_kernel(call) else 2.0)
    with options.override(tune_seconds=1.0, cache_dir=tmp_path):
        first = sparsify.apply(model, RECIPE, x)
        monkeypatch.setattr(pack, "candidates", lambda *_: pytest.fail("timed again"))
        second = sparsify.apply(model, RECIPE, x)
    assert first.report.to_dict()["regions"][0]["notes"] == second.report.to_dict()["regions"][0]["notes"]
    told = [*first.report.regions[0].notes, *(entry.reason for entry in first.report.dense)]
    assert "0.weight packed: 5" in told[0] or "dense" in told[0]
    assert "expected" in told[0]
    assert "; timed" in told[0]
    torch.testing.assert_close(second(x), model(x), rtol=1e-4, atol=1e-5)


def test_nothing_is_timed_where_it_is_switched_off(model, monkeypatch):
    monkeypatch.setattr(pack, "candidates", lambda *_: pytest.fail("timed"))
    with options.override(tune_seconds=0.0):
        sparse = sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False)
    assert "timed" not in sparse.report.regions[0].notes[0]


@pytest.mark.parametrize(
    ("us", "dense_us", "is_packed"), [(10.0, 20.0, True), (21.0, 20.0, False), (19.9, 20.0, False)]
)
def test_what_loses_stays_dense(model, monkeypatch, us, dense_us, is_packed):
    measured(monkeypatch, lambda formats, libraries: (("torch", dense_us), (formats[-1], us)))
    with options.override(tune_seconds=1.0):
        report = sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False).report
    assert len(report.regions) == is_packed
    told = report.regions[0].notes[0] if is_packed else report.dense[0].reason
    assert f"timed {pack.rounded(us)} us, torch's {dense_us:.0f}" in told


def test_memory_decides_before_time():
    slower, faster = (Winner("weight format", (("torch", 2.0), ("csr", us))) for us in (3.0, 1.0))
    assert not is_worth_it({"W": packing(bytes_=500)}, Compile(), faster)
    assert not is_worth_it({"W": packing(bytes_=100)}, Compile(), slower)
    assert is_worth_it({"W": packing(bytes_=100)}, Compile(memory="compact"), slower)
    assert is_worth_it({"W": packing(bytes_=100)}, Compile(backends=("own",)), slower)


def packing(bytes_: int) -> Any:
    return pack.Packing(sparsify.Format("csr"), 10, 100, bytes_, 400, 1.0, 2.0)


@pytest.mark.parametrize("is_agreed", [True, False])
def test_what_was_disturbed_is_timed_again_elsewhere(model, tmp_path, monkeypatch, is_agreed):
    asked = []

    def found(kind: str, made: Any, *_: Any) -> Winner:
        asked.append(made[1])
        return Winner(kind, (("torch", 2.0), (made[0][0], 1.0)), is_agreed)

    recalled = autotune.recall
    measured(monkeypatch, lambda *_: ())
    monkeypatch.setattr(autotune, "recall", recalled)
    monkeypatch.setattr(autotune, "compare", found)
    with options.override(tune_seconds=1.0, cache_dir=tmp_path):
        for _ in range(2):
            sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False)
        assert len(asked) == 1
        monkeypatch.setattr(decision_cache, "_DOUBTED", {})  # as in another process
        sparsify.apply(model, RECIPE, torch.randn(128, 96), verify=False)
    assert len(asked) == (1 if is_agreed else 2)
    assert asked[0] == ["onednn", "torch_sparse"]


@pytest.mark.parametrize(("backends", "libraries"), [(None, ["onednn"]), (["own", "torch"], None)])
def test_dense_products_alone_are_timed_for_weights_without_zeros(model, monkeypatch, backends, libraries):
    asked = []

    def found(formats: list[str], libraries: list[str]) -> Times:
        asked.append((formats, libraries))
        return (("torch", 5.0), ("onednn", 3.0))

    measured(monkeypatch, found)
    full = nn.Sequential(nn.Linear(96, 128), nn.ReLU()).eval().requires_grad_(False)
    x = torch.randn(128, 96)
    recipe = RECIPE if backends is None else {**RECIPE, "compile": {"backends": backends}}
    with options.override(tune_seconds=1.0):
        sparse = sparsify.apply(full, recipe, x)
    assert asked == ([] if libraries is None else [([], libraries)])
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

    def found(formats: list[str], libraries: list[str]) -> Times:
        told.append(1)
        return (("torch", 1.0), (formats[0], 2.0))

    measured(monkeypatch, found)
    with options.override(tune_seconds=1.0):
        sparsify.apply(model, RECIPE, torch.randn(2, 96), verify=False)
    assert told == [1]


@pytest.mark.parametrize(
    ("us", "libraries", "chosen"),
    [
        (10.0, (("onednn", 11.0),), "csr"),
        (10.0, (("onednn", 10.0),), "csr"),
        (10.0, (("onednn", 9.0), ("torch_sparse", 8.0)), "torch_sparse"),
        (30.0, (("onednn", 19.9),), ""),
        (30.0, (("onednn", 15.0),), "onednn"),
    ],
)
def test_the_choice(us, libraries, chosen):
    found = Winner("weight format", (("torch", 20.0), ("csr", us), *libraries))
    assert (found.name, fastest_format(found)) == (chosen, "csr")


class Reshaped(nn.Module):
    """A layer whose result is viewed by an extent of the model's input, which the layer does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(50, 96), nn.Linear(96, 128)
        self.linear.weight.data *= torch.rand(128, 96) < 0.05

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table(ids).flatten(0, 1)
        return torch.relu(self.linear(rows).view(ids.shape[1], 1, 128))


def test_layers_viewed_by_extents_of_inputs_are_timed_densely(tmp_path):
    torch.manual_seed(0)
    model, ids = Reshaped().eval(), torch.arange(40).view(1, 40)
    recipe = {**RECIPE, "sparsify": [{**RECIPE["sparsify"][0], "targets": ["param:linear.weight"]}]}
    with options.override(tune_seconds=0.01, cache_dir=tmp_path):
        sparse = sparsify.apply(model, recipe, ids, trainable=False)
    torch.testing.assert_close(sparse(ids), model(ids), rtol=1e-4, atol=1e-5)
