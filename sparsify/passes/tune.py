"""The formats of a weight timed against each other and against torch's product, where what is expected leaves a choice.

In: the region of `Y[i,k] = relu(sum(j, X[i,j] * W[k,j]) + b[k])`, the formats for W that are expected to be fastest.
Out: `Timed`: the format that was fastest on inputs like the example's, its time, and torch's.

The contenders run in turns within `tune_seconds`, and the least time of each counts. What was found is kept beside the
kernels for weights of this shape and density: another `apply` finds it, and layers that are alike share it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler import calibrate
from sparsify.compiler.kernel import Kernel, plan, prepare_all
from sparsify.compiler.recall import recall
from sparsify.compiler.schedule.pack import Packing
from sparsify.compiler.schedule.sizes import Sizes, sizes_of
from sparsify.errors import SparsifyError
from sparsify.passes import region as regions
from sparsify.passes.base import Draft
from sparsify.passes.emit import extract
from sparsify.passes.estimate import extents_of, known_size
from sparsify.passes.lift.matrix import Matrix
from sparsify.passes.operators import operator_name, tensor_value
from sparsify.passes.order import copied
from sparsify.passes.region import Region
from sparsify.storage.interop import tensor

Call = Callable[[], Any]
# Formats that are timed, and how much slower than the best they may be expected to be.
MOST: Final = 3
SLOWER: Final = 1.5
# Work that is expected to take less is not timed.
LEAST_US: Final = 20.0
# Turns at least and at most; after some only contenders that may still win run.
FEWEST_TURNS: Final = 3
ALL_TURNS: Final = 8
MOST_TURNS: Final = 30
HOPELESS: Final = 1.5
# Rows of an input whose size only a run can tell.
UNKNOWN_ROWS: Final = 128
# Weights whose densities differ by less than one in so many share what was found.
DENSITIES: Final = 40


@dataclass(frozen=True, slots=True)
class Timed:
    """What was measured.

    Attributes:
        format: the fastest, as text.
        schedule: of its kernel.
        us: of a call with it.
        dense_us: of the dense nodes, by torch.
        onednn_us: of oneDNN's product with the packed dense weight alone; 0 where there is none.
        others: the other formats with their times.
    """

    format: str
    schedule: str
    us: float
    dense_us: float
    onednn_us: float = 0.0
    others: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        onednn = f", oneDNN's {self.onednn_us:.0f}" if self.onednn_us else ""
        others = "".join(f", {us:.0f} us as {text}" for text, us in self.others)
        return f"timed {self.us:.0f} us, torch's {self.dense_us:.0f}{onednn}{others}"


def tune(draft: Draft, region: Region, name: str, found: Sequence[Packing]) -> Timed | None:
    """What the best formats for the weight `name` of a region take; `None` where nothing is to be timed.

    Raises:
        SparsifyError: a kernel cannot be built.
    """
    if draft.options.tune_seconds == 0 or found[0].dense_us < LEAST_US:
        return None
    tried = [packing for packing in found if packing.us <= SLOWER * found[0].us][:MOST]
    trials = [packed(region, name, packing) for packing in tried]
    sizes = rounded(draft, trials[0], found[0])
    formats = [str(packing.format) for packing in tried]
    question = f"fastest of {formats} {trials[0].program} {calibrate.key_of(draft.options)}"
    return recall(question, sizes, partial(timed, draft, region, trials, formats), draft.options)


def packed(region: Region, name: str, packing: Packing) -> Region:
    """The region with its weight in a format, and its program."""
    trial = copied(region)
    weight = trial.operands[name]
    assert isinstance(weight, Matrix), "weights are sparse operands"
    trial.operands[name] = replace(weight, packed=packing.format)
    regions.finish(trial)
    return trial


def rounded(draft: Draft, region: Region, packing: Packing) -> Sizes:
    """The sizes that what was found is kept for: those of the operands, and about how dense the weight is."""
    assert region.program is not None, "packed writes the program"
    extents: dict[str, int] = {}
    for name, operand in region.operands.items():
        declared = region.program.declaration(region.names[name])
        for index, extent in zip(declared.extents, extents_of(operand), strict=False):
            extents[index] = known_size(extent, UNKNOWN_ROWS) or UNKNOWN_ROWS
    return Sizes(extents, {"density": round(DENSITIES * packing.stored / max(1, packing.entries))})


def timed(draft: Draft, region: Region, trials: Sequence[Region], formats: Sequence[str]) -> Timed:
    """What the regions and torch take, in turns."""
    values = {node: example(draft, node) for node in region.inputs}
    programs = [trial.program for trial in trials if trial.program is not None]
    kernels = [plan(program, options=draft.options) for program in programs]
    operands = [given(draft, trial, values) for trial in trials]
    sizes = [sizes_of(program, tensors) for program, tensors in zip(programs, operands, strict=True)]
    for error in prepare_all(list(zip(kernels, sizes, strict=True))):
        if error is not None:
            raise error
    dense = extract(draft, region.inputs, [region.output])
    calls: list[Call] = [partial(k, *tensors) for k, tensors in zip(kernels, operands, strict=True)]
    calls.append(partial(dense, *values.values()))
    onednn = packed_dense(region, values)
    with torch.no_grad():
        found = race([*calls, *([] if onednn is None else [onednn])], draft.options.tune_seconds)
    best = min(range(len(kernels)), key=found.__getitem__)
    others = tuple((formats[n], found[n]) for n in range(len(kernels)) if n != best)
    return Timed(
        formats[best],
        schedule_of(kernels[best], sizes[best]),
        found[best],
        found[len(kernels)],
        found[-1] if onednn is not None else 0.0,
        others,
    )


def schedule_of(kernel: Kernel, sizes: Sizes) -> str:
    """The schedules of the kernels as text."""
    return "\n".join(str(step.variants.wanted(sizes)) for step in kernel.generated)


def example(draft: Draft, node: fx.Node) -> Any:
    """A tensor like the one that the example has there, a size as it is."""
    known = draft.known_tensor(node)
    if known is not None:
        return known.detach()
    value = tensor_value(node)
    if value is None:
        return known_size(node, UNKNOWN_ROWS) or UNKNOWN_ROWS
    shape = [known_size(extent, UNKNOWN_ROWS) or UNKNOWN_ROWS for extent in value.shape]
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return made.to(value.dtype)


def given(draft: Draft, region: Region, values: dict[fx.Node, Any]) -> list[torch.Tensor]:
    """The operands of a region's program."""
    found = []
    for operand in region.operands.values():
        if not isinstance(operand, Matrix):
            found.append(values[operand])
            continue
        assert operand.dense is not None, "regions with weights alone are timed"
        weight = values[operand.dense]
        found.append(tensor(weight.t() if operand.transposed else weight, operand.format))
    return found


