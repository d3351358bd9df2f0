"""The formats of constant weights: the fastest for their zeros, or dense if none is fast enough.

In: the region of `Y[i,k] = relu(sum(j, X[i,j] * W[k,j]) + b[k])`, W frozen with 10 % of its entries, 128 rows.
Out: the same with W stored `j/96: dense, i: dense, j%96: compressed(crd=int16)`; a region with few zeros in its weight
is left to torch, with a note in the report.

Formats are ordered by expected cost; the best few, torch's product and other libraries' products are timed on inputs
similar to the example's (`tune`). The candidates are the calls that would run, with all overhead. Similar layers share
timings: the cache key is the shape and density of a weight. A weight that no format makes smaller stays dense
regardless of times: only dense products are timed for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, prod
from typing import Final

import torch
from torch import Tensor

from sparsify.compiler import calibrate
from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.einsum.nodes import Access, Call, Reduce
from sparsify.compiler.ir.node import walk
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.plan.prepare.pair_numbers import paired
from sparsify.compiler.schedule.cost.weight_format import PAIRS, Packing, pack_matrix
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.passes.capture.draft import Draft, Key
from sparsify.passes.choose.autotune import THRESHOLDS, Candidate, Winner, autotune
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, index_extents
from sparsify.passes.choose.left_dense import choose_dense
from sparsify.passes.choose.linear_library import DENSE, LIBRARIES
from sparsify.passes.choose.site import Trial, compiled, dense_trial, trial
from sparsify.passes.graph.operators import is_constant, known_size, tensor_value
from sparsify.passes.region import region as regions
from sparsify.passes.region.region import Region, copied
from sparsify.passes.region.sparse_operand import Matrix
from sparsify.recipe.schema import Compile

KIND: Final = "weight format"
# The instruction set that multiplies pairs of bfloat16, by its name in `/proc/cpuinfo`.
PAIR_INSTRUCTIONS: Final = "avx512_bf16"
# Resolution of densities in the cache key of timings.
DENSITIES: Final = 40


def fastest_format(winner: Winner) -> str:
    """The fastest format as text, ignoring torch's time; "" if only dense products were timed."""
    formats = [one for one in winner.times[1:] if one[0] not in LIBRARIES]
    return min(formats, key=lambda one: one[1], default=("", 0.0))[0]


def dense_form(winner: Winner) -> str:
    """The library with the fastest product of the dense weight, "" for torch's."""
    dense = {"": winner.us} | {name: us for name, us in winner.times if name in DENSE}
    return min(dense, key=dense.__getitem__)


def described(winner: Winner) -> str:
    """The text of the timed formats, the fastest one first."""
    best, dense = fastest_format(winner), rounded(winner.us)
    first = f"{rounded(winner.us_of(best))} us, torch's {dense}" if best else f"torch's {dense} us"
    libraries = [f", {LIBRARIES[name].name} {rounded(us)}" for name, us in winner.times if name in LIBRARIES]
    others = [one for one in winner.times[1:] if one[0] not in LIBRARIES and one[0] != best]
    formats = [f", {rounded(us)} us as {name}" for name, us in others]
    return f"timed {first}{''.join([*libraries, *formats])}{winner.disturbed}"


def rounded(us: float) -> str:
    """A time with its significant digits."""
    return f"{us:.0f}" if us >= 20 else f"{us:.1f}"


def tune(
    draft: Draft,
    region: Region,
    name: str,
    packings: Sequence[Packing],
    stored_packing: Packing | None = None,
) -> Winner | None:
    """The times of the best formats for the weight `name` of a region; `None` if nothing needs timing.

    The `stored_packing` format is timed regardless of its expected cost.

    Raises:
        SparsifyError: a kernel cannot be built.
    """
    if draft.options.tune_seconds == 0:
        return None
    threshold = THRESHOLDS[KIND]
    smaller = [one for one in packings if one.is_smaller and one is not stored_packing]
    tried = [one for one in smaller if one.us <= threshold.slower * packings[0].us][: threshold.most]
    tried += [stored_packing] if stored_packing is not None else []
    tried = tried if not draft.why_undone(region.output) else []
    libraries = [library for library in LIBRARIES if draft.recipe.compile.allows(library)]
    if not tried:
        libraries = [library for library in libraries if library in DENSE]
    if not tried and not libraries:
        return None
    trials = {str(packing.format): packed(region, name, packing) for packing in tried}
    like = next(iter(trials.values())) if trials else packed(region, name, packings[0])
    return autotune(
        KIND,
        f"fastest call of {[*trials]} {libraries} {like.program}",
        lambda: candidates(draft, region, trials, libraries),
        sizes=rounded_sizes(draft, like, packings[0]),
        options=draft.options,
        seconds=draft.options.tune_seconds,
    )


