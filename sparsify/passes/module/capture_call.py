"""Capture of calls that no existing graph of a sparse model fits; one capture at a time in the process.

In: a `SparseModule` and a call. Out: the variant for the call, taken through all passes and compared with the source
model; the variant is registered in the sparse model, and its weights are packed in the formats that the variant reads.
A failure leaves both models unchanged. Calls of known graphs run concurrently. The captured object is a `Mirror` of the
source model: calls of other threads, of the source model too, see nothing of a capture.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from sparsify import options as settings
from sparsify.compiler.cpp.toolchain.build import has_compiler
from sparsify.compiler.kernel.build_ahead import built_ahead
from sparsify.errors import CaptureError, RecipeError, VerificationError
from sparsify.passes import pipeline
from sparsify.passes.capture import calls, data_sizes
from sparsify.passes.capture.captured import Captured
from sparsify.passes.capture.draft import ApplyRequest, Draft
from sparsify.passes.capture.example_extents import note_extents
from sparsify.passes.capture.export import ReachedError, capture
from sparsify.passes.capture.libraries import transformers_experts
from sparsify.passes.capture.shell import Modes, in_modes, modes
from sparsify.passes.choose.autotune import shared_seconds
from sparsify.passes.choose.left_dense import EXPERTS, report_left
from sparsify.passes.choose.price import bytes_of
from sparsify.passes.emit.mask_gradients import drops_zeros, remember_masks
from sparsify.passes.functional.layouts import contiguous_inputs
from sparsify.passes.graph.node_info import call_of, info
from sparsify.passes.module import recurrent
from sparsify.passes.module.admit_ones import admit_ones, merged, note_general
from sparsify.passes.module.check.operator_graph import OperatorGraph, measure
from sparsify.passes.module.check.require_gain import (
    DenseTrainsFasterError,
    require_gain,
    require_training_gain,
)
from sparsify.passes.module.check.silent_prints import SILENT
from sparsify.passes.module.check.verify import naming_values, report_half, verify
from sparsify.passes.module.check.whole_call import SlowerCallError, require_faster_call
from sparsify.passes.module.piecewise import piecewise
from sparsify.passes.module.recurrent import report_refused
from sparsify.passes.module.source.hooks import drop_gradient_hooks, report_recorders
from sparsify.passes.module.variants.run_eager import compiled, eager
from sparsify.passes.module.variants.variant import Variant, return_plainly
from sparsify.passes.module.weights.hold_weights import hold_weights
from sparsify.passes.module.weights.optimizer_steps import keep_zeros_of, watch_trained
from sparsify.passes.module.weights.sparse_parameters import read_densely, sparse_parameters
from sparsify.passes.pipeline import PASSES
from sparsify.passes.rules.mark import aliases, format_text
from sparsify.passes.rules.product_weights import product_weights
from sparsify.passes.rules.prunable import passed_over
from sparsify.progress import stage, working
from sparsify.report import Choice
from sparsify.report_text import fold
from sparsify.runtime.locks import CAPTURES
from sparsify.runtime.saved_tensors import unhooked
from sparsify.storage.own_memory import runs_natively
from sparsify.storage.subclass import trained_masks
from sparsify.storage.tensor import SparseTensor

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule


# Regions whose tuning time is budgeted; most benchmarks end sooner.
REGIONS: Final = 15
# Size limit of a dense result in place of a sparse tensor of the model.
MOST_BYTES: Final = 1 << 30


def drafted(
    module: "SparseModule",
    source: nn.Module,
    call: calls.Call,
    tensors: Sequence[torch.Tensor],
    is_mirror: bool,
    has_general: bool,
    trains_dense: str = "",
    undone: Mapping[str, str] = MappingProxyType({}),
    before: Captured | None = None,
) -> Draft:
    """The draft for calls like `call`; experts without a kernel run the model's own code.

    Args:
        source: the model, or with `is_mirror` a mirror that other threads do not run.
        tensors: tensors of the call.
        has_general: whether the front end makes regions of operators without a recogniser.
        trains_dense: reason why trained weights are left to torch, "" where kernels compute with them.
        undone: reasons why no kernel computes a node, by node name.
        before: earlier capture of the same call.

    Raises:
        CaptureError: as in `capture`; no graph can hold experts that no kernel computes.
    """
    stored, constants = module._weights.stored(module.variants), module._captures.constants()

    def draft_with(
        mode: AbstractContextManager[Any], request: ApplyRequest, without: Collection[str] = ()
    ) -> Draft:
        unchanged = None if without else before
        if unchanged is None:
            more = {"shared_constants": constants, "is_mirror": is_mirror, "within": mode, "without": without}
            unchanged = _captured(source, call, request, **more)
        captured = unchanged.copied()
        captured.without = tuple(without)
        return _run_passes(
            Draft(
                captured,
                source,
                request,
                replace(request.report(type(source).__name__), specialised=captured.specialised),
                _options(request, [*tensors, *source.parameters()]),
                dict(zip(call.shape.tensor_names(), tensors, strict=True)),
                notices=module._notices,
                stored=stored,
                has_general=has_general,
                trains_dense=trains_dense,
                undone=undone,
                unchanged=None if without else unchanged,
            )
        )

    request = module._request
    draft = recurrent.settle(lambda mode: draft_with(mode, request), source, request)
    left = transformers_experts.left_over(draft.graph, source) if request.has_gates else []
    return draft if not left else _with_experts(draft, source, request, left, draft_with)


def _captured(source: nn.Module, call: calls.Call, request: ApplyRequest, **more: Any) -> Captured:
    """The capture of a call, while C++ units shared by all models are built.

    Args:
        source, call, request: as in `drafted`.
        more: further arguments of `capture`.
    """
    rules: dict[str, Any] = {"masks": request.has_masks, "gates": request.has_gates}
    with built_ahead():
        return capture(
            source, call, request.dynamic, trains=request.is_trainable(source.training), **rules, **more
        )


def _with_experts(
    draft: Draft,
    source: nn.Module,
    request: ApplyRequest,
    left: Collection[str],
    draft_with: Callable[..., Draft],
) -> Draft:
    """The draft in which experts without a kernel run the model's own code.

    Raises:
        CaptureError: no graph can hold the experts.
    """
    reasons = {name: _reason(draft, name) for name in left}
    relaxed = replace(request, recipe=request.recipe.with_optional_rules("gate"))
    try:
        draft = recurrent.settle(lambda mode: draft_with(mode, relaxed, left), source, relaxed)
    except CaptureError as error:
        whys = "; ".join(f"no kernel computes {name}: {why}" for name, why in reasons.items())
        raise CaptureError(f"{whys}; {error}") from error
    except RecipeError as error:  # rules name nodes of another graph
        draft.report.warnings.append(f"all experts of {', '.join(fold(left))} are computed: {error}")
        return draft
    _list_experts(draft, reasons)
    return draft


def _list_experts(draft: Draft, reasons: Mapping[str, str]) -> None:
    """Reports experts that run the model's own code, with reasons; warns unless the reason is a choice."""
    for name, why in reasons.items():
        text = f"{why}; the model's own experts run"
        draft.report.left_dense(name, EXPERTS, name, Choice(text) if isinstance(why, Choice) else text)
    report_left(draft)


