"""One run: load, train, apply, verify, time.

In: `run("gcn", dataset="synthetic")`. Out: a `RunResult`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from sparsify.errors import SparsifyError
from sparsify.models import inputs, train
from sparsify.models.data import Graph
from sparsify.models.train import Training
from sparsify.models.trained import Trained, trained
from sparsify.options import current, override
from sparsify.page.contents import Details
from sparsify.passes import saved_folder
from sparsify.passes.capture.draft import ApplyRequest
from sparsify.passes.capture.shell import shared_copy
from sparsify.passes.module.prune_and_capture import pruned, sparse_module
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.save import save as save_model
from sparsify.recipe import Recipe
from sparsify.report import Origin
from sparsify.runner import measure
from sparsify.runner.alternatives import Alternative, alternatives, difference, one_pass
from sparsify.runner.measure import Call, Timing
from sparsify.runner.peers.baselines import Baseline, Baselines, parsed
from sparsify.runner.progress import Progress
from sparsify.runner.pruned_result import PrunedResult, masks, weights
from sparsify.runner.request import Request, resolve
from sparsify.runner.result import Contender, Result, RunResult, conversion_ms
from sparsify.runner.subject import Subject, subject
from sparsify.runner.training import EPOCHS, Steps, full_steps, sampled_steps, sparse_twin
from sparsify.runtime.machine import machine

# Passes for the median time of each region; a slow model runs one pass.
REPEATS: Final = 5
# Turns of the first table of a slow model, whose final table has more.
FIRST_TURNS: Final = 2


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
    batch_size: int | None = None,
    fanout: str | None = None,
    sparse: bool = False,
    retrain: bool = False,
    seconds: float = 4.0,
    quiet: bool = False,
    out: str | PathLike[str] | None = None,
    html: str | PathLike[str] | None = None,
    trace: str | PathLike[str] | None = None,
    save: str | PathLike[str] | None = None,
    baseline: str | Sequence[str] | None = None,
) -> Result:
    """Compares the dense model with the model under a recipe: difference, time, memory, accuracy on graphs.

    Args:
        model, recipe: a registered name; a path, a built-in name, a mapping or a `Recipe`, else the model's own.
        dataset, data_root: one of the model's data sets, and the folder of real data (read only).
        overrides, seed: arguments of the recipe, the model or the training; the seed of all random numbers.
        sparse_weights: pruning of linear layers, as `0.9` or `2:4`; by default the recipe's.
        sparse_attn, layers: pattern of attention, as `bigbird`, of all layers or `0,2-5`; alone, disables pruning.
        batch, seq: rows and tokens of the input without a graph.
        batch_size, fanout: seed nodes of a step on sampled neighbourhoods, and neighbours per hop, as `10,10`.
        sparse, retrain: train the sparse model of a graph; train in spite of cached weights.
        seconds: time budget for both models; at least five turns, three if these exceed twice the budget.
        quiet: show no progress on standard error.
        out: a folder for result.json, times.csv, report.txt and report.html.
        baseline: further libraries for the dense model, in the syntax of `--baseline`.
        html, trace, save: files for a report page and the trace of a call; a folder for the sparse model with kernels.

    Raises:
        SparsifyError: an unknown name or option, or missing data, packages or compiler.
    """
    given: dict[str, Any] = {"batch": batch, "seq": seq, "batch_size": batch_size, "fanout": fanout}
    given |= {"sparse_weights": sparse_weights, "sparse_attn": sparse_attn, "layers": layers}
    request = resolve(
        model,
        recipe=recipe,
        dataset=dataset,
        data_root=data_root,
        overrides=overrides,
        seed=seed,
        sparse=sparse,
        **given,
    )
    with override(quiet=quiet or current().quiet):
        files: dict[str, Any] = {"out": out, "html": html, "trace": trace, "save": save}
        return run_request(request, retrain=retrain, seconds=seconds, baseline=parsed(baseline), **files)


def run_request(
    request: Request,
    *,
    retrain: bool = False,
    seconds: float = 4.0,
    out: str | PathLike[str] | None = None,
    html: str | PathLike[str] | None = None,
    trace: str | PathLike[str] | None = None,
    save: str | PathLike[str] | None = None,
    baseline: tuple[str, ...] | None = None,
    command: str = "",
) -> Result:
    """`run` for a complete request; `command` is shown on pages as the way to repeat the run."""
    place = None if out is None else output_folder(out)
    page, events = (None if file is None else output_file(file) for file in (html, trace))
    kept = None if save is None else output_folder(save)
    if kept is not None:
        saved_folder.require_ours(kept, has_graphs=True)
    asked, training, steps = subject(request), None, None
    graph, example = asked.graph, asked.example
    if graph is not None and request.batch_size is not None:
        steps = sampled_steps(request, asked.model, example, graph)
        training = of_steps(request, asked.model, steps)
    elif graph is not None:
        training = dense_model(request, graph, retrain=retrain)
        asked = replace(asked, model=training.model)
        steps = full_steps(request, training.model, example, graph, seconds)
    wanted = () if baseline is None and graph is not None else baseline
    looks = Looks(place is not None or page is not None, events, kept, Baselines(wanted))
    result = compare(request, asked, training, seconds, looks)
    if isinstance(result, RunResult):
        result.steps = steps
    if place is not None:
        result.write(place, command)
    if page is not None:
        result.to_html(page, command)
    return result


def output_folder(out: str | PathLike[str]) -> Path:
    """The folder for results, made before anything takes time."""
    place = Path(out).expanduser()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SparsifyError(f"cannot write results into {place}: {error}", "choose another folder") from None
    return place


def output_file(file: str | PathLike[str]) -> Path:
    """The path of a file for results; creates the parent folder, so that a bad path fails early."""
    path = Path(file).expanduser()
    if path.is_dir():
        raise SparsifyError(f"cannot write results to {path}: a folder", "give the path of a file in it")
    output_folder(path.parent)
    return path


def dense_model(request: Request, graph: Graph, *, retrain: bool) -> Trained:
    """The trained model of the request, trained by a sparse twin if requested."""
    settings, note = train.settings_for(graph, request.seed)
    usual, example = inputs.training_inputs, inputs.example_inputs(request.entry, graph)
    return trained(
        request.entry,
        request.arguments,
        graph,
        example if request.trains_sparse else usual(request.entry, graph),
        replace(settings, **request.training),
        note="" if "epochs" in request.training else note,
        retrain=retrain,
        twin=sparse_twin(request, example) if request.trains_sparse else None,
    )


def of_steps(request: Request, model: nn.Module, steps: Steps) -> Trained:
    """Record of a training by sampled steps; the weights are not cached."""
    epochs = request.training.get("epochs", EPOCHS)
    seconds = sum(steps.dense.runs_ms) / 1e3
    return Trained(model, Training(epochs, seconds, 0.0, steps.text), Path(), reused=False)


@dataclass(frozen=True, slots=True)
class Looks:
    """Requested results of a run: details for a page, a trace, a folder to serve, other libraries' times."""

    has_page: bool = False
    trace: Path | None = None
    save: Path | None = None
    baselines: Baselines = field(default_factory=Baselines)

    def keep(self, sparse: SparseModule) -> None:
        """Writes the model into the folder `save`, if any.

        Raises:
            DataError: the model cannot be served, or the folder cannot be written.
        """
        if self.save is not None:
            save_model(sparse, self.save, kernels=True)

    def at(self, sparse: SparseModule, example: Sequence[Tensor]) -> Details:
        """Details for the page, of a call if the model was captured; writes the trace."""
        if self.trace is not None:
            sparse.report.to_trace(self.trace, tuple(example))
        if not self.has_page:
            return Details()
        origin = sparse.report.origin or Origin()
        return origin.details(tuple(example) if sparse.variants else None, compares=False)


