"""Kernels over adjacencies against torch's products and operators: the winner runs for calls like the example's."""

import copy
import time
from dataclasses import replace
from typing import Any

import graph_models
import pytest
import torch
from graph_models import MESSAGES, HandWritten, Kipf, TwoLayers, graph
from torch import nn

import sparsify
from sparsify import options
from sparsify.compiler.kernel import decision_cache
from sparsify.compiler.kernel.least_time import Least
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.choose import adjacency, autotune
from sparsify.passes.module import capture_call

ADJACENCY = {"schema": 1, "name": "own", "sparsify": [{"targets": ["input:edge_index"], "format": "csr"}]}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # sums in another order
OTHERS = ("torch's CSR", "its own operators")


@pytest.fixture
def model() -> TwoLayers:
    torch.manual_seed(0)
    return TwoLayers(HandWritten).eval()


@pytest.fixture(autouse=True)
def regions_alone(monkeypatch):
    """Alternatives of single regions are looked at: whole calls by torch's operators are no choice."""
    monkeypatch.setattr(capture_call, "measure", lambda *_: None)


def won_by(monkeypatch: pytest.MonkeyPatch, name: str, agreeing: int = 1) -> list[list[str]]:
    """As if the alternative of this name were the fastest, or with "" the kernel; the names in each race."""
    met: list[list[str]] = []
    candidates = adjacency.candidates

    def all_candidates(call: Any, arguments: Any, tried: Any) -> Any:
        met.append([one.name for one in tried])
        return candidates(call, arguments, tried)

    def race(calls: Any, seconds: float) -> list[Least]:
        order = ["", *met[-1]]
        assert len(calls) == len(order), "every alternative computes what the kernel does"
        return [Least(agreeing, 0.0, [5.0 if order[n] == name else 10.0]) for n in range(len(calls))]

    monkeypatch.setattr(adjacency, "candidates", all_candidates)
    monkeypatch.setattr(autotune, "race", race)
    always(monkeypatch, most=4)
    return met


def always(monkeypatch: pytest.MonkeyPatch, slower: float = float("inf"), **changes: Any) -> None:
    """All alternatives are timed, whatever they and the kernel are expected to take."""
    threshold = replace(autotune.THRESHOLDS["alternative"], least_us=0.0, slower=slower, **changes)
    monkeypatch.setitem(autotune.THRESHOLDS, "alternative", threshold)


def applied(model: nn.Module, args: Any, cache: Any, recipe: Any = MESSAGES, **asked: Any) -> Any:
    with options.override(tune_seconds=1.0, cache_dir=cache):
        return sparsify.apply(model, recipe, args, **asked)


def regions(module: Any) -> list[RegionCall]:
    return [region for variant in module.variants for region in variant.regions]


def notes(module: Any) -> list[str]:
    return [n for entry in module.report.regions for n in entry.notes if n.startswith("beside the kernel")]