def _require_sparse(draft: Draft) -> None:
    """Raises where an operator reads a sparse input as a dense tensor, or a dense result is too large.

    Raises:
        CaptureError: names the operators, or the result.
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
    """The draft after all passes."""
    note_extents(draft.graph, draft.examples, lambda name: draft.captured.tensor(draft.model, name))
    with shared_seconds(REGIONS * draft.options.tune_seconds):
        draft = pipeline.run(PASSES, draft)
    _require_sparse(draft)
    return draft


def _options(request: ApplyRequest, tensors: Iterable[torch.Tensor]) -> settings.Options:
    """The options in force for a model with some tensors, overridden by the recipe."""
    current = settings.current()
    if request.recipe.compile.threads is not None:
        current = replace(current, threads=request.recipe.compile.threads)
    if not has_compiler(current) or not runs_natively(tensors):
        current = replace(current, tune_seconds=0.0)  # no alternatives to time
    if request.strict or request.recipe.compile.fallback == "error":
        current = replace(current, strict=True)
    return current


def _reason(draft: Draft, name: str) -> str:
    """The reason why no kernel computes the experts of a name."""
    entries = (entry for entry in draft.report.dense if entry.scope.partition("@")[0] == name)
    entry = next(entries, None)
    if entry is None:
        return Choice("no rule chose its gate")
    return Choice(entry.reason) if entry.chosen else entry.reason


MAX_CAPTURES: Final = 8


def capture_call(
    module: "SparseModule", call: calls.Call, tensors: list[Tensor], mode: Modes
) -> Variant | None:
    """The variant for calls like `call` in a mode, captured unless another thread did so meanwhile.

    Returns None when the source model has to run; raises where the source model must not run without the masks of the
    recipe.

    Raises:
        Exception: raised by the source model for this call.
    """
    like = (mode, call.shape)
    with CAPTURES:
        variant = module._captures.fitting(like, tuple(tensor.shape for tensor in tensors))
        if like in module._captures.refused or (variant is not None and variant.general is None):
            return variant
        with working(type(module._source).__name__), unhooked():
            if variant is not None:
                return merged(module, variant, call, tensors, mode)
            if (variant := admit_ones(module, call, tensors, mode)) is not None:
                return variant
        if len(module._captures) >= MAX_CAPTURES:
            if module._request.has_masks:
                raise CaptureError(
                    f"more than {MAX_CAPTURES} captures, and the source model cannot run with the masks of its recipe",
                    "calls of fewer kinds (modes, arguments, shapes that are fixed), or the recipe applied once more "
                    "for others",
                )
            module._notices.warn(
                f"more than {MAX_CAPTURES} captures; the source model runs for calls that fit none of them: "
                "`prepare` captures the kinds of calls that matter before others come"
            )
            return None
        with working(type(module._source).__name__), unhooked():
            return captured_now(module, call, tensors, mode)


def captured_now(
    module: "SparseModule", call: calls.Call, tensors: list[Tensor], mode: Modes
) -> Variant | None:
    """The new variant for calls like `call`; None, and noted, when the source model has to run."""
    check_pruning(module, call)
    known = module._request.known_pieces
    if known is not None and not any(mode) and call.shape in known.refusals:
        refuse(module, call, mode, CaptureError(known.refusals[call.shape]), in_pieces=True)
        return None
    try:
        reason = module._request.trains_dense
        with torch.inference_mode(False), SILENT:
            draft = draft_of(module, call, tensors, mode, trains_dense=reason)
    except CaptureError as error:
        refuse(module, call, mode, error, in_pieces=True)
        return None
    try:
        return published(module, draft, call, tensors, mode)
    except CaptureError as error:
        refuse(module, call, mode, error)
        return None
    except RuntimeError as error:
        if not data_sizes.is_outside(error):
            raise
        refuse(module, call, mode, CaptureError(f"sizes that the data decides are 0 or 1: {error}"))
        return None


def published(
    module: "SparseModule", draft: Draft, call: calls.Call, tensors: list[Tensor], mode: Modes
) -> Variant:
    """The variant of a draft, or of a draft with fewer regions if results differ or the draft is slower.

    Raises:
        CaptureError: the source model has to run, for example because it is faster.
        VerificationError: results differ without regions of the front end, too.
    """
    try:
        return publish(module, draft, call, tensors, mode)
    except DenseTrainsFasterError as error:
        draft.regions.clear()
        return publish(module, densely(module, call, tensors, mode, str(error)), call, tensors, mode)
    except SlowerCallError as error:
        draft.regions.clear()
        with torch.inference_mode(False):
            draft = draft_of(module, call, tensors, mode, undone=error.undone, before=draft.unchanged)
        draft.report.whole_call = error.times
        return published(module, draft, call, tensors, mode)
    except VerificationError as error:
        if draft.is_strict or not any(region.is_general for region in draft.regions):
            raise
        draft.regions.clear()
        return publish(module, recognised(module, draft, call, tensors, mode, error), call, tensors, mode)


def check_pruning(module: "SparseModule", call: calls.Call) -> None:
    """Warns, once a call shows the products, where a rule pruned a weight that no product reads."""
    pruning, rules = module._request.pruning, module._request.recipe.rules
    if not pruning.is_guess:
        return
    pruning.is_guess = False
    read = product_weights(module._source, lambda _: module.run_source(calls.copied(call)), can_copy=False)
    if read is None:
        return
    ties = aliases(module._source)
    read_names = {other for name in read for other in ties[name]}
    passed = {at: passed_over(module._source, rules[at], read_names, ties) for at in pruning.taken}
    names = [name for at, weights in pruning.taken.items() for name in weights if name in passed[at]]
    if names:
        module._notices.warn(
            f"{', '.join(names)} were pruned, and no product reads them; give apply example inputs, which show "
            "that, or name them in `ignore`"
        )


def recognised(
    module: "SparseModule",
    failed: Draft,
    call: calls.Call,
    tensors: list[Tensor],
    mode: Modes,
    error: VerificationError,
) -> Draft:
    """The draft without regions of the front end, after their results differed, for example by 0 / 0 in torch."""
    with torch.inference_mode(False):
        draft = draft_of(module, call, tensors, mode, has_general=False, before=failed.unchanged)
    draft.report.warnings.append(f"operators without a recognised form stay dense: {error}".splitlines()[0])
    return draft


def densely(
    module: "SparseModule", call: calls.Call, tensors: list[Tensor], mode: Modes, reason: str
) -> Draft:
    """The draft with dense weights under masks, which train faster for this call."""
    if module._weights.may_exchange:
        module._weights.densify()
    with torch.inference_mode(False):
        return draft_of(module, call, tensors, mode, trains_dense=reason)


def draft_of(
    module: "SparseModule",
    call: calls.Call,
    tensors: list[Tensor],
    mode: Modes,
    *,
    has_general: bool = True,
    trains_dense: str = "",
    undone: Mapping[str, str] = MappingProxyType({}),
    before: Captured | None = None,
) -> Draft:
    """The draft for calls like `call`; weights keep the packed formats held by the model.

    Args:
        has_general: whether the front end makes regions of operators without a recogniser.
        trains_dense: reason why trained weights are left to torch, "" where kernels compute with them.
        undone: reasons why no kernel computes a node, by node name.
        before: earlier capture of the same call.
    """
    stage("capturing")
    report_recorders(module._source, module._notices)
    mirror = module._weights.mirror(mode)
    arguments = has_general, trains_dense, undone, before
    try:
        drop_gradient_hooks(mirror.model)
        draft = drafted(module, mirror.model, call, tensors, True, *arguments)
    except ReachedError:  # the model's code refers to its modules by private references
        with in_modes(module._source, mode), module._weights.dense():
            return drafted(module, module._source, call, tensors, False, *arguments)
    finally:
        mirror.clear()
    draft.model = module._source
    return draft


def refuse(
    module: "SparseModule", call: calls.Call, mode: Modes, error: CaptureError, *, in_pieces: bool = False
) -> None:
    """Records that the source model runs for calls like `call`, which could not be captured.

    Args:
        error: the reason.
        in_pieces: whether pieces of the model may run in kernels where kernels are faster.

    Raises:
        Exception: raised by the source model for this call.
        CaptureError: with `strict`.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        mirror = module._weights.mirror(mode, module)
        mirror.copy_buffers()
        calls.run_call(mirror.model, module._signature, calls.copied(call))
    if module._request.strict or settings.current().strict:
        raise error
    module._captures.refused[mode, call.shape] = str(error)
    report_refused(module.report, module._source, module._request, str(error))
    if module._request.is_trainable(mode[0]):
        keep_pruned(module)
    report = piecewise(module, call, mode, str(error)) if in_pieces else ""
    if isinstance(report, str):
        causes = [f"as a whole: {error}", f"in pieces: {report}"] if report else [str(error)]
        module.report.warnings += causes
        both = "\n  ".join(("the source model runs", *causes))
        module._notices.warn(both if report else f"{error}; the source model runs")
        return
    report.origin = module.report.origin
    module._captures.piecewise[mode, call.shape] = module.report = report
    used = sum(entry.regions > 0 for entry in report.pieces)
    module._notices.warn(
        f"{error}; {used} of the {len(report.pieces)} pieces that torch.compile finds run in kernels, which the report "
        "lists; what is between them runs as the model has it"
    )