def compare(
    request: Request, asked: Subject, training: Trained | None, seconds: float, looks: Looks
) -> Result:
    """Makes a model sparse and runs the dense and the sparse model, with the same pruned weights.

    Args:
        request: model, recipe and data.
        asked, training: the model before pruning, with inputs; training of a model on a graph.
        seconds, looks: time budget for both models, and further requested results.
    """
    recipe = request.recipe
    how = ApplyRequest(recipe, verify=False, trainable=False)
    source = pruned(asked.model, how, asked.example)
    # Frozen weights of the source are packed: the dense model keeps its own references.
    dense = source.model if source.model is asked.model else shared_copy(source.model).eval()
    call = one_pass(dense, asked.example)
    expected, dense_first = measure.once(call)
    progress = Progress(request.entry.name, asked.text, dense_first)
    progress.begun()
    sparse, apply_ms = measure.once(lambda: sparse_module(source, how))
    progress.applied(apply_ms)
    in_apply_ms = conversion_ms(sparse.report)
    found, sparse_first = measure.once(sparse_call := one_pass(sparse, asked.example))
    in_first_ms = conversion_ms(sparse.report) - in_apply_ms
    looks.keep(sparse)  # early: a model that cannot be saved ends the run before timing
    accuracies = [accuracy(asked.graph, scores) for scores in (expected, found)]
    reference = expected
    if how.has_masks:  # the dense model attends to everything: another result
        expected = one_pass(sparse.original, asked.example)()
    error, agrees = difference(expected, found, recipe)
    others, more = alternatives(request, asked, dense, expected, sparse.report)
    facts: dict[str, Any] = {
        "largest_error": error,
        "agrees": agrees,
        "apply_ms": apply_ms,
        "conversions_ms": (in_apply_ms, in_first_ms),
        "report": sparse.report,
    }
    how_long: dict[str, Any] = {"seconds": seconds, "is_warm": dense_first > measure.LONG_MS}

    def timed(*theirs: Call, most: int = measure.MOST) -> list[Timing]:
        timings = measure.interleave(
            call, sparse_call, *theirs, *more, **how_long, most=most, told=progress.turn
        )
        timings[0].first_ms, timings[1].first_ms = dense_first, sparse_first
        return timings

    result = partial(result_of, request, asked, training, dense, accuracies, others)
    timings = timed(most=FIRST_TURNS) if progress.is_told and looks.baselines.are_wanted else []
    if timings:  # other libraries take long: the table without them comes first
        progress.show(result(timings, (None, None), facts))
    baselines, theirs = looks.baselines.made(dense, asked.example, reference)
    timings = joined([] if theirs else timings, timed(*theirs))
    note_times(baselines, timings[2:])
    with torch.no_grad():
        sparse.measure(*asked.example, repeats=1 if timings[1].median_ms > measure.LONG_MS else REPEATS)
    peaks = [measure.peak_bytes(run) for run in (call, sparse_call)]
    facts |= {"details": looks.at(sparse, asked.example), "baselines": baselines}
    return result(timings, peaks, facts)