def counted(module: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every call that a alternative takes."""
    calls: list[int] = []
    by_alternative = RegionCall.by_alternative

    def count(self: RegionCall, *given: Any) -> Any:
        found = by_alternative(self, *given)
        calls.extend([1] * (found is not None))
        return found

    monkeypatch.setattr(RegionCall, "by_alternative", count)
    return calls


@pytest.mark.parametrize("name", OTHERS)
def test_the_winner_runs_where_sizes_are_alike(model, monkeypatch, tmp_path, name):
    met = won_by(monkeypatch, name)
    sparse = applied(model, graph(), tmp_path)
    assert {name for names in met for name in names} == set(OTHERS)
    assert all(region.preferred.alternative.name == name for region in regions(sparse))
    assert all(f"{name} runs where sizes are like these" in note for note in notes(sparse))
    assert len(notes(sparse)) == 2
    calls = counted(sparse, monkeypatch)
    with torch.no_grad():
        for seed in range(2):
            x, edge_index = graph(seed=seed)
            torch.testing.assert_close(sparse(x, edge_index), model(x, edge_index), **CLOSE)
    assert len(calls) == 4
    with torch.no_grad():
        x, edge_index = graph(nodes=30, edges=90)
        torch.testing.assert_close(sparse(x, edge_index), model(x, edge_index), **CLOSE)
    assert len(calls) == 4
    assert len(sparse.variants) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OTHERS)
def test_gradients_are_those_of_the_kernel(model, monkeypatch, tmp_path, name):
    won_by(monkeypatch, name)
    sparse = applied(model, graph(), tmp_path)
    assert sparse.verify_gradients(*graph()) < 1e-4
    x, edge_index = graph()
    x.requires_grad_()
    (expected,) = torch.autograd.grad(model(x, edge_index).square().sum(), x)
    for run in (sparse, torch.compile(sparse, backend="aot_eager", fullgraph=True)):
        (found,) = torch.autograd.grad(run(x, edge_index).square().sum(), x)
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OTHERS)
def test_copies_traces_and_inference(model, monkeypatch, tmp_path, name):
    won_by(monkeypatch, name)
    sparse = applied(model, graph(), tmp_path)
    x, edge_index = graph()
    calls = counted(sparse, monkeypatch)
    with torch.inference_mode():
        expected = model(x, edge_index)
        torch.testing.assert_close(sparse(x, edge_index), expected, **CLOSE)
        torch.testing.assert_close(copy.deepcopy(sparse)(x, edge_index), expected, **CLOSE)
    with torch.no_grad():
        compiled = torch.compile(sparse, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, edge_index), expected, **CLOSE)
    assert len(calls) == 6
    many = torch.stack([x, 2 * x])
    found = torch.func.vmap(sparse, in_dims=(0, None))(many, edge_index)
    torch.testing.assert_close(found, torch.stack([model(one, edge_index) for one in many]), **CLOSE)
    assert len(calls) == 6


def test_what_was_timed_is_found_again_and_loaded(model, monkeypatch, tmp_path):
    won_by(monkeypatch, "torch's CSR")
    first = applied(model, graph(), tmp_path / "cache")
    sparsify.save(first, tmp_path / "model")
    monkeypatch.setattr(adjacency, "candidates", lambda *_: pytest.fail("timed again"))
    with options.override(tune_seconds=1.0, cache_dir=tmp_path / "cache"):
        second = sparsify.load(tmp_path / "model", TwoLayers(HandWritten), graph())
    assert notes(first) == notes(second)
    assert [region.preferred.alternative.name for region in regions(second)] == ["torch's CSR"] * 2
    with torch.no_grad():
        torch.testing.assert_close(second(*graph()), model(*graph()), **CLOSE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "agreeing", "told"),
    [("", 1, ": the kernel runs"), (OTHERS[0], 2, " (other work disturbed it): the kernel runs")],
)
def test_the_kernel_stays(model, monkeypatch, tmp_path, name, agreeing, told):
    won_by(monkeypatch, name, agreeing)
    monkeypatch.setattr(decision_cache, "_DOUBTED", {})
    sparse = applied(model, graph(), tmp_path)
    assert all(region.preferred is None for region in regions(sparse))
    assert all(told in note and "timed " in note for note in notes(sparse))


@pytest.mark.sampled(2)
def test_it_is_switched_off_with_all_timing(model, monkeypatch, tmp_path):
    met = won_by(monkeypatch, "torch's CSR")
    with options.override(tune_seconds=0.0, cache_dir=tmp_path):
        sparse = sparsify.apply(model, MESSAGES, graph())
    assert not met
    assert not notes(sparse)
    assert not notes(applied(model, graph(), tmp_path, trainable=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("backends", "names"),
    [(["own"], ()), (["own", "torch_sparse"], OTHERS[:1]), (["own", "torch"], OTHERS[1:2])],
)
def test_recipes_say_which_may_be_chosen(model, monkeypatch, tmp_path, backends, names):
    met = won_by(monkeypatch, "")
    applied(model, graph(), tmp_path, {**MESSAGES, "compile": {"backends": backends}}, verify=False)
    assert {name for found in met for name in found} == set(names)


def test_what_is_expected_to_be_slow_is_not_timed(model, monkeypatch, tmp_path):
    met = won_by(monkeypatch, "torch's CSR")
    always(monkeypatch, slower=0.0)
    sparse = applied(model, graph(), tmp_path)
    assert not met
    assert all(note.endswith("none near enough to be timed") for note in notes(sparse))
    assert all(name in note for note in notes(sparse) for name in OTHERS)


def test_making_a_alternative_takes_nothing_from_the_turns(model, monkeypatch, tmp_path):
    given = []
    is_right = adjacency.is_right

    def slow(*args: Any) -> bool:
        time.sleep(0.2)
        return is_right(*args)

    won_by(monkeypatch, "")
    race = autotune.race
    monkeypatch.setattr(adjacency, "is_right", slow)
    monkeypatch.setattr(
        autotune, "race", lambda calls, seconds: given.append(seconds) or race(calls, seconds)
    )
    with options.override(tune_seconds=0.2, cache_dir=tmp_path):
        sparsify.apply(model, MESSAGES, graph(), verify=False)
    assert given == [0.1, 0.1]


def test_dense_adjacencies(monkeypatch, tmp_path):
    torch.manual_seed(0)
    model, given = TwoLayers(Kipf).eval(), (torch.randn(20, 7), graph_models.adjacency())
    for name in OTHERS:
        won_by(monkeypatch, name)
        sparse = applied(model, given, tmp_path / name, ADJACENCY | {"fuse": {"max_einsums": 1}})
        assert [region.preferred.alternative.name for region in regions(sparse)] == [name] * 2
        with torch.no_grad():
            for seed in range(2):
                args = given[0], graph_models.adjacency(seed=seed)
                torch.testing.assert_close(sparse(*args), model(*args), **CLOSE)


class Weighted(nn.Module):
    """Messages of edges with weights of their own."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        messages = x.index_select(0, edge_index[0]) * weights.unsqueeze(1)
        return torch.relu(torch.zeros_like(x).index_add(0, edge_index[1], messages))


def test_graphs_that_share_weights_of_edges(monkeypatch, tmp_path):
    x, weights = graph()[0], torch.rand(55)
    keys = [torch.randperm(400)[:55].sort().values for _ in range(2)]
    one, other = (torch.stack([key % 20, key // 20]) for key in keys)  # in order: nothing sorts the weights
    model = Weighted().eval()
    won_by(monkeypatch, "torch's CSR")
    sparse = applied(model, (x, one, weights), tmp_path, ADJACENCY)
    assert [region.preferred.alternative.name for region in regions(sparse)] == ["torch's CSR"]
    with torch.no_grad():
        for edges in (one, other, one):
            torch.testing.assert_close(sparse(x, edges, weights), model(x, edges, weights), **CLOSE)


def test_a_alternative_that_fails_gives_way(model, monkeypatch, tmp_path):
    won_by(monkeypatch, "torch's CSR")
    sparse = applied(model, graph(), tmp_path)

    def fail(*_: Any) -> Any:
        raise RuntimeError("no such library")

    for region in regions(sparse):
        monkeypatch.setattr(region.preferred.alternative.run.args[0], "in_torch", fail)
    with (
        torch.no_grad(),
        pytest.warns(RuntimeWarning, match="torch's CSR failed, kernels run from now on: no"),
    ):
        torch.testing.assert_close(sparse(*graph()), model(*graph()), **CLOSE)
    assert all(region.preferred is None for region in regions(sparse))


def test_what_computes_something_else_loses(model, monkeypatch, tmp_path):
    monkeypatch.setattr(adjacency, "products_of", lambda kernel: [])
    monkeypatch.setattr(adjacency, "eager_us", lambda *_: 0.0)
    always(monkeypatch, slower=1.5)
    monkeypatch.setattr(RegionCall, "dense_result", lambda self, arguments: torch.zeros(20, 3))
    sparse = applied(model, graph(), tmp_path, verify=False)
    assert all(region.preferred is None for region in regions(sparse))
    assert all("its own operators inf" in note for note in notes(sparse))


def test_it_is_explained(model, monkeypatch, tmp_path):
    won_by(monkeypatch, "torch's CSR")
    text = str(sparsify.explain(applied(model, graph(), tmp_path)))
    assert "beside the kernel, expected" in text
    assert "torch's CSR runs where sizes are like these" in text


def test_the_race_runs_what_will_run(model, tmp_path, monkeypatch):
    """All contenders for real, for a moment: each has a time."""
    always(monkeypatch)
    with options.override(tune_seconds=0.05, cache_dir=tmp_path):
        sparse = sparsify.apply(model, MESSAGES, graph())
    assert all(f"{name} " in note.split("timed")[-1] for note in notes(sparse) for name in OTHERS)
