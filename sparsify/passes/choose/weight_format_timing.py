"""The formats of a weight timed against each other, torch's product and those of other libraries.

In: the region of `Y[i,k] = relu(sum(j, X[i,j] * W[k,j]) + b[k])`, the formats for W that are expected to be fastest.
Out: a `Winner` of "torch", formats as text and libraries by name, on inputs like the example's.

The candidates are the calls that would run, each with all that it takes beside its product. Layers that are alike
share what was timed: it is kept for weights of this shape and density.

A weight that no format makes smaller stays dense whatever a format takes: dense products alone are timed for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from sparsify.compiler.schedule.pack import Packing
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.autotune import THRESHOLDS, Candidate, Winner, autotune
from sparsify.passes.choose.dry_run import Trial, compiled, dense_trial, trial
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, extents_of
from sparsify.passes.choose.linear_library import DENSE, LIBRARIES, SPOKEN
from sparsify.passes.graph.operators import known_size
from sparsify.passes.region import region as regions
from sparsify.passes.region.region import Region, copied
from sparsify.passes.region.sparse_operand import Matrix

KIND: Final = "weight format"
# Weights whose densities differ by less than one in so many share what was found.
DENSITIES: Final = 40


def fastest_format(winner: Winner) -> str:
    """The fastest format as text, whatever torch takes; "" where dense products alone were timed."""
    formats = [one for one in winner.times[1:] if one[0] not in LIBRARIES]
    return min(formats, key=lambda one: one[1], default=("", 0.0))[0]


def described(winner: Winner) -> str:
    """What was timed, in words: the fastest format first."""
    best, dense = fastest_format(winner), rounded(winner.us)
    first = f"{rounded(winner.us_of(best))} us, torch's {dense}" if best else f"torch's {dense} us"
    libraries = [f", {SPOKEN[name]} {rounded(us)}" for name, us in winner.times if name in LIBRARIES]
    others = [one for one in winner.times[1:] if one[0] not in LIBRARIES and one[0] != best]
    formats = [f", {rounded(us)} us as {name}" for name, us in others]
    return f"timed {first}{''.join([*libraries, *formats])}{winner.disturbed}"


def rounded(us: float) -> str:
    """A time with the digits that count."""
    return f"{us:.0f}" if us >= 20 else f"{us:.1f}"


def tune(
    draft: Draft, region: Region, name: str, found: Sequence[Packing], held: Packing | None = None
) -> Winner | None:
    """The times of the best formats for the weight `name` of a region; `None` where nothing is to be timed.

    The one that it is `held` in is timed whatever it is expected to take.

    Raises:
        SparsifyError: a kernel cannot be built.
    """
    if draft.options.tune_seconds == 0:
        return None
    threshold = THRESHOLDS[KIND]
    smaller = [one for one in found if one.is_smaller and one is not held]
    tried = [one for one in smaller if one.us <= threshold.slower * found[0].us][: threshold.most]
    tried += [held] if held is not None else []
    libraries = [library for library in LIBRARIES if draft.recipe.compile.allows(library)]
    if not tried:
        libraries = [library for library in libraries if library in DENSE]
    if not tried and not libraries:
        return None
    trials = {str(packing.format): packed(region, name, packing) for packing in tried}
    like = next(iter(trials.values())) if trials else packed(region, name, found[0])
    return autotune(
        KIND,
        f"fastest call of {[*trials]} {libraries} {like.program}",
        lambda: candidates(draft, region, trials, libraries),
        sizes=rounded_sizes(draft, like, found[0]),
        options=draft.options,
        seconds=draft.options.tune_seconds,
    )


def packed(region: Region, name: str, packing: Packing) -> Region:
    """The region with its weight in a format, and its program."""
    made = copied(region)
    weight = made.operands[name]
    assert isinstance(weight, Matrix), "weights are sparse operands"
    made.operands[name] = replace(weight, packed=packing.format)
    regions.finish(made)
    return made


def rounded_sizes(draft: Draft, region: Region, packing: Packing) -> Sizes:
    """The sizes that what was found is kept for: those of the operands, and about how dense the weight is."""
    assert region.program is not None, "packed writes the program"
    extents: dict[str, int] = {}
    for name, operand in region.operands.items():
        declared = region.program.declaration(region.names[name])
        for index, extent in zip(declared.extents, extents_of(operand), strict=False):
            extents[index] = known_size(extent, UNKNOWN_ROWS) or UNKNOWN_ROWS
    return Sizes(extents, {"density": round(DENSITIES * packing.stored / max(1, packing.entries))})


def candidates(
    draft: Draft, region: Region, trials: dict[str, Region], libraries: Sequence[str]
) -> list[Candidate]:
    """The dense nodes, the region in each format, and the products of libraries that have one."""
    own = [trial(draft, one) for one in trials.values()]
    compiled(own)
    named = [("torch", dense_trial(draft, region)), *zip(trials, own, strict=True)]
    named += [(name, made) for name in libraries if (made := by_library(draft, region, name)) is not None]
    return [Candidate(name, one.call) for name, one in named]


def by_library(draft: Draft, region: Region, name: str) -> Trial | None:
    """The call of a region by a library; `None` where the library has nothing for it."""
    made = copied(region)
    made.backend = name
    regions.finish(made)
    try:
        found = trial(draft, made)
        if found.kernel is not None:
            return None
        with torch.no_grad():
            found.call()
    except (AttributeError, RuntimeError, TypeError, SparsifyError):  # torch was built without it
        return None
    return found


def try_tune(
    draft: Draft, region: Region, name: str, found: Sequence[Packing], held: Packing | None = None
) -> Winner | None:
    """As `tune`; where kernels cannot be built, `emit` will say so, and nothing is timed."""
    try:
        return tune(draft, region, name, found, held)
    except SparsifyError:
        return None
