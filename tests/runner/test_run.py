"""Whole runs: a model trained, made sparse, verified and timed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional as F

from sparsify import options
from sparsify.compiler.cpp.toolchain import cache
from sparsify.errors import SparsifyError
from sparsify.models import data, inputs, train
from sparsify.models.data.graph import Graph
from sparsify.models.data.synthetic import synthetic
from sparsify.passes.apply import apply
from sparsify.passes.graph.operators import operator_name
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.runner.request import resolve
from sparsify.runner.result import Result
from sparsify.runner.run import dense_model, run
from tests.page.pages import checked
from tests.sampling import chosen

QUICK = {"epochs": 2, "hidden": 8}
NOTHING = {"schema": 1, "name": "nothing", "sparsify": [{"targets": ["input:none"], "optional": True}]}


class Runs(NamedTuple):
    """Two runs of the same model with the same cache, and the folder where the first one wrote its files."""

    first: Result
    again: Result
    folder: Path


def small_graph() -> Graph:
    return synthetic(nodes=200, edges=800, features=50)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache on disk of each test's own, and no kernel in memory that another test built."""
    monkeypatch.setattr(cache._memory, "libraries", {})
    with options.override(cache_dir=tmp_path / "cache"):
        yield


@pytest.fixture
def small(monkeypatch):
    """Every data set is a graph of 200 nodes."""
    graph = small_graph()
    monkeypatch.setattr(data, "load", lambda name, root, seed: graph)
    return graph


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs that tests read and leave as they are."""
    folder, graph = tmp_path_factory.mktemp("runs"), small_graph()
    with (
        pytest.MonkeyPatch.context() as patch,
        options.override(cache_dir=folder / "cache", compiler_flags=("-O0",)),
    ):
        patch.setattr(data, "load", lambda name, root, seed: graph)
        patch.setattr(cache._memory, "libraries", {})
        files = {"out": folder / "out", "html": folder / "pages/gcn.html", "trace": folder / "gcn.json"}
        first = run("gcn", overrides=QUICK, seconds=0.0, quiet=True, **files)
        again = run("gcn", overrides=QUICK, seconds=0.0, quiet=True)
    return Runs(first, again, folder)


def check_verified(result: Result) -> None:
    assert result.verified
    assert result.exit_status == 0
    assert result.largest_error < 1e-4
    assert result.dense.accuracy == result.sparse.accuracy
    assert len(result.dense.timing.runs_ms) == len(result.sparse.timing.runs_ms) == 3
    assert result.report.regions
    assert all(entry.estimated_us > 0 and entry.measured_us > 0 for entry in result.report.regions)
    assert sum(result.kernels.values()) >= 1
    rules = [entry.rule for entry in result.report.rules if entry.matched]
    assert [other.name for other in result.others] == ["torch", *rules[:-1]]
    assert all(other.agrees and len(other.timing.runs_ms) == 3 for other in result.others)


def test_a_run_is_verified(runs):
    check_verified(runs.first)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", ["gcn-matmul", "sage", "gin", "gat"])
def test_every_model_is_verified(small, model):
    check_verified(run(model, overrides=QUICK, seconds=0.0, quiet=True))


def test_second_run_finds_weights_and_kernels(runs):
    assert (runs.first.training["reused"], runs.again.training["reused"]) == (False, True)
    assert runs.first.kernels["built"] >= 1
    assert runs.again.kernels["built"] == 0


def test_recipe_that_makes_nothing_sparse_is_a_negative_result(small):
    result = run("gcn", recipe=NOTHING, dataset="synthetic", overrides=QUICK, seconds=0.0, quiet=True)
    assert result.exit_status == 1
    assert "no part of the model became sparse" in str(result)


@pytest.mark.sampled(2)
def test_tolerance_of_the_recipe_is_what_counts(small):
    exact = {
        "schema": 1,
        "name": "exact",
        "sparsify": [{"targets": ["op:message_passing"], "format": "csr"}],
        "verify": {"rtol": 0.0, "atol": 0.0},
    }
    result = run("gcn", recipe=exact, dataset="synthetic", overrides=QUICK, seconds=0.0, quiet=True)
    assert result.agrees == (result.largest_error == 0.0)


def test_files_are_written(runs):
    out = runs.folder / "out"
    assert json.loads((out / "result.json").read_text())["verified"] is True
    assert {path.name for path in out.iterdir()} == {
        "result.json",
        "times.csv",
        "report.txt",
        "report.html",
    }


def test_a_page_and_a_trace_are_written(runs):
    page, trace, result = runs.folder / "pages/gcn.html", runs.folder / "gcn.json", runs.first
    seen = checked(page.read_text(encoding="utf-8"))
    assert f"Faster by {result.ratio:.2f}x" in seen.text
    assert f"Differs by {result.largest_error:.2g}" in seen.text
    assert "sparsify run gcn" in seen.text and "not known" not in seen.text
    assert {"region_1", "call", "sparsity"} <= set(seen.ids)
    names = [event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"]]
    assert any(name.startswith("region_1: ") for name in names)


def test_a_page_that_cannot_be_written_is_said_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", lambda *_: pytest.fail("data were loaded first"))
    with pytest.raises(SparsifyError, match="a folder"):
        run("gcn", html=tmp_path, quiet=True)


def test_output_folder_is_tried_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(data, "load", lambda *_: pytest.fail("data were loaded first"))
    with pytest.raises(SparsifyError, match="cannot write results into"):
        run("gcn", out=tmp_path / "file/out", quiet=True)


def test_preview_lists_tensors_formats_and_programs_without_training(small, tmp_path):
    from sparsify.runner.preview import preview

    seen = preview(resolve("gcn", overrides=QUICK))
    rows = {row.rule: row for row in seen.rows}
    assert set(rows) == {"adjacency", "features"}
    features = rows["features"]
    assert features.tensor == "x"
    assert features.density == pytest.approx(small.feature_density)
    assert features.bytes_before == small.x.nbytes
    assert 0 < features.bytes_after < features.bytes_before
    layers = [row.kernels for row in seen.rows if row.rule == "adjacency"]
    assert ["relu" in " ".join(programs) for programs in layers] == [True, False]
    assert seen.to_dict()["schema"] == 1
    assert "expected kernel" in str(seen)
    assert not (tmp_path / "cache/checkpoints").exists()


@pytest.mark.sampled(6)
@pytest.mark.model
@pytest.mark.parametrize("name", [chosen(name, name == "cora") for name in ("cora", "citeseer", "pubmed")])
def test_real_graphs_keep_accuracy_logits_and_gradients(data_root, name):
    short = {"hidden": 16, "epochs": 60 if name == "cora" else 10, "validate_every": 5}
    result = run("gcn", dataset=name, data_root=data_root, overrides=short, seconds=0.0, quiet=True)
    assert result.verified
    assert result.largest_error <= 1e-4
    assert result.dense.accuracy == result.sparse.accuracy
    if name == "cora":
        assert result.sparse.accuracy >= 0.80
    request = resolve("gcn", dataset=name, data_root=data_root, overrides=short)
    graph = data.load(request.dataset, request.data_root, request.seed)
    model = dense_model(request, graph, retrain=False).model
    example = inputs.example_inputs(request.entry, graph)
    sparse = apply(model, request.recipe, tuple(example), verify=False)
    assert len(sparse.report.regions) == 2
    left = {operator_name(node) for node in sparse.graph.nodes if node.op == "call_function"}
    assert not left & {"index_select", "index", "scatter_add", "index_add", "mul"}, (
        "aggregation is in kernels"
    )
    gradients = []
    for net in (model, sparse):
        loss = F.cross_entropy(net(*example)[graph.train], graph.y[graph.train])
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for want, have in zip(*gradients, strict=True):
        assert float((want - have).abs().max()) <= 1e-4 * max(1.0, float(want.abs().max()))


def test_training_steps_are_compared(runs):
    result = runs.first
    steps = result.steps
    assert steps is not None and steps.sample_ms is None
    assert len(steps.dense.runs_ms) == len(steps.sparse.runs_ms) == 3
    assert steps.losses[0] == pytest.approx(steps.losses[1], rel=1e-4)
    assert "training step" in str(result) and "the whole graph" in str(result)
    assert result.to_dict()["steps"]["ratio"] == steps.ratio


@pytest.mark.sampled(6)
@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_sampled_training_of_both_models_is_the_same(small, model):
    result = run(model, overrides=QUICK, batch_size=16, fanout="4,3", seconds=0.0, quiet=True)
    steps = result.steps
    assert steps is not None and steps.sample_ms is not None and steps.accuracies is not None
    assert steps.losses[0] == pytest.approx(steps.losses[1], rel=1e-4)
    assert steps.accuracies[0] == pytest.approx(steps.accuracies[1], abs=0.05)
    assert result.verified and not result.training["reused"]
    assert "16 nodes and 4x3 neighbours, 2 epochs" in str(result)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("weights", [None, "0.5"])
def test_the_sparse_model_is_trained_instead_of_the_dense_one(small, monkeypatch, weights):
    trained = []
    monkeypatch.setattr(
        train, "step", lambda model, *rest, step=train.step: (trained.append(model), step(model, *rest))
    )
    request = resolve("gcn", overrides=QUICK | {"dropout": 0.0}, sparse=True, sparse_weights=weights)
    found = dense_model(request, small, retrain=False)
    assert trained and all(isinstance(model, SparseModule) for model in trained)
    assert dense_model(request, small, retrain=False).reused
    if weights is None:  # pruned weights lose their zeros when they are trained densely
        usual = dense_model(resolve("gcn", overrides=QUICK | {"dropout": 0.0}), small, retrain=False)
        assert not usual.reused
        for want, have in zip(usual.model.parameters(), found.model.parameters(), strict=True):
            torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-4)
    result = run("gcn", overrides=QUICK, sparse=True, sparse_weights=weights, seconds=0.0, quiet=True)
    assert result.verified and "2 epochs" in str(result) and "of the sparse model" in str(result)


@pytest.mark.parametrize("model, more", [("bert", {}), ("gcn", {"batch_size": 16, "fanout": "4,3"})])
def test_training_that_there_is_not_is_refused_before_anything(monkeypatch, model, more):
    monkeypatch.setattr(data, "load", lambda *_: pytest.fail("data were loaded first"))
    with pytest.raises(SparsifyError, match="--sparse"):
        run(model, sparse=True, quiet=True, **more)


def test_losses_that_differ_are_not_verified(runs):
    assert runs.again.verified and runs.again.steps is not None
    result = replace(runs.again, steps=replace(runs.again.steps, losses=(1.0, 1.1)))
    assert not result.verified and result.exit_status == 1
    assert "losses of training differ" in str(result)


@pytest.mark.sampled(3)
def test_pruned_weights_are_those_of_both_models(small):
    result = run("gcn", overrides=QUICK, sparse_weights="0.5", seconds=0.0, quiet=True)
    assert result.steps is not None
    assert result.steps.losses[0] == pytest.approx(result.steps.losses[1], rel=1e-4)
    assert result.verified
