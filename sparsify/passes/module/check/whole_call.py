"""The whole call of a variant against the source model's: regions that lose within the call are undone.

In: a variant with packed weights, with regions that were faster in isolation. Out: both times in the report; or a
`SlowerCallError` that names the regions with kernels slower than torch's operators within the call. A kernel may win in
isolation and lose in the call: its neighbours' data was in the caches of its loop, results change their layout, and
operators that torch fuses are separated.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture import calls
from sparsify.passes.capture.draft import EVERYTHING, Draft
from sparsify.passes.capture.shell import Modes
from sparsify.passes.choose.autotune import is_agreed, race
from sparsify.passes.module.check.require_gain import NOISE
from sparsify.passes.module.check.silent_prints import SILENT
from sparsify.passes.module.variants.run_eager import without_effects
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.operands.content_memo import reading_once
from sparsify.progress import stage
from sparsify.storage.own_memory import runs_natively

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

# Ratio by which the source model must be faster where timings disagree.
DISTURBED: Final = 1.5
# Seconds of a call above which no further call warms the caches before the timing.
LONG_S: Final = 1.0
# Calls per median of a region's times.
TURNS: Final = 3


class SlowerCallError(Exception):
    """The source model computes a call faster than a variant.

    Attributes:
        undone: reasons why no kernel may compute a node, by node name.
    """

    def __init__(self, undone: Mapping[str, str]) -> None:
        super().__init__("the source model is faster")
        self.undone = undone


def require_faster_call(
    module: "SparseModule",
    variant: Variant,
    draft: Draft,
    call: calls.Call,
    tensors: list[Tensor],
    mode: Modes,
) -> None:
    """Writes the times of a call into the report, of the source model and of a variant.

    Raises:
        SlowerCallError: the source model is faster.
    """
    kernels = [region for region in variant.regions if region.library is None and region.preferred is None]
    if not is_guarded(module, variant, draft, kernels, tensors):
        return
    stage("timing the whole call")
    mirror = module._weights.mirror(mode, module)
    mirror.copy_buffers()
    args, kwargs = calls.arguments_of(pytree.tree_unflatten(call.values, call.spec), module._signature)
    run = without_effects(module, variant)

    def with_kernels() -> Any:
        return reading_once(run, tensors)

    try:
        with SILENT, torch.no_grad(), torch.random.fork_rng(devices=[]):
            begun = perf_counter()
            with_kernels()
            times = race(
                [lambda: calls.run_source(mirror.model, args, kwargs), with_kernels],
                draft.options.tune_seconds,
                is_warm=perf_counter() - begun > LONG_S,
            )
            source_us, own_us = (one.us for one in times)
            variant.report.whole_call_us = source_us, own_us
            if own_us <= (NOISE if is_agreed(times) else DISTURBED) * source_us:
                return
            summary = f"the call took {own_us:.0f} us with kernels, that of the source model {source_us:.0f}"
            if draft.undone:  # second attempt, with the remaining regions
                raise SlowerCallError({EVERYTHING: summary})
            slower = slower_regions(kernels, with_kernels)
    finally:
        mirror.clear()
    nodes = {entry.name: entry.nodes for entry in variant.report.regions}
    undone = {
        node: f"{summary}: in it the kernel takes {kernel:.0f} us, torch's operators {dense:.0f}"
        for region, kernel, dense in slower
        for node in nodes[region.name]
    }
    raise SlowerCallError(undone or {EVERYTHING: summary})


def is_guarded(
    module: "SparseModule",
    variant: Variant,
    draft: Draft,
    kernels: Sequence[RegionCall],
    tensors: Sequence[Tensor],
) -> bool:
    """Whether regions may be undone: kernels multiply with packed weights that no other graph reads.

    False where the recipe wants sparse weights for their memory, and where the source model computes another function,
    for example without the attention patterns.
    """
    options = draft.recipe.compile
    is_free = options.memory != "compact" and options.allows("torch") and not draft.is_strict
    is_alone = not module.variants and EVERYTHING not in draft.undone
    are_weights = bool(kernels) and all(region.weights for region in kernels)
    is_same = variant.masked is None and not draft.request.has_masks and not variant.writes()
    is_native = runs_natively([*module._source.parameters(), *tensors])
    return is_free and is_alone and are_weights and is_same and is_native


def slower_regions(
    kernels: Sequence[RegionCall], run: Callable[[], Any]
) -> list[tuple[RegionCall, float, float]]:
    """The regions with kernels slower than torch's operators within a call, with both times in us."""
    times = [medians(kernels, run)]
    for region in kernels:
        region.library = by_operators(region)
    try:
        times.append(medians(kernels, run))
    finally:
        for region in kernels:
            region.library = None
    both = zip(kernels, *times, strict=True)
    return [(region, kernel, dense) for region, kernel, dense in both if kernel > dense]


def by_operators(region: RegionCall) -> Callable[..., Any]:
    """The replaced nodes of a region, as a function of its arguments."""
    return lambda *arguments: region.dense_result(arguments)


def medians(regions: Sequence[RegionCall], run: Callable[[], Any]) -> list[float]:
    """The median microseconds of each region in some calls."""
    for region in regions:
        region.times_us = []
    try:
        for _ in range(TURNS):
            run()
        return [median(region.times_us or [0.0]) for region in regions]
    finally:
        for region in regions:
            region.times_us = None
