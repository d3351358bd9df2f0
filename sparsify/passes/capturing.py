"""Captures of calls that no graph of a sparse model fits: one at a time in the process, beside calls of known graphs.

In: a `SparseModule` and a call. Out: the variant for it, compiled and compared with the source model; the sparse model
knows it, and holds its weights as it reads them. Whatever fails, the models are as they were.

What is captured is a `Mirror` of the source model: calls of other threads, of the source model too, see nothing of it.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparsify import options as settings
from sparsify.errors import CaptureError
from sparsify.passes import calls, own_caches
from sparsify.passes.base import Draft
from sparsify.passes.capture import ReachedError
from sparsify.passes.check import compare
from sparsify.passes.drafted import drafted
from sparsify.passes.eager import eager
from sparsify.passes.no_graph import fail_after
from sparsify.passes.shell import Modes, fill_shell, in_modes, modes, share_again
from sparsify.passes.variant import Variant, return_plainly
from sparsify.runtime.locks import CAPTURES
from sparsify.runtime.peak import Peak
from sparsify.runtime.trim import trim

if TYPE_CHECKING:
    from sparsify.passes.sparse_module import SparseModule

MAX_CAPTURES: Final = 8
TIMED_CALLS: Final = 3


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
                fail_after(MAX_CAPTURES)
            module._notices.warn(
                f"more than {MAX_CAPTURES} captures; the source model runs for calls that fit none of them"
            )
            return None
        try:
            with torch.inference_mode(False):
                draft = draft_of(module, call, tensors, mode)
        except CaptureError as error:
            refuse(module, call, mode, error)
            return None
        return publish(module, draft, call, tensors, mode)


def draft_of(module: "SparseModule", call: calls.Call, tensors: list[Tensor], mode: Modes) -> Draft:
    """The draft for calls like `call`; weights are packed as the model holds them already."""
    stored, known = module._weights.stored(module.variants), module._captures.constants()

    def of(source: nn.Module, is_mirror: bool) -> Draft:
        asked, notices = module._asked, module._notices
        return drafted(source, asked, call, tensors, asked.dynamic, notices, stored, known, is_mirror)

    mirror = module._weights.mirror(mode)
    try:
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
        apart = module._weights.mirror(mode)
        apart.copy_buffers()
        run_call(apart.model, module, calls.copied(call))
    if module._asked.strict or settings.current().strict:
        raise error
    module._captures.refused[mode, call.shape] = str(error)
    module.report.warnings.append(str(error))
    module._notices.warn(f"{error}; the source model runs")


def publish(
    module: "SparseModule", draft: Draft, call: calls.Call, tensors: list[Tensor], mode: Modes
) -> Variant:
    """The variant of a draft, which calls find from now on."""
    captured, report = draft.captured, draft.report
    regions = [node.meta["region"] for node in draft.graph.nodes if "region" in node.meta]
    variant = Variant(captured, report, regions, return_plainly(captured), masked=draft.masked)
    variants = [*module.variants, variant]
    try:
        for name, constant in captured.constants.items():
            module.register_buffer(name, constant, persistent=False)
        compile_graph(module, variant)
        if report.warnings:
            module._notices.warn("; ".join(dict.fromkeys(report.warnings)))
        hold_weights(module, variants, packs=False)
        if module._asked.verify:
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
        object.__setattr__(module, "_example", (example, references))
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
    variant.eager = eager(graph, module, variant.run, recycled=settings.current().recycle)


def runner(module: "SparseModule", variant: Variant) -> Callable[..., Any]:
    """The function that runs a variant without effects on the buffers of the model."""
    assert variant.eager is not None and variant.run is not None, "compile_graph makes them"
    if not variant.writes():
        return variant.eager
    apart = nn.Module()
    fill_shell(apart, module)
    copies = {id(buffer): buffer.detach().clone() for buffer in apart.buffers()}
    for part in apart.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else copies[id(buffer)]
    return eager(variant.captured.graph, apart, variant.run, recycled=settings.current().recycle)


def run_call(source: nn.Module, module: "SparseModule", call: calls.Call) -> Any:
    """The result of a model for a call."""
    values = [own_caches.fresh(calls.as_torch(value)) for value in call.values]
    args, kwargs = calls.arguments_of(pytree.tree_unflatten(values, call.spec), module._signature)
    return source(*args, **kwargs)


def verify(
    module: "SparseModule", variant: Variant, call: calls.Call, tensors: list[Tensor], mode: Modes
) -> None:
    """Times the regions of a variant, and compares it with the source model on the inputs of the call."""
    peak = Peak()
    writes = variant.writes()
    apart = module._weights.mirror(mode)
    if writes:
        apart.copy_buffers()
    run = runner(module, variant)

    def given() -> list[Tensor]:
        return [tensor.clone() for tensor in tensors] if writes else tensors

    def sparse() -> Any:
        result = run(*given())
        return result if variant.is_plain else pytree.tree_unflatten(result, variant.captured.output)

    def dense() -> Any:
        with peak:
            if variant.masked is None:
                return run_call(apart.model, module, calls.copied(call) if writes else call)
            return variant.masked_result(apart.model, given())

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        # First, so that what is compared follows the plan of its memory.
        variant.timed(sparse, TIMED_CALLS)
        variant.report.largest_error = compare(dense, sparse, module._asked.recipe.verify)
    variant.report.dense_peak_bytes = peak.bytes
