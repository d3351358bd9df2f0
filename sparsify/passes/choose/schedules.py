"""The schedules of a region's kernels timed: the expected one, and those that differ from it in one decision.

In: the call of `Y[i,k] = sum(j, A[i,j] * T[j,k])`, its kernel compiled, and the example's inputs. Out: the same call
whose kernel has the schedule that was fastest on them, and a note that says so.

What turns agreed on is kept beside the kernels as text, by machine, statement and about the sizes of its operands:
another process finds it without timing. Adjacencies, weights and dense operands are all the same to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler import calibrate
from sparsify.compiler.generated import GeneratedStep
from sparsify.compiler.recall import recall
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.neighbours import neighbours
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.side_by_side import side_by_side
from sparsify.errors import SparsifyError
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.estimate import estimated_us, example
from sparsify.passes.choose.timing import GAIN, is_agreed, race
from sparsify.passes.region.region import Region

# Regions that are expected to take less keep the expected schedules: kernels to compare take their time to compile.
LEAST_US: Final = 100.0
# Schedules that are timed beside the expected one.
MOST: Final = 3


@dataclass(frozen=True, slots=True)
class Fastest:
    """What was measured.

    Attributes:
        schedule: the fastest, as text.
        us: of a call with it.
        expected_us: of a call with the one that was expected to be the fastest.
        count: how many were timed.
        is_agreed: whether turns agreed.
    """

    schedule: str
    us: float
    expected_us: float
    count: int
    is_agreed: bool = True

    @property
    def is_better(self) -> bool:
        """Whether it is faster than the expected one by more than chance, as far as turns agreed."""
        return self.is_agreed and self.us <= (1 - GAIN) * self.expected_us


def tune_schedules(
    draft: Draft,
    region: Region,
    call: RegionCall,
    arguments: Sequence[fx.Node],
    sizes: Sizes,
    seconds: float,
) -> None:
    """Gives the kernels of a call that is ready the schedules that are fastest for the example, and notes them.

    Args:
        arguments: of the call.
        sizes: of the example's operands.
        seconds: for which they are timed, 0 for not at all.
    """
    options = draft.options
    if seconds == 0 or (estimated_us(draft, region, sizes) or 0) < LEAST_US:
        return
    tensors: dict[str, Any] = {}

    def operands() -> dict[str, Any]:
        """All tensors of the example by name, computed when something is to be timed."""
        if not tensors:
            with torch.no_grad():
                values = call.values([example(draft, node) for node in arguments])
                tensors.update(call.kernel.run(tuple(values)))
        return tensors

    shared = sizes.shared(call.program)
    for step in call.kernel.generated:
        extents, stored = step.program.declarations, step.program.inputs
        rounded = dict(shared.rounded(step.program))
        names = {name for declared in extents for name in declared.extents}
        known = Sizes(
            {name: rounded[name] or 0 for name in sorted(names)},
            {name: rounded[name] or 0 for name in stored if rounded.get(name)},
            rows={name: rounded[f"rows of {name}"] or 0 for name in stored},
        )
        question = f"fastest kernel of {step.step!r} {calibrate.key_of(options)}"
        each = seconds / len(call.kernel.generated)
        try:
            found = recall(
                question,
                known,
                partial(fastest, step, operands, shared, each),
                options,
                lambda f: f.is_agreed,
                classes={"Fastest": Fastest},
            )
        except SparsifyError as error:
            # Such as operands that the example lacks.
            region.notes.append(f"schedules of {step.result} not timed, the expected one stays: {error}")
            continue
        if found.is_better:
            call.kernel.prefer(step, Schedule.parse(found.schedule), shared)
            call.kernel.prepare(sizes)
        region.notes.append(told(step, found))


def told(step: GeneratedStep, found: Fastest) -> str:
    """What was measured, in words."""
    timed = f"{found.count} schedules of {step.result} timed"
    if not found.is_agreed:
        return f"{timed}: other work disturbed it, the expected one stays"
    if not found.is_better:
        return f"{timed}: none faster than the expected one, {found.expected_us:.0f} us"
    return f"{timed}: {found.us:.0f} us, the expected one {found.expected_us:.0f}: {found.schedule}"


def fastest(step: GeneratedStep, operands: Any, sizes: Sizes, seconds: float) -> Fastest:
    """The fastest schedule of a statement for these operands.

    Raises:
        SparsifyError: the operands cannot be computed.
    """
    tensors = operands()
    given = tuple(tensors[name] for name in step.operands)
    usual = step.with_schedule(None)  # without what was measured before
    usual.prepare(sizes)
    expected = usual.stages.schedule
    tried = compiled(usual, expected, sizes)
    contenders = [usual, *tried.values()]
    with torch.no_grad():
        times = race([partial(one.compute, given) for one in contenders], seconds)
    texts = [str(expected), *map(str, tried)]
    best = min(range(len(texts)), key=lambda n: times[n].us)
    return Fastest(texts[best], times[best].us, times[0].us, len(texts), is_agreed(times))


def compiled(step: GeneratedStep, expected: Schedule, sizes: Sizes) -> dict[Schedule, GeneratedStep]:
    """The statement by schedules near the expected one, as far as they fit it, compiled side by side."""
    near = [schedule for schedule, _ in zip(neighbours(expected, sizes.extents), range(MOST), strict=False)]
    made = {schedule: step.with_schedule(schedule) for schedule in near}
    outcomes = side_by_side([partial(one.prepare, sizes) for one in made.values()])
    signature = step.current.signature
    return {
        schedule: one
        for (schedule, one), outcome in zip(made.items(), outcomes, strict=True)
        if not isinstance(outcome, Exception) and one.current.signature == signature
    }