def packed_dense(region: Region, values: dict[fx.Node, Any]) -> Call | None:
    """oneDNN's product in place of the region's linear layer; `None` where torch has none for it."""
    node = next((n for n in region.covered if operator_name(n) == "linear"), None)
    x, weight = (
        (values.get(part) for part in node.args[:2] if isinstance(part, fx.Node)) if node else (None, None)
    )
    if x is None or weight is None:
        return None
    try:
        held = torch.ops.mkldnn._reorder_linear_weight(weight, x.numel() // x.shape[-1])
        call = partial(torch.ops.mkldnn._linear_pointwise, x, held, None, "none", [], "")
        call()
    except (AttributeError, RuntimeError, TypeError):
        return None
    return call


def race(calls: Sequence[Call], seconds: float) -> list[float]:
    """The least microseconds of each call, run in turns; those that cannot win stop early.

    Args:
        calls: the contenders.
        seconds: after which no further turn starts, once a few are done.
    """
    least = [float("inf")] * len(calls)
    started = time.perf_counter()
    for turn in range(MOST_TURNS):
        if turn >= FEWEST_TURNS and time.perf_counter() - started > seconds:
            break
        for number, call in enumerate(calls):
            if turn >= ALL_TURNS and least[number] > HOPELESS * min(least):
                continue
            call()  # its own data, and not its neighbour's, is in the caches
            begun = time.perf_counter_ns()
            call()
            least[number] = min(least[number], (time.perf_counter_ns() - begun) / 1e3)
    return least


def try_tune(draft: Draft, region: Region, name: str, found: Sequence[Packing]) -> Timed | None:
    """As `tune`; where kernels cannot be built, `emit` will say so, and nothing is timed."""
    try:
        return tune(draft, region, name, found)
    except SparsifyError:
        return None
