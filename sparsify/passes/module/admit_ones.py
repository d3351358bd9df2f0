"""Calls with extents of 1 in the graph of calls with larger extents.

In: a variant captured for `x [s0, 3, 224, 224]` with `s0` 2 or more, and a call with 1 image. Out: the variant, if a
capture of the call has the same operators (`capture/operator_trace.py`) and its results equal the source model's;
`captured.ones` then has the extents that may be 1. Other calls get a graph of their own.

A model that was captured for 1 image first, and then for any number, is left with the second graph: `merged` compares
both captures at the next call with 1 image, and keeps the first graph where it is faster.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from sparsify import options as settings
from sparsify.errors import CaptureError, VerificationError
from sparsify.passes.capture import calls
from sparsify.passes.capture.captured import Captured
from sparsify.passes.capture.export import ReachedError, capture
from sparsify.passes.capture.guards import Holds
from sparsify.passes.capture.operator_trace import Result, Trace, pairs, sizes_of_one
from sparsify.passes.capture.shell import Modes, in_modes, modes
from sparsify.passes.choose.autotune import race
from sparsify.passes.module.check.silent_prints import SILENT
from sparsify.passes.module.check.verify import verify
from sparsify.passes.module.check.whole_call import compared
from sparsify.passes.module.recurrent import StepByStep, selected_weights
from sparsify.passes.module.source.hooks import drop_gradient_hooks
from sparsify.passes.module.variants.run_eager import without_effects
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.module.weights.hold_weights import hold_weights
from sparsify.passes.operands.content_memo import reading_once
from sparsify.passes.rules.product_weights import PRODUCTS
from sparsify.progress import stage

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

# Maximum share of multiplications in products of one row for which kernels for several rows serve.
MOST_SINGLE: Final = 0.05
# Assumed number of rows and the like, any number but 1.
USUAL: Final = 8


def admit_ones(
    module: "SparseModule", call: calls.Call, tensors: list[Tensor], mode: Modes
) -> Variant | None:
    """The variant whose graph holds for a call with extents of 1, too; None if there is none.

    Args:
        module: sparse model; callers hold the lock of captures.
        call: call that fits no variant.
        tensors: tensors of the call.
        mode: modes of the modules.
    """
    shapes = [tensor.shape for tensor in tensors]
    for variant in module._captures.alike((mode, call.shape)):
        trace = variant.captured.trace
        if trace is None or not differs_in_ones(variant, shapes):
            continue
        ones = [extent for size, extent in pairs(shapes, trace.extents) if size == 1 and extent.is_Symbol]
        if has_single_rows(trace, ones):
            continue
        found = ones_of(variant, captured_again(module, variant, call, mode))
        if found is not None and agrees(module, variant, call, tensors, mode, found):
            return variant
    return None


def differs_in_ones(variant: Variant, shapes: Sequence[torch.Size]) -> bool:
    """Whether tensors of some shapes would fit a variant if its named extents could be 1."""
    if variant.masked is not None or variant.operators is not None:
        return False
    sizes: dict[str, int] = {}
    for shape, extents in zip(shapes, variant.captured.extents, strict=True):
        for size, extent in zip(shape, extents, strict=True):
            if isinstance(extent, int):
                if size != extent:
                    return False
            elif size < 1 or sizes.setdefault(extent, size) != size:
                return False
    holds = variant.captured.holds
    return 1 in sizes.values() and (holds is None or holds(sizes))


def captured_again(
    module: "SparseModule", variant: Variant, call: calls.Call, mode: Modes
) -> Captured | None:
    """The capture of a call in the way of a variant, without passes; None where export fails."""
    stage("capturing")
    request, earlier = module._request, variant.captured

    def of(source: torch.nn.Module, is_mirror: bool) -> Captured:
        names = selected_weights(source, request)
        return capture(
            source,
            call,
            request.dynamic,
            masks=request.has_masks,
            gates=request.has_gates,
            without=earlier.without,
            shared_constants=module._captures.constants(),
            trains=request.is_trainable(source.training),
            is_mirror=is_mirror,
            within=StepByStep(source, names, earlier.whole_layers),
        )

    try:
        with torch.inference_mode(False), SILENT:
            mirror = module._weights.mirror(mode)
            try:
                drop_gradient_hooks(mirror.model)
                return of(mirror.model, True)
            except ReachedError:
                with in_modes(module._source, mode), module._weights.dense():
                    return of(module._source, False)
            finally:
                mirror.clear()
    except CaptureError:
        return None


def has_single_rows(trace: Trace, ones: Collection[Any] = ()) -> bool:
    """Whether products of one row with a weight are a part of a capture's multiplications that counts.

    Formats and kernels of weights for one row differ from those for several rows: such calls have a graph of their own.

    Args:
        trace: operators of the capture.
        ones: symbols of extents that are 1.
    """
    single = total = 0
    constant = set[int]()
    for number, step in enumerate(trace.steps):
        read = [leaf.number for leaf in step.arguments if isinstance(leaf, Result)]
        if isinstance(step.target, str) or (read and constant.issuperset(read)):
            constant.add(number)
            continue
        name = getattr(getattr(step.target, "_schema", None), "name", "").removeprefix("aten::")
        if name not in PRODUCTS or not step.values:
            continue
        sizes = numbers(step.values[0][-1], ones)
        rows = prod(sizes) // max(1, sizes[1 if name.startswith("conv") else -1]) if sizes else 1
        for weight in (numbers(trace.steps[n].values[0][-1]) for n in read if n in constant):
            multiplications = rows * prod(weight) if len(weight) > 1 else 0
            total += multiplications
            single += multiplications if rows == 1 else 0
    return single > MOST_SINGLE * total


def numbers(extents: Sequence[Any], ones: Collection[Any] = ()) -> list[int]:
    """Extents as numbers, where symbols are 1 or `USUAL`."""
    return [
        int(extent.subs({symbol: 1 if symbol in ones else USUAL for symbol in extent.free_symbols}))
        for extent in extents
    ]


Ones = tuple[frozenset[str], Holds | None]


def ones_of(variant: Variant, special: Captured | None) -> Ones | None:
    """The extents of a variant that are 1 in another capture with the same operators, None for other operators."""
    if special is None or special.output != variant.captured.output:
        return None
    general, other = variant.captured.trace, special.trace
    return None if general is None or other is None else sizes_of_one(general, other)


def agrees(
    module: "SparseModule",
    variant: Variant,
    call: calls.Call,
    tensors: list[Tensor],
    mode: Modes,
    found: Ones,
) -> bool:
    """Whether a variant computes a call with extents of 1 as the source model does; it takes such calls from now on."""
    captured = replace(variant.captured, ones={**variant.captured.ones, found[0]: found[1]})
    trial = replace(variant, captured=captured, report=copy.deepcopy(variant.report), fitting=set())
    if not trial.fits(tuple([tensor.shape for tensor in tensors])):
        return False
    if module._request.verify:
        stage("comparing with the source model")
        try:
            with SILENT:
                verify(module, trial, call, tensors, mode)
        except (VerificationError, RuntimeError):
            return False
    variant.captured.ones[found[0]] = found[1]
    return True


def note_general(variants: Sequence[Variant], general: Variant) -> None:
    """Notes a new variant in earlier ones, for calls with extents of 1, if their captures have equal operators."""
    if general.masked is not None or general.operators is not None:
        return
    for variant in variants:
        trace = variant.captured.trace
        if variant is general or trace is None or has_single_rows(trace):
            continue
        if ones_of(general, variant.captured) is not None:
            variant.general = general


def merged(
    module: "SparseModule", special: Variant, call: calls.Call, tensors: list[Tensor], mode: Modes
) -> Variant:
    """The variant for the calls of `special`: its general variant if it is as fast, which replaces `special` then.

    Args:
        module: sparse model; callers hold the lock of captures.
        special: variant with extents of 1.
        call: call that fits `special`.
        tensors: tensors of the call.
        mode: modes of the modules.
    """
    general, special.general = special.general, None
    if general is None or all(general is not variant for variant in module.variants):
        return special
    found = ones_of(general, special.captured)
    if found is None or not agrees(module, general, call, tensors, mode, found):
        return special
    if is_slower(module, special, general, tensors):
        del general.captured.ones[found[0]]
        general.fitting.clear()
        return special
    module._captures.entries = [one for one in module._captures.entries if one[1] is not special]
    for name in special.captured.constants.keys() - module._captures.constants().keys():
        module._buffers.pop(name, None)
    hold_weights(module, module.variants)
    module.show(module._captures.shown(modes(module)) or general)
    module._call_index.clear()
    return general


def is_slower(module: "SparseModule", special: Variant, general: Variant, tensors: Sequence[Tensor]) -> bool:
    """Whether the general variant takes longer for a call than the special one, which is timed for such calls."""
    seconds = settings.current().tune_seconds
    if seconds == 0 or module._request.is_trainable(special.captured.training) or special.writes():
        return False
    stage("timing the whole call")

    def run_of(variant: Variant) -> Callable[[], Any]:
        run = without_effects(module, variant)
        return lambda: reading_once(run, tensors)

    with SILENT, torch.no_grad(), torch.random.fork_rng(devices=[]):
        return compared(race([run_of(special), run_of(general)], seconds))[2]