def packed(region: Region, name: str, packing: Packing) -> Region:
    """The region with its weight in a format, and its program."""
    result = copied(region)
    weight = result.operands[name]
    assert isinstance(weight, Matrix), "weights are sparse operands"
    result.operands[name] = replace(weight, packed=packing.format)
    regions.finish(result)
    return result


def rounded_sizes(draft: Draft, region: Region, packing: Packing) -> Sizes:
    """The sizes in the cache key of timings: extents of the operands, and the rounded density of the weight."""
    assert region.program is not None, "packed writes the program"
    extents = {i: known_size(size, UNKNOWN_ROWS) or UNKNOWN_ROWS for i, size in index_extents(region)}
    return Sizes(extents, {"density": round(DENSITIES * packing.stored / max(1, packing.entries))})


def candidates(
    draft: Draft, region: Region, trials: dict[str, Region], libraries: Sequence[str]
) -> list[Candidate]:
    """The dense nodes, the region in each format, and the products of supporting libraries."""
    region_trials = [trial(draft, one) for one in trials.values()]
    compiled(region_trials)
    named = [("torch", dense_trial(draft, region)), *zip(trials, region_trials, strict=True)]
    named += [
        (name, library) for name in libraries if (library := library_trial(draft, region, name)) is not None
    ]
    return [Candidate(name, one.call) for name, one in named]


def library_trial(draft: Draft, region: Region, name: str) -> Trial | None:
    """The call of a region by a library; `None` if the library does not support the region."""
    result = copied(region)
    result.backend = name
    regions.finish(result)
    try:
        result_trial = trial(draft, result)
        if result_trial.kernel is not None:
            return None
        with torch.no_grad():
            result_trial.call()
    except (AttributeError, RuntimeError, TypeError, SparsifyError):  # not in this build of torch
        return None
    return result_trial


# Minimum size of a weight that triggers a measurement of the machine, if not measured yet.
LARGE = 1 << 16
# Speedup required for a second format of a packed weight, expected; with timing, the expected speedup required to be
# timed.
FAR = 1.25
TIMED = 1.1


def pack(draft: Draft) -> Draft:
    """The draft with a format for each frozen weight whose rule leaves the format open."""
    if draft.is_trainable:
        return draft if not draft.trains_dense else trained_densely(draft)
    sparse_regions = []
    for region in draft.regions:
        if not (weights := packings(draft, region)):
            sparse_regions.append(region)
            continue
        timed, chosen = choice(draft, region, weights)
        sources = {name: m.source for name, m in region.operands.items() if isinstance(m, Matrix)}
        is_open = len(chosen) == len(region.matrices) and not is_packed(draft, region)
        undone = draft.why_undone(region.output)
        if is_open and (undone or not is_worth_it(chosen, draft.recipe.compile, timed)):
            if timed is not None and timed.name in LIBRARIES:
                region.notes += [undone] if undone else []
                sparse_regions.append(by_library(region, chosen, timed))
                continue
            for name, packed in chosen.items():
                gain = "faster" if packed.is_smaller else "smaller"
                reason = f"the weight {sources[name]} is {gain} dense: {compared(packed, timed)}"
                choose_dense(draft, region, region.output, undone or reason)
            continue
        for name, packed in chosen.items():
            weight = region.operands[name]
            assert isinstance(weight, Matrix), "weights are sparse operands"
            form = draft.formats.setdefault(key_of(weight), packed.format)  # one format for all readers
            region.operands[name] = replace(weight, packed=form)
            region.notes.append(f"{weight.source} packed: {compared(packed, timed)}")
        region.dense_form = "" if timed is None else dense_form(timed)
        regions.finish(region)
        sparse_regions.append(region)
    draft.regions = sparse_regions
    return draft


