"""Captures of calls that no graph of a sparse model fits: one at a time in the process, beside calls of known graphs.

In: a `SparseModule` and a call. Out: the variant for it, compiled and compared with the source model; the sparse model
knows it, and holds its weights as it reads them. Whatever fails, the models are as they were.

What is captured is a `Mirror` of the source model: calls of other threads, of the source model too, see nothing of it.
"""

import weakref
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, fx, nn

from sparsify import options as settings
from sparsify.errors import CaptureError, VerificationError
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import Draft
from sparsify.passes.capture.export import ReachedError
from sparsify.passes.capture.shell import Modes, in_modes, modes, share_again
from sparsify.passes.functional.layouts import contiguous_inputs
from sparsify.passes.graph.node_info import call_of, info
from sparsify.passes.module.build import drafted
from sparsify.passes.module.compare import naming_values, report_half
from sparsify.passes.module.hooks import drop_gradient_hooks, report_recorders
from sparsify.passes.module.optimizer_steps import keep_zeros_of
from sparsify.passes.module.recurrent import report_refused
from sparsify.passes.module.run_eager import eager
from sparsify.passes.module.variant import Variant, return_plainly
from sparsify.passes.module.verify import verify
from sparsify.passes.rules.mark import aliases
from sparsify.passes.rules.product_weights import product_weights
from sparsify.passes.rules.prunable import passed_over
from sparsify.report_text import fold
from sparsify.runtime.locks import CAPTURES
from sparsify.runtime.trim import trim

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

MAX_CAPTURES: Final = 8


def capture_call(
    module: "SparseModule", call: calls.Call, tensors: list[Tensor], mode: Modes
) -> Variant | None:
    """The variant for calls like `call` in a mode, captured now unless another thread has done so meanwhile.

    None when the source model has to run; what it must not run without raises.

    Raises:
        Exception: what the source model raises for this call.
    """
    like = (mode, call.shape)
    with CAPTURES:
        variant = module._captures.fitting(like, tuple(tensor.shape for tensor in tensors))
        if variant is not None or like in module._captures.refused:
            return variant
        if len(module._captures) >= MAX_CAPTURES:
            if module._asked.has_masks:
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
        check_pruning(module, call)
        try:
            with torch.inference_mode(False):
                draft = draft_of(module, call, tensors, mode)
        except CaptureError as error:
            refuse(module, call, mode, error)
            return None
        try:
            return publish(module, draft, call, tensors, mode)
        except VerificationError as error:
            if draft.is_strict or not any(region.is_general for region in draft.regions):
                raise
            draft.regions.clear()
            return publish(module, recognised(module, call, tensors, mode, error), call, tensors, mode)


def check_pruning(module: "SparseModule", call: calls.Call) -> None:
    """Warns, once a call shows it, where a rule pruned what no product reads."""
    pruning, rules = module._asked.pruning, module._asked.recipe.rules
    if not pruning.is_guess:
        return
    pruning.is_guess = False
    read = product_weights(module._source, lambda: module.run_source(calls.copied(call)))
    if read is None:
        return
    ties = aliases(module._source)
    known = {other for name in read for other in ties[name]}
    passed = {at: passed_over(module._source, rules[at], known, ties) for at in pruning.taken}
    names = [name for at, found in pruning.taken.items() for name in found if name in passed[at]]
    if names:
        module._notices.warn(
            f"{', '.join(names)} were pruned, and no product reads them; give apply example inputs, which show "
            "that, or name them in `ignore`"
        )


def recognised(
    module: "SparseModule", call: calls.Call, tensors: list[Tensor], mode: Modes, error: VerificationError
) -> Draft:
    """The draft without regions of the front end, whose results differ for this call, as where torch has 0 / 0."""
    with torch.inference_mode(False):
        draft = draft_of(module, call, tensors, mode, has_general=False)
    draft.report.warnings.append(f"operators without a recognised form stay dense: {error}".splitlines()[0])
    return draft


