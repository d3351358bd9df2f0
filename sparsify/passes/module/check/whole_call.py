"""The whole call of a variant against the dense model's: regions that lose within the call are undone.

In: a variant with packed weights, with regions that were faster in isolation. Out: both times in the report; or a
`SlowerCallError` that names the regions whose kernels lose. A kernel may win in isolation and lose in the call: its
neighbours' data was in the caches of its loop, results change their layout, and operators that torch fuses are
separated.

The dense model runs in the fastest way: the source model in torch, and the variant's graph with all regions in their
fastest dense form, for example with weights packed by oneDNN. Regions are undone in the order of their gains within
the call, smallest first: all regions that lose, then half of the others at a time, until the call is as fast as the
dense one. If no such call is found within the time budget, no region is left.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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
from sparsify.passes.choose.dense_forms import ONEDNN, by_fastest_form
from sparsify.passes.module.check.require_gain import NOISE
from sparsify.passes.module.check.silent_prints import SILENT
from sparsify.passes.module.variants.run_eager import without_effects
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.operands.content_memo import reading_once
from sparsify.progress import stage
from sparsify.report import Report, WholeCallEntry
from sparsify.storage.own_memory import runs_natively

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

Call = Callable[[], Any]
# Ratio by which the dense model must be faster where timings disagree.
DISTURBED: Final = 1.5
# Seconds of a call above which no further call warms the caches before the timing.
LONG_S: Final = 0.1
# Calls per median of a region's times.
TURNS: Final = 3
# Speedup over the source model above which other dense forms, which need packed weights, are not timed.
CLEAR: Final = 2.0
# Maximum bytes of weights copied for the dense forms.
MOST_BYTES: Final = 1 << 30
# Time budget for undoing regions, in multiples of the budget of a benchmark.
BUDGET: Final = 4.0


class SlowerCallError(Exception):
    """The dense model computes a call faster than a variant.

    Attributes:
        undone: reasons why no kernel may compute a node, by node name.
        times: report entry with the times and the undone regions.
    """

    def __init__(self, undone: Mapping[str, str], times: WholeCallEntry) -> None:
        super().__init__("the dense model is faster")
        self.undone, self.times = undone, times


@dataclass(frozen=True)
class Gain:
    """The times of a region within a call in microseconds: by its kernel, and in its fastest dense form."""

    region: RegionCall
    kernel_us: float
    dense_us: float

    @property
    def us(self) -> float:
        """Saved microseconds, negative for a region that loses."""
        return self.dense_us - self.kernel_us


@dataclass
class WholeCall:
    """A call of a variant, with any of its regions in their dense forms, and of the source model.

    Attributes:
        kernels: regions with kernels of this package.
        source, run: calls of the source model and of the variant.
        seconds: time budget of a comparison.
        can_copy: whether dense forms may copy weights.
        forms: dense forms of all regions, by region name.
        rival: the fastest dense call so far.
        library: library of `rival`.
    """

    kernels: Sequence[RegionCall]
    source: Call
    run: Call
    seconds: float
    can_copy: bool = True
    forms: dict[str, Callable[..., Any]] = field(default_factory=dict)
    rival: Call = field(init=False)
    library: str = "torch"

    def __post_init__(self) -> None:
        self.rival = self.source

    @property
    def names(self) -> list[str]:
        """The names of all regions with kernels."""
        return [region.name for region in self.kernels]

    @property
    def has_forms(self) -> bool:
        """Whether a dense form other than the unchanged operators was faster in isolation."""
        return any(region.dense_form for region in self.kernels)

    @contextmanager
    def without(self, names: Sequence[str]) -> Iterator[None]:
        """A context in which dense forms compute some regions."""
        for region in self.kernels:
            if region.name in names:
                if region.name not in self.forms:
                    self.forms[region.name] = by_fastest_form(region, can_copy=self.can_copy)
                region.library = self.forms[region.name]
        try:
            yield
        finally:
            for region in self.kernels:
                region.library = None

    def call_without(self, names: Sequence[str]) -> Any:
        """The result of a call in which dense forms compute some regions."""
        with self.without(names):
            return self.run()

    def compare(self) -> tuple[float, float, bool]:
        """Microseconds of the fastest dense call and of the variant, and whether the dense call is faster."""
        begun = perf_counter()
        self.run()
        is_long = perf_counter() - begun > LONG_S
        found = compared(race([self.source, self.run], self.seconds, is_warm=is_long))
        dense_us, own_us, is_slower = found
        if is_slower or own_us * CLEAR < dense_us or not (self.can_copy and self.has_forms):
            return found
        densely = partial(self.call_without, self.names)
        densely()  # packs weights
        by_forms = compared(race([densely, self.run], self.seconds, is_warm=is_long))
        if by_forms[0] >= dense_us:
            return found
        self.rival, self.library = densely, ONEDNN
        return by_forms

    def undone(self, gains: Sequence[Gain]) -> Sequence[Gain]:
        """The regions to undo, for a call as fast as the dense one; all of them without such a call.

        Args:
            gains: times of all regions.
        """
        order = sorted(gains, key=lambda gain: gain.us)
        count = max(1, sum(gain.us < 0 for gain in order))
        begun = perf_counter()
        while count < len(order) and perf_counter() - begun <= BUDGET * self.seconds:
            names = [gain.region.name for gain in order[:count]]
            with self.without(names):
                self.run()
            trial = partial(self.call_without, names)
            if not compared(race([self.rival, trial], self.seconds, is_warm=True))[2]:
                return order[:count]
            count += (len(order) - count + 1) // 2
        return order


def compared(times: Sequence[Any]) -> tuple[float, float, bool]:
    """The times of a dense and another call, and whether the dense call is faster."""
    dense_us, own_us = (one.us for one in times)
    return dense_us, own_us, own_us > (NOISE if is_agreed(times) else DISTURBED) * dense_us


def require_faster_call(
    module: "SparseModule",
    variant: Variant,
    draft: Draft,
    call: calls.Call,
    tensors: list[Tensor],
    mode: Modes,
) -> None:
    """Writes the times of a call into the report, of the dense model and of a variant.

    Raises:
        SlowerCallError: the dense model is faster.
    """
    kernels = [region for region in variant.regions if region.library is None and region.preferred is None]
    if not is_guarded(module, variant, draft, kernels, tensors):
        return
    stage("timing the whole call")
    mirror = module._weights.mirror(mode, module)
    mirror.copy_buffers()
    args, kwargs = calls.arguments_of(pytree.tree_unflatten(call.values, call.spec), module._signature)
    run = without_effects(module, variant)
    whole = WholeCall(
        kernels,
        lambda: calls.run_source(mirror.model, args, kwargs),
        lambda: reading_once(run, tensors),
        draft.options.tune_seconds,
        sum(parameter.nbytes for parameter in module._source.parameters()) <= MOST_BYTES,
    )
    try:
        with SILENT, torch.no_grad(), torch.random.fork_rng(devices=[]):
            dense_us, own_us, is_slower = whole.compare()
            entry = WholeCallEntry(whole.library, dense_us, own_us, undone_before(variant.report))
            variant.report.whole_call = entry
            if not is_slower:
                return
            # Remaining regions of a second attempt are not compared again.
            undone = [] if draft.undone else whole.undone(gains_of(whole))
    finally:
        mirror.clear()
    raise slower_call(variant, kernels, entry, undone)


def undone_before(report: Report) -> list[str]:
    """The scopes of regions undone in an earlier attempt."""
    return [] if report.whole_call is None else list(report.whole_call.undone)


def slower_call(
    variant: Variant, kernels: Sequence[RegionCall], entry: WholeCallEntry, undone: Sequence[Gain]
) -> SlowerCallError:
    """The error that undoes some regions, or all if there are no others."""
    entries = {one.name: one for one in variant.report.regions}
    summary = (
        f"the call took {entry.own_us:.0f} us with kernels, that of the dense model in {entry.library} "
        f"{entry.dense_us:.0f}"
    )
    is_all = len(undone) in (0, len(kernels))
    names = [region.name for region in kernels] if is_all else [gain.region.name for gain in undone]
    entry.undone += [", ".join(entries[name].scopes) or name for name in names]
    entry.is_dense = is_all
    if is_all:
        return SlowerCallError({EVERYTHING: summary}, entry)
    reasons = {
        node: f"{summary}: in it the kernel takes {gain.kernel_us:.0f} us, {form(gain.region)} {gain.dense_us:.0f}"
        for gain in undone
        for node in entries[gain.region.name].nodes
    }
    return SlowerCallError(reasons, entry)


def form(region: RegionCall) -> str:
    """The dense form of a region, in words."""
    return ONEDNN if region.dense_form else "torch's operators"


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


def gains_of(whole: WholeCall) -> list[Gain]:
    """The times of all regions within a call, by their kernels and in their dense forms."""
    kernel_us = medians(whole.kernels, whole.run)
    with whole.without(whole.names):
        whole.run()
        dense_us = medians(whole.kernels, whole.run)
    return [Gain(*one) for one in zip(whole.kernels, kernel_us, dense_us, strict=True)]


def medians(regions: Sequence[RegionCall], run: Call) -> list[float]:
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
