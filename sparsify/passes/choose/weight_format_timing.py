"""The formats of a weight timed against each other, torch's product and those of other libraries.

In: the region of `Y[i,k] = relu(sum(j, X[i,j] * W[k,j]) + b[k])`, the formats for W that are expected to be fastest.
Out: `Timed`: what each took on inputs like the example's, and so which is to run.

The contenders are the calls that would run, each with all that it takes beside its product. They run in turns until
three turns of each that may win agree on its least time, or `tune_seconds` are over. What was agreed on is kept beside
the kernels for weights of this shape and density: another `apply` finds it, and layers that are alike share it.

A weight that no format makes smaller stays dense whatever a format takes: dense products alone are timed for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final

import torch

from sparsify.compiler import calibrate
from sparsify.compiler.recall import recall
from sparsify.compiler.schedule.pack import Packing
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.dry_run import Trial, compiled, dense_trial, trial
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, extents_of
from sparsify.passes.choose.linear_library import DENSE, LIBRARIES, SPOKEN
from sparsify.passes.choose.timing import GAIN, is_agreed, race
from sparsify.passes.graph.operators import known_size
from sparsify.passes.region import region as regions
from sparsify.passes.region.region import Region, copied
from sparsify.passes.region.sparse_operand import Matrix

# Formats that are timed, and how much slower than the best they may be expected to be.
MOST: Final = 3
SLOWER: Final = 1.5
# Weights whose densities differ by less than one in so many share what was found.
DENSITIES: Final = 40


@dataclass(frozen=True, slots=True)
class Timed:
    """What was measured.

    Attributes:
        format: the fastest, as text; "" where dense products alone were timed.
        schedule: of its kernel.
        us: of a call with it; endless without one.
        dense_us: of the dense nodes, by torch.
        libraries: names of other libraries' products and their times.
        others: the other formats with their times.
        is_agreed: whether turns agreed on what decides.
    """

    format: str
    schedule: str
    us: float
    dense_us: float
    libraries: tuple[tuple[str, float], ...] = ()
    others: tuple[tuple[str, float], ...] = ()
    is_agreed: bool = True

    @property
    def is_faster(self) -> bool:
        """Whether the format is faster than torch, and no slower than any library."""
        rivals = [us for _, us in self.libraries]
        return self.us <= min([(1 - GAIN) * self.dense_us, *rivals])

    def us_of(self, format: str) -> float:
        """What one of the formats takes."""
        return dict(self.others).get(format, self.us)

    @property
    def library(self) -> str:
        """The library that is faster than torch; "" for none."""
        name, us = min(self.libraries, key=lambda found: found[1], default=("", 0.0))
        return name if us <= (1 - GAIN) * self.dense_us else ""

    def __str__(self) -> str:
        libraries = "".join(f", {SPOKEN[name]} {rounded(us)}" for name, us in self.libraries)
        others = "".join(f", {rounded(us)} us as {text}" for text, us in self.others)
        disturbed = "" if self.is_agreed else " (other work disturbed it)"
        dense = rounded(self.dense_us)
        first = f"{rounded(self.us)} us, torch's {dense}" if self.format else f"torch's {dense} us"
        return f"timed {first}{libraries}{others}{disturbed}"


def rounded(us: float) -> str:
    """A time with the digits that count."""
    return f"{us:.0f}" if us >= 20 else f"{us:.1f}"


def tune(
    draft: Draft, region: Region, name: str, found: Sequence[Packing], held: Packing | None = None
) -> Timed | None:
    """What the best formats for the weight `name` of a region take; `None` where nothing is to be timed.

    The one that it is `held` in is timed whatever it is expected to take.

    Raises:
        SparsifyError: a kernel cannot be built.
    """
    if draft.options.tune_seconds == 0:
        return None
    smaller = [one for one in found if one.is_smaller and one is not held]
    tried = [one for one in smaller if one.us <= SLOWER * found[0].us][:MOST]
    tried += [held] if held is not None else []
    libraries = [library for library in LIBRARIES if draft.recipe.compile.allows(library)]
    if not tried:
        libraries = [library for library in libraries if library in DENSE]
    if not tried and not libraries:
        return None
    trials = [packed(region, name, packing) for packing in tried]
    like = trials[0] if trials else packed(region, name, found[0])
    sizes = rounded_sizes(draft, like, found[0])
    formats = [str(packing.format) for packing in tried]
    key = calibrate.key_of(draft.options)
    question = f"fastest call of {formats} {libraries} {like.program} {key}"
    answer = partial(timed, draft, region, trials, formats, libraries)
    classes = {"Timed": Timed}
    return recall(question, sizes, answer, draft.options, lambda made: made.is_agreed, classes=classes)


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


def timed(
    draft: Draft,
    region: Region,
    trials: Sequence[Region],
    formats: Sequence[str],
    libraries: Sequence[str],
) -> Timed:
    """What the regions, torch and libraries take, in turns."""
    own = [trial(draft, one) for one in trials]
    compiled(own)
    rivals = {name: made for name in libraries if (made := by_library(draft, region, name)) is not None}
    calls = [one.call for one in (*own, dense_trial(draft, region), *rivals.values())]
    with torch.no_grad():
        found = race(calls, draft.options.tune_seconds)
    best = min(range(len(own)), key=lambda n: found[n].us, default=None)
    return Timed(
        "" if best is None else formats[best],
        "" if best is None else schedule_of(own[best]),
        inf if best is None else found[best].us,
        found[len(own)].us,
        tuple((name, found[len(own) + 1 + n].us) for n, name in enumerate(rivals)),
        tuple((formats[n], found[n].us) for n in range(len(own)) if n != best),
        is_agreed(found),
    )


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


def schedule_of(own: Trial) -> str:
    """The schedules of the kernels as text."""
    assert own.kernel is not None and own.sizes is not None, "regions without libraries have kernels"
    return "\n".join(str(step.variants.wanted(own.sizes)) for step in own.kernel.generated)


def try_tune(
    draft: Draft, region: Region, name: str, found: Sequence[Packing], held: Packing | None = None
) -> Timed | None:
    """As `tune`; where kernels cannot be built, `emit` will say so, and nothing is timed."""
    try:
        return tune(draft, region, name, found, held)
    except SparsifyError:
        return None