def draft_of(
    module: "SparseModule", call: calls.Call, tensors: list[Tensor], mode: Modes, *, has_general: bool = True
) -> Draft:
    """The draft for calls like `call`; weights are packed as the model holds them already.

    Args:
        has_general: whether the front end makes regions of what no recogniser knows.
    """
    stored, known = module._weights.stored(module.variants), module._captures.constants()
    report_recorders(module._source, module._notices)

    def of(source: nn.Module, is_mirror: bool) -> Draft:
        asked, notices = module._asked, module._notices
        return drafted(
            source, asked, call, tensors, asked.dynamic, notices, stored, known, is_mirror, has_general
        )

    mirror = module._weights.mirror(mode)
    try:
        drop_gradient_hooks(mirror.model)
        draft = of(mirror.model, True)
    except ReachedError:  # code of the model refers to its modules in a way of its own
        with in_modes(module._source, mode), module._weights.dense():
            return of(module._source, False)
    finally:
        mirror.clear()
    draft.model = module._source
    return draft


def refuse(module: "SparseModule", call: calls.Call, mode: Modes, error: CaptureError) -> None:
    """Notes that the source model runs for calls like `call`, which could not be captured.

    Raises:
        Exception: what the source model raises for this call.
        CaptureError: with `strict`.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        apart = module._weights.mirror(mode, module)
        apart.copy_buffers()
        calls.run_call(apart.model, module._signature, calls.copied(call))
    if module._asked.strict or settings.current().strict:
        raise error
    module._captures.refused[mode, call.shape] = str(error)
    report_refused(module.report, module._source, module._asked, str(error))
    module.report.warnings.append(str(error))
    module._notices.warn(f"{error}; the source model runs")


def publish(
    module: "SparseModule", draft: Draft, call: calls.Call, tensors: list[Tensor], mode: Modes
) -> Variant:
    """The variant of a draft, which calls find from now on."""
    captured, report = draft.captured, draft.report
    regions = [call_of(node) for node in draft.graph.nodes if info(node).call is not None]
    variant = Variant(captured, report, regions, return_plainly(captured), masked=draft.masked)
    variants = [*module.variants, variant]
    try:
        for name, constant in captured.constants.items():
            module.register_buffer(name, constant, persistent=False)
        compile_graph(module, variant)
        report_half(report, module._source)
        if report.warnings:
            module._notices.warn("; ".join(fold(dict.fromkeys(report.warnings))))
        hold_weights(module, variants, packs=False)
        if module._asked.verify:
            with naming_values(module._source, dict(zip(call.shape.tensor_names(), tensors, strict=True))):
                verify(module, variant, call, tensors, mode)
        hold_weights(module, variants)
    except BaseException:
        hold_weights(module, module.variants, packs=bool(module.variants))
        for name in captured.constants.keys() - module._captures.constants().keys():
            module._buffers.pop(name, None)
        raise
    if not call.shape.has_past:
        references = [weakref.ref(value) for value in call.values if isinstance(value, Tensor)]
        example = calls.with_tensors(call, [None] * len(references))
        module._example = example, references
    module._captures.add((mode, call.shape), variant)
    module.show(module._captures.shown(modes(module)) or variant)
    module._quick.variants.clear()
    return variant


def hold_weights(module: "SparseModule", variants: list[Variant], *, packs: bool = True) -> None:
    """Makes weights dense that one of these variants reads so; with `packs` packs those that no variant reads dense."""
    with module._weights.lock, torch.inference_mode(False), torch.no_grad():
        module._weights.release(variants)
        if packs:
            module._weights.pack(variants)
        share_again(module, module._source)
    if packs:
        trim()  # of dense weights and of what was compared


def compile_graph(module: "SparseModule", variant: Variant) -> None:
    """Makes the functions that run a variant."""
    graph = variant.captured.graph
    scratch = fx.GraphModule(
        nn.Module(), fx.Graph()
    )  # calls of `module` go on while its class stays as it is
    scratch._graph = graph
    scratch.recompile()
    variant.run, variant.code = type(scratch).forward, scratch._code
    variant.written, variant.contiguous = variant.written_inputs(), contiguous_inputs(graph)
    variant.eager = eager(graph, module, variant.run, recycled=settings.current().recycle)
    known = dict(module.named_parameters(remove_duplicate=False))  # rules may name buffers, too
    weights = (known[name] for name in variant.pruned() if name in known)
    keep_zeros_of(weight for weight in weights if weight.requires_grad)