def keep_pruned(module: "SparseModule") -> None:
    """Restricts the training of pruned weights to their nonzeros, whichever operators read the weights."""
    recipe = module._request.recipe
    parameters = dict(module._source.named_parameters(remove_duplicate=False))
    weights = []
    for at, names in module._request.pruning.taken.items():
        for weight in (parameters[name] for name in names if name in parameters):
            if isinstance(weight, SparseTensor) or not weight.requires_grad:
                continue
            if drops_zeros(format_text(recipe, recipe.rules[at], weight.dim())):
                if not trained_masks.is_remembered(weight):
                    trained_masks.remember(weight, trained_masks.entries(weight))
                weights.append(weight)
    keep_zeros_of(weights)


def publish(
    module: "SparseModule",
    draft: Draft,
    call: calls.Call,
    tensors: list[Tensor],
    mode: Modes,
    *,
    is_timed: bool = True,
) -> Variant:
    """Registers the variant of a draft for later calls; `is_timed` requires a gain over the source model."""
    captured, report = draft.captured, draft.report
    regions = [call_of(node) for node in draft.graph.nodes if info(node).call is not None]
    operator_graph = draft.operators if regions else None
    operators = None if operator_graph is None else OperatorGraph(operator_graph, draft.edges)
    is_plain = return_plainly(
        captured.output, [captured.graph, *([operator_graph] if operator_graph else [])]
    )
    variant = Variant(captured, report, regions, is_plain, masked=draft.masked, operators=operators)
    variants = [*module.variants, variant]
    try:
        for name, constant in captured.constants.items():
            module.register_buffer(name, constant, persistent=False)
        compile_graph(module, variant)
        report_half(report, module._source)
        if report.warnings:
            module._notices.warn("; ".join(fold(dict.fromkeys(report.warnings))))
        hold_weights(module, variants, packs=False)
        if module._request.verify:
            stage("comparing with the source model")
            names = call.shape.tensor_names()
            with SILENT, naming_values(module._source, dict(zip(names, tensors, strict=True))):
                verify(module, variant, call, tensors, mode)
        if operators is None and is_timed and draft.options.tune_seconds > 0 and not draft.is_trainable:
            require_faster_call(module, variant, draft, call, tensors, mode)
        hold_weights(module, variants)
        if operators is not None:
            measure(module, variant, call, tensors, operators)
            operators.meet(tensors)  # the edges of the example are known
        elif is_timed and not draft.is_strict and draft.options.tune_seconds > 0:
            if captured.is_granted:
                require_gain(module, variant, call, tensors, mode)
            elif draft.is_trainable and not draft.trains_dense:
                require_training_gain(module, variant, call, tensors, mode)
    except BaseException:
        hold_weights(module, module.variants, packs=bool(module.variants))
        for name in captured.constants.keys() - module._captures.constants().keys():
            module._buffers.pop(name, None)
        raise
    if not call.shape.has_past:
        references = [weakref.ref(value) for value in call.values if isinstance(value, Tensor)]
        example = calls.with_tensors(call, [None] * len(references))
        module._example = example, references
    note_general(module._captures.alike((mode, call.shape)), variant)
    module._captures.add((mode, call.shape), variant)
    module.show(module._captures.shown(modes(module)) or variant)
    module._call_index.clear()
    return variant