def trained_densely(draft: Draft) -> Draft:
    """The draft with trained weights left to torch, which is faster."""
    remaining = []
    for region in draft.regions:
        weights = [m for m in region.matrices if m.dense is not None and m.dense.op == "get_attr"]
        if weights:
            reason = f"the weight {weights[0].source} trains faster dense: {draft.trains_dense}"
            choose_dense(draft, region, region.output, reason)
        else:
            remaining.append(region)
    draft.regions = remaining
    return draft


def packings(draft: Draft, region: Region) -> dict[str, list[Packing]]:
    """The candidate formats of each weight with an open format, fastest expected first."""
    weights = {name: m for name, m in region.operands.items() if isinstance(m, Matrix) and is_free(m)}
    offers = {
        name: offered(draft, weight, packing(draft, region, weight)) for name, weight in weights.items()
    }
    return {name: formats for name, formats in offers.items() if formats}


def offered(draft: Draft, weight: Matrix, packings: list[Packing]) -> list[Packing]:
    """The formats that a weight can have, out of some candidates.

    A format already chosen in this graph is the only one. Otherwise, if graphs for other numbers of rows have the
    weight packed, the result is the best of their formats; further formats come first if far better (or possibly so,
    before timing) and if all together are smaller than the dense weight.
    """
    key = key_of(weight)
    stored = draft.stored.get(key)
    if key not in draft.formats and stored is not None and packings:
        stored_formats = [one for one in packings if one.format in stored.formats]
        # A missing one (bits, for one row alone) counts as slow for the present number of rows.
        best = stored_formats[0] if stored_formats else replace(packings[0], format=stored.formats[0], us=inf)
        room = packings[0].dense_bytes - stored.bytes
        least = TIMED if draft.options.tune_seconds else FAR
        further = [one for one in packings if one.bytes < room and least * one.us < best.us]
        if further and draft.recipe.compile.memory != "compact":
            return [*further, best]
        draft.formats[key] = best.format
    return [one for one in packings if one.format == draft.formats.get(key)] or packings


def choice(
    draft: Draft, region: Region, packings_of: dict[str, list[Packing]]
) -> tuple[Winner | None, dict[str, Packing]]:
    """A format for each weight, with the timings if any.

    Nothing is timed if memory or another region decides, nor for several weights.
    """
    is_held = is_packed(draft, region) and not is_decided(draft, region)
    expected = {name: far_better(formats) if is_held else formats[0] for name, formats in packings_of.items()}
    if is_decided(draft, region) or len(packings_of) > 1 or len(region.matrices) > 1:
        return None, expected
    if draft.recipe.compile.memory == "compact":
        return None, expected
    ((name, formats),) = packings_of.items()
    stored_packing = formats[-1] if is_held else None
    try:
        timed = tune(draft, region, name, formats, stored_packing)
    except SparsifyError:  # kernels cannot be built: reported by `emit`
        return None, expected
    if timed is None:
        return None, expected
    fastest = fastest_format(timed)
    best = next((one for one in formats if str(one.format) == fastest), formats[0])
    if stored_packing is not None and timed.us_of(str(stored_packing.format)) <= FAR * timed.us_of(fastest):
        best = stored_packing
    return timed, {name: best}


def far_better(formats: list[Packing]) -> Packing:
    """The first format if expected to be far faster than the last, existing one; otherwise the last."""
    return formats[0] if FAR * formats[0].us < formats[-1].us else formats[-1]


def is_free(matrix: Matrix) -> bool:
    """Whether a sparse operand is a weight with an open format."""
    is_weight = matrix.dense is not None and (matrix.dense.op == "get_attr" or is_constant(matrix.dense))
    return is_weight and matrix.mark.format == "auto"


def key_of(weight: Matrix) -> Key:
    """The key of operands made of a weight."""
    return weight.source, weight.transposed


def is_decided(draft: Draft, region: Region) -> bool:
    """Whether the formats of the weights of a region are chosen."""
    return all(key_of(weight) in draft.formats for weight in region.matrices)


def is_packed(draft: Draft, region: Region) -> bool:
    """Whether other regions or graphs have the weights of a region packed already."""
    keys = [key_of(weight) for weight in region.matrices]
    return all(key in draft.formats or key in draft.stored for key in keys)