def result_of(
    request: Request,
    asked: Subject,
    training: Trained | None,
    dense: nn.Module,
    accuracies: Sequence[float | None],
    others: Sequence[Alternative],
    timings: Sequence[Timing],
    peaks: Sequence[int | None],
    facts: Mapping[str, Any],
) -> Result:
    """The result of a run.

    Args:
        request, asked, training: as in `compare`.
        dense: the pruned model.
        accuracies, peaks: of the dense and the sparse model.
        others: alternatives; their times are the last ones.
        timings: times of the dense model, the sparse model, baselines and alternatives.
        facts: further fields of the result.
    """
    contenders = [Contender(*known) for known in zip(accuracies, timings[:2], peaks, strict=True)]
    shared: dict[str, Any] = {
        "model": request.entry.name,
        "arguments": dict(request.arguments),
        "recipe": request.recipe.name,
        "seed": request.seed,
        "dense": contenders[0],
        "sparse": contenders[1],
        "tolerance": {"rtol": request.recipe.verify.rtol, "atol": request.recipe.verify.atol},
        "machine": machine(),
        **facts,
    }
    if asked.graph is None or training is None:
        return pruned_result(request, asked, dense, shared)
    last = timings[len(timings) - len(others) :]
    more = [replace(other, timing=timing) for other, timing in zip(others, last, strict=True)]
    told = described_training(request, training)
    return RunResult(**shared, data=described(asked.graph), training=told, others=more)


def joined(first: Sequence[Timing], timings: list[Timing]) -> list[Timing]:
    """The timings with the runs of earlier turns of the same calls, if any, in front."""
    for before, timing in zip(first, timings, strict=False):
        timing.runs_ms = [*before.runs_ms, *timing.runs_ms]
    return timings


def note_times(baselines: Sequence[Baseline], timings: Sequence[Timing]) -> None:
    """Stores the times of the running baselines in place."""
    running = [baseline for baseline in baselines if not baseline.reason]
    for baseline, timing in zip(running, timings, strict=False):
        baseline.timing.runs_ms = timing.runs_ms


def pruned_result(request: Request, asked: Subject, dense: nn.Module, shared: dict[str, Any]) -> PrunedResult:
    """The result of a model without a graph."""
    data = {"name": request.dataset, "inputs": asked.text}
    known = weights(asked.model, dense, request.arguments.get("checkpoint", ""))
    return PrunedResult(**shared, data=data, weights=known, masks=masks(shared["report"]))


def accuracy(graph: Graph | None, scores: Tensor) -> float | None:
    """Accuracy on the test nodes; `None` without a graph."""
    return None if graph is None else train.accuracy(scores, graph.y, graph.test)


def described_training(request: Request, training: Trained) -> dict[str, Any]:
    """The note about weights under the table."""
    known = {"reused": training.reused, "weights": str(training.file), "trains_sparse": request.trains_sparse}
    return {**asdict(training.training), **known}


def described(graph: Graph) -> dict[str, Any]:
    """The note about data under the table."""
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