def compile_graph(module: "SparseModule", variant: Variant) -> None:
    """Compiles the functions that run a variant."""
    graph, weights_held = variant.captured.graph, module._weights
    trained = set(weights_held.trained)
    read_densely(graph, trained)
    if weights_held.may_exchange and weights_held.is_own:
        watch_trained()
        trained |= sparse_parameters(module._source, [*module.variants, variant]).keys()
    if variant.operators is not None:
        read_densely(variant.operators.graph, trained)
    scratch = compiled(graph)
    variant.run, variant.code = type(scratch).forward, scratch._code
    variant.written, variant.contiguous = variant.written_inputs(), contiguous_inputs(graph)
    variant.eager = eager(graph, module, variant.run)
    is_direct = variant.is_plain and not variant.captured.is_granted and not variant.regions
    variant.direct = variant.eager if is_direct and variant.operators is None else None
    if (operators := variant.operators) is not None:
        operators.run = eager(operators.graph, module, type(compiled(operators.graph)).forward)
    remember_masks(graph, module._source)
    parameters = dict(module._source.named_parameters(remove_duplicate=False))  # rules may name buffers, too
    weights = (parameters[name] for name in variant.pruned() if name in parameters)
    keep_zeros_of(weight for weight in weights if weight.requires_grad)