def is_worth_it(chosen: dict[str, Packing], options: Compile, timed: Winner | None) -> bool:
    """Whether packed weights are smaller than dense ones and, unless memory decides alone, known faster."""
    if not all(packing.is_smaller for packing in chosen.values()):
        return False
    if options.memory == "compact" or not options.allows("torch"):
        return True
    if timed is not None:
        return timed.name not in ("", *LIBRARIES)
    return sum(packing.us for packing in chosen.values()) < sum(
        packing.dense_us for packing in chosen.values()
    )


def by_library(region: Region, chosen: dict[str, Packing], timed: Winner) -> Region:
    """The region with a library's product, faster than torch's and than memory-saving kernels."""
    region.backend = timed.name
    for name, packing in chosen.items():
        weight = region.operands[name]
        assert isinstance(weight, Matrix), "weights are sparse operands"
        region.notes.append(
            f"{weight.source} dense, packed beside by {LIBRARIES[timed.name].name}: {compared(packing, timed)}"
        )
    regions.finish(region)
    return region


def compared(packing: Packing, timed: Winner | None) -> str:
    """Why a format was chosen, or none."""
    share = f"{packing.stored / max(1, packing.entries):.1%} stored"
    expected = f"{share}, expected {packing.us:.0f} us, torch's product {packing.dense_us:.0f}"
    return expected if timed is None else f"{expected}; {described(timed)}"


def packing(draft: Draft, region: Region, weight: Matrix) -> list[Packing]:
    """The formats of a weight, best first; none unless multiplied with rows along its columns."""
    assert weight.dense is not None, "weights are parameters"
    tensor = draft.known_tensor(weight.dense)
    product = next((p for _, _, value in region.statements if (p := product_with(value, weight.name))), None)
    if tensor is None or product is None:
        return []
    access, other = product
    summed = index_names(other)[-1]
    if len(index_names(access)) != 2 or summed not in index_names(access):
        return []
    mask: Tensor = (tensor.t() if weight.transposed else tensor) != 0
    is_turned = index_names(access)[0] == summed
    rows = rows_of(region, other)
    is_large = tensor.numel() >= LARGE
    machine = (calibrate.try_measured if is_large else calibrate.cached_machine)(draft.options)
    compact = draft.recipe.compile.memory == "compact"
    oriented = mask.t() if is_turned else mask
    sizes = tensor.element_size(), machine
    has_pairs = target.has(PAIR_INSTRUCTIONS) and multiplies_pairs(region, weight, is_turned)
    formats = pack_matrix(
        oriented, rows, *sizes, value_bytes=weight.dtype.itemsize, compact=compact, has_pairs=has_pairs
    )
    if not is_turned:
        return formats
    return [replace(one, format=one.format.permuted((1, 0))) for one in formats]


def multiplies_pairs(region: Region, weight: Matrix, is_turned: bool) -> bool:
    """Whether the kernel of a region multiplies pairs of neighbours of a weight that stores pairs."""
    if weight.dtype != torch.bfloat16:
        return False
    result = copied(region)
    result.operands[weight.name] = replace(weight, packed=PAIRS.permuted((1, 0)) if is_turned else PAIRS)
    regions.finish(result)
    return result.program is not None and bool(paired(result.program, Sizes())[1])


def product_with(value: object, name: str) -> tuple[Access, Access] | None:
    """The access to a matrix and the other factor in a sum of binary products."""
    for part in walk(value):  # type: ignore[arg-type]
        match part:
            case Reduce("sum", _, Call("mul", (Access() as left, Access() as right))):
                if name in (left.tensor, right.tensor):
                    return (left, right) if left.tensor == name else (right, left)
    return None


def rows_of(region: Region, access: Access) -> int:
    """The number of rows the other operand of a product has in the example."""
    operand = region.operands.get(access.tensor)
    node = operand.dense if isinstance(operand, Matrix) else operand
    value = tensor_value(node)
    sizes = [known_size(extent) for extent in value.shape[:-1]] if value is not None else []
    if node is None:  # a temporary
        sizes = [None] * (len(access.indices) - 1)
    return prod(size or UNKNOWN_ROWS for size in sizes)
