"""A call of a model captured and taken through all passes.

In: a model, a recipe and a call like those that will come. Out: a `Draft` whose graph calls kernels.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import torch
from torch import fx, nn

from sparsify import options as settings
from sparsify.compiler.cpp.build import has_compiler
from sparsify.errors import CaptureError, RecipeError
from sparsify.passes import pipeline
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import Asked, Draft, Key, Notices, Stored
from sparsify.passes.capture.example_extents import note_extents
from sparsify.passes.capture.export import Dynamic, capture
from sparsify.passes.capture.libraries import transformers_experts
from sparsify.passes.choose.autotune import shared_seconds
from sparsify.passes.choose.left_dense import EXPERTS, report_left
from sparsify.passes.choose.torch_cost import bytes_of
from sparsify.passes.graph.node_info import info
from sparsify.passes.module import recurrent
from sparsify.passes.pipeline import PASSES
from sparsify.report import Choice
from sparsify.report_text import fold
from sparsify.storage.own_memory import runs_natively

# For as many regions as this the seconds of each are spent; most races are over sooner.
REGIONS: Final = 15
# Of a result that is dense where the model would return a sparse tensor.
MOST_BYTES: Final = 1 << 30


def drafted(
    source: nn.Module,
    asked: Asked,
    call: calls.Call,
    tensors: Sequence[torch.Tensor],
    dynamic: Dynamic,
    notices: Notices,
    stored: Mapping[Key, Stored],
    known: Mapping[str, torch.Tensor],
    is_mirror: bool = False,
    has_general: bool = True,
) -> Draft:
    """The draft for calls like `call`; experts that no kernel computes run as the model has them.

    Args:
        source: the model.
        tensors: of the call.
        stored: how weights are packed already.
        known: constants of earlier captures.
        is_mirror: whether `source` is a mirror of the model that other threads run.
        has_general: whether the front end makes regions.

    Raises:
        CaptureError: as `capture`; that of experts that no kernel computes and no graph can hold.
    """

    @recurrent.settled(source)
    def made(mode: AbstractContextManager[Any], asked: Asked, without: Collection[str] = ()) -> Draft:
        captured = capture(
            source,
            call,
            dynamic,
            masks=asked.has_masks,
            gates=asked.has_gates,
            without=without,
            known=known,
            trains=asked.is_trainable(source.training),
            is_mirror=is_mirror,
            within=mode,
        )
        report = replace(asked.report(type(source).__name__), specialised=captured.specialised)
        examples = dict(zip(call.shape.tensor_names(), tensors, strict=True))
        given = captured, source, asked, report, _options(asked, [*tensors, *source.parameters()]), examples
        return _run_passes(Draft(*given, notices=notices, stored=stored, has_general=has_general))

    found = made(asked)
    left = transformers_experts.left_over(found.graph, source) if asked.has_gates else []
    if not left:
        return found
    reasons = {name: _reason(found, name) for name in left}
    try:
        found = made(replace(asked, recipe=asked.recipe.with_optional_rules("gate")), left)
    except CaptureError as error:
        whys = "; ".join(f"no kernel computes {name}: {why}" for name, why in reasons.items())
        raise CaptureError(f"{whys}; {error}") from error
    except RecipeError as error:  # rules name nodes that are others now
        found.report.warnings.append(f"all experts of {', '.join(fold(left))} are computed: {error}")
        return found
    _list_experts(found, reasons)
    return found


def _list_experts(draft: Draft, reasons: Mapping[str, str]) -> None:
    """Lists experts that run as the model has them, by name with the reason, and warns unless that is a choice."""
    for name, why in reasons.items():
        text = f"{why}; the model's own experts run"
        draft.report.left_dense(name, EXPERTS, name, Choice(text) if isinstance(why, Choice) else text)
    report_left(draft)


def _require_sparse(draft: Draft) -> None:
    """Raises where an operator still reads a sparse input as a dense tensor, or the result is one that is too large.

    Raises:
        CaptureError: it names the operators, or the result.
    """
    names = draft.captured.written_out
    results = draft.graph.output_node().all_input_nodes if names else []
    large = next((node for node in results if bytes_of(node) > MOST_BYTES), None)
    if large is not None:
        raise CaptureError(
            f"{large.name} of a sparse input is returned, and has {bytes_of(large):,} bytes as a dense tensor"
        )
    if names and any(info(node).is_made_dense for node in draft.graph.nodes):
        raise CaptureError(
            f"{', '.join(names)}: no kernel computes this of a sparse input, and it is not made dense while capturing"
        )


def _run_passes(draft: Draft) -> Draft:
    """The draft after all passes; results that stand for others in its graph are dropped."""
    note_extents(draft.graph, draft.examples, lambda name: draft.captured.tensor(draft.model, name))
    with shared_seconds(REGIONS * draft.options.tune_seconds):
        try:
            draft = pipeline.run(PASSES, draft)
        finally:
            clear_fake_results(draft.graph)
    _require_sparse(draft)
    return draft


def _options(asked: Asked, tensors: Iterable[torch.Tensor]) -> settings.Options:
    """The options in force here for a model with these tensors, with those of a recipe."""
    current = settings.current()
    if asked.recipe.compile.threads is not None:
        current = replace(current, threads=asked.recipe.compile.threads)
    if not has_compiler(current) or not runs_natively(tensors):
        current = replace(current, tune_seconds=0.0)  # there is nothing to choose from
    if asked.strict or asked.recipe.compile.fallback == "error":
        current = replace(current, strict=True)
    return current


def _reason(draft: Draft, name: str) -> str:
    """Why no kernel computes the experts of this name."""
    found = (entry for entry in draft.report.dense if entry.scope.partition("@")[0] == name)
    entry = next(found, None)
    if entry is None:
        return Choice("no rule chose its gate")
    return Choice(entry.reason) if entry.chosen else entry.reason


def clear_fake_results(graph: fx.Graph) -> None:
    """Empties the cache of fake-tensor results of a graph: torch.export keeps its shape environment for good."""
    for node in graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            getattr(mode.shape_env, "fake_tensor_cache", {}).clear()
            return
