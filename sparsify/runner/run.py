"""One run: load, train, apply, verify, time.

In: `run("gcn", dataset="synthetic")`. Out: a `RunResult`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsify.errors import SparsifyError
from sparsify.models import data, inputs, train
from sparsify.models.data import Graph
from sparsify.models.trained import Trained, trained
from sparsify.options import current, override
from sparsify.passes.rules.prune import prune
from sparsify.recipe import Recipe
from sparsify.runner import measure
from sparsify.runner.machine import machine
from sparsify.runner.measure import Timing
from sparsify.runner.pruned import run_pruned
from sparsify.runner.request import Request, resolve
from sparsify.runner.result import Contender, Result, RunResult


def run(
    model: str,
    *,
    recipe: str | PathLike[str] | Mapping[str, Any] | Recipe | None = None,
    dataset: str | None = None,
    data_root: str | PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    seed: int | None = None,
    sparse_weights: str | None = None,
    sparse_attn: str | None = None,
    layers: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    retrain: bool = False,
    seconds: float = 4.0,
    quiet: bool = False,
    out: str | PathLike[str] | None = None,
) -> Result:
    """The dense model against the one that the recipe makes of it: difference, time, memory, on graphs accuracy.

    Args:
        model: a registered name.
        recipe: a path, a built-in name, a mapping or a `Recipe`; the model's own when not given.
        dataset: one of the model's data sets.
        data_root: the folder of real data; only read.
        overrides: arguments of the recipe, the model or the training.
        seed: of the data, the weights and the training.
        sparse_weights: how linear layers are pruned, as `0.9` or `2:4`; as the recipe says when not given.
        sparse_attn: the pattern of attention, as `bigbird` or `window`; without `sparse_weights` nothing is pruned.
        layers: those with the pattern, `0,2-5`; all when not given.
        batch, seq: rows and tokens of the input of a model that runs on no graph.
        retrain: train although there are weights in the cache.
        seconds: how long to time both models; five turns, three where they take five times as long.
        quiet: show no progress on standard error.
        out: a folder for result.json, times.csv, report.txt and report.html.

    Raises:
        SparsifyError: something asked for is not known, or data, packages or a compiler are missing.
    """
    request = resolve(
        model,
        recipe=recipe,
        dataset=dataset,
        data_root=data_root,
        overrides=overrides,
        seed=seed,
        sparse_weights=sparse_weights,
        sparse_attn=sparse_attn,
        layers=layers,
        batch=batch,
        seq=seq,
    )
    with override(quiet=quiet or current().quiet):
        return run_request(request, retrain=retrain, seconds=seconds, out=out)


def run_request(
    request: Request,
    *,
    retrain: bool = False,
    seconds: float = 4.0,
    out: str | PathLike[str] | None = None,
) -> Result:
    """As `run`, for a request that is complete."""
    place = None if out is None else output_folder(out)
    result: Result
    if request.entry.is_graph:
        graph = data.load(request.dataset, request.data_root, request.seed)
        example = inputs.example_inputs(request.entry, graph)
        dense = dense_model(request, graph, retrain=retrain)
        result = compare(request, graph, example, dense, seconds)
    else:
        result = run_pruned(request, seconds)
    if place is not None:
        result.write(place)
    return result


def output_folder(out: str | PathLike[str]) -> Path:
    """The folder for results, made before anything takes time."""
    place = Path(out).expanduser()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SparsifyError(f"cannot write results into {place}: {error}", "choose another folder") from None
    return place


def dense_model(request: Request, graph: Graph, *, retrain: bool) -> Trained:
    """The trained model that the request starts from."""
    settings, note = train.settings_for(graph, request.seed)
    return trained(
        request.entry,
        request.arguments,
        graph,
        inputs.training_inputs(request.entry, graph),
        replace(settings, **request.training),
        note="" if "epochs" in request.training else note,
        retrain=retrain,
    )


def compare(
    request: Request, graph: Graph, example: Sequence[Tensor], dense: Trained, seconds: float
) -> RunResult:
    """The result of making `dense` sparse and of running both, with the same weights where the recipe prunes."""
    from sparsify.api import apply

    model = prune(dense.model, request.recipe, run=partial(dense.model, *example))
    expected, dense_first = measure.once(one_pass(model, example))
    sparse, apply_ms = measure.once(lambda: apply(dense.model, request.recipe, tuple(example), verify=False))
    found, sparse_first = measure.once(one_pass(sparse, example))
    error, agrees = difference(found, expected, request.recipe)
    contenders = one_pass(model, example), one_pass(sparse, example)
    timings = measure.interleave(*contenders, seconds=seconds)
    timings[0].first_ms, timings[1].first_ms = dense_first, sparse_first
    with torch.no_grad():
        sparse.measure(*example)
    return RunResult(
        model=request.entry.name,
        arguments=dict(request.arguments),
        recipe=request.recipe.name,
        data=described(graph),
        training={**asdict(dense.training), "reused": dense.reused, "weights": str(dense.file)},
        seed=request.seed,
        dense=contender(graph, expected, timings[0], contenders[0]),
        sparse=contender(graph, found, timings[1], contenders[1]),
        largest_error=error,
        tolerance={"rtol": request.recipe.verify.rtol, "atol": request.recipe.verify.atol},
        agrees=agrees,
        apply_ms=apply_ms,
        report=sparse.report,
        machine=machine(),
    )


def one_pass(model: nn.Module, example: Sequence[Tensor]) -> Callable[[], Tensor]:
    """A call that runs the model once, without gradients."""

    def call() -> Tensor:
        with torch.no_grad():
            found: Tensor = model(*example)
        return found

    return call


def difference(found: Tensor, expected: Tensor, recipe: Recipe) -> tuple[float, bool]:
    """The largest absolute difference, and whether every entry is within the recipe's tolerance."""
    if found.shape != expected.shape:
        return float("inf"), False
    error = float((found - expected).abs().max()) if found.numel() else 0.0
    return error, torch.allclose(found, expected, rtol=recipe.verify.rtol, atol=recipe.verify.atol)


def described(graph: Graph) -> dict[str, Any]:
    """What a reader needs to know of the data."""
    return {
        "name": graph.name,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "feature_count": graph.x.shape[1],
        "features": graph.features,
        "feature_density": graph.feature_density,
        "classes": graph.classes,
        "fingerprint": graph.fingerprint,
    }


def contender(graph: Graph, scores: Tensor, timing: Timing, call: Callable[[], Tensor]) -> Contender:
    """Accuracy, times and memory of one of the two models."""
    return Contender(train.accuracy(scores, graph.y, graph.test), timing, measure.peak_bytes(call))
