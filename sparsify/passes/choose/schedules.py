"""Timing of schedules for a region's kernels: the expected one, and its neighbours by one decision.

In: the call of `Y[i,k] = sum(j, A[i,j] * T[j,k])` with a compiled kernel, and the example's inputs. Out: the same call
with the fastest schedule for the example, and a note. In long calls, ranges of rows are timed instead. Times are kept
by statement and rounded sizes of the operands (adjacencies, weights or dense tensors).
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import torch
from torch import fx

from sparsify.compiler.cpp.toolchain.side_by_side import side_by_side
from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.compiler.pipeline import searched
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.neighbours import neighbours
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.errors import SparsifyError
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.capture.draft import Draft
from sparsify.passes.choose.autotune import THRESHOLDS, Candidate, Winner, autotune
from sparsify.passes.choose.estimate import estimated_us, example
from sparsify.passes.choose.operand_parts import Operands, parts_of
from sparsify.passes.region.region import Region

KIND: Final = "schedule"


def tune_schedules(
    draft: Draft,
    region: Region,
    call: RegionCall,
    arguments: Sequence[fx.Node],
    sizes: Sizes,
    seconds: float,
) -> None:
    """Sets the fastest schedules for the example in the kernels of a compiled call, with notes.

    Args:
        arguments: argument nodes of the call.
        sizes: sizes of the example's operands.
        seconds: budget, 0 for no timing.
    """
    options = draft.options
    expected_us = estimated_us(draft, region, sizes) or 0.0
    if seconds == 0 or expected_us < THRESHOLDS[KIND].least_us:
        return
    tensors: dict[str, Any] = {}

    def operands() -> dict[str, Any]:
        """All tensors of the example by name, computed when something is to be timed."""
        if not tensors:
            with torch.no_grad():
                values = call.values([example(draft, node) for node in arguments])
                tensors.update(call.kernel.run(tuple(values)))
        return tensors

    shared = call.kernel.sizes_as_read(sizes)
    for step in call.kernel.generated:
        extents, stored = step.program.declarations, step.program.inputs
        rounded = dict(shared.rounded(step.program))
        names = {name for declared in extents for name in declared.extents}
        step_sizes = Sizes(
            {name: rounded[name] or 0 for name in sorted(names)},
            {name: rounded[name] or 0 for name in stored if rounded.get(name)},
            rows={name: rounded[f"rows of {name}"] or 0 for name in stored},
        )
        try:
            timing = autotune(
                KIND,
                f"fastest kernel of {step.step!r}",
                partial(candidates, step, operands, shared, expected_us),
                sizes=step_sizes,
                options=options,
                seconds=seconds / len(call.kernel.generated),
            )
        except SparsifyError as error:
            # For example operands missing in the example.
            region.notes.append(f"schedules of {step.result} not timed, the expected one stays: {error}")
            continue
        if timing.name:
            call.kernel.prefer(step, Schedule.parse(timing.name), shared)
            call.kernel.prepare(sizes)
        region.notes.append(described(step, timing))


def described(step: GeneratedStep, timing: Winner) -> str:
    """The text of the measured times."""
    timed = f"{len(timing.times)} schedules of {step.result} timed"
    if not timing.is_agreed:
        return f"{timed}: other work disturbed it, the expected one stays"
    if not timing.name:
        return f"{timed}: none faster than the expected one, {timing.us:.0f} us"
    return f"{timed}: {timing.us_of(timing.name):.0f} us, the expected one {timing.us:.0f}: {timing.name}"


def candidates(step: GeneratedStep, operands: Any, sizes: Sizes, expected_us: float) -> list[Candidate]:
    """A statement with the expected schedule and its neighbours, for operands or ranges of their rows.

    Raises:
        SparsifyError: the operands cannot be computed.
    """
    tensors = operands()
    parts = parts_of(step, tuple(tensors[name] for name in step.operands), expected_us)
    usual = step.with_schedule(None)  # without earlier measurements
    usual.prepare(sizes)
    expected = usual.stages.schedule
    steps = compiled(usual, expected, sizes)
    if len(parts.operands) > 1:  # sizes of a range may have another schedule
        usual = step.with_schedule(expected)
        usual.prepare(sizes)
    return [
        Candidate(str(schedule), partial(computed, one, parts.operands), parts.share)
        for schedule, one in {expected: usual, **steps}.items()
    ]


def computed(step: GeneratedStep, ranges: Sequence[Operands]) -> list[Any]:
    """The results for each range."""
    return [step.compute(operands) for operands in ranges]


def compiled(step: GeneratedStep, expected: Schedule, sizes: Sizes) -> dict[Schedule, GeneratedStep]:
    """The statement with the best searched schedules and those near the expected one, compiled in parallel.

    Only programs without a template have searched schedules.
    """
    known = step.sizes_as_read(sizes)
    found = searched(step.stages.plain, step.variants.vector_bytes, known, step.step.order)
    best = () if found is None else found.schedules
    others = dict.fromkeys(one for one in chain(best, neighbours(expected, sizes.extents)) if one != expected)
    near = list(islice(others, THRESHOLDS[KIND].most))
    steps = {schedule: step.with_schedule(schedule) for schedule in near}
    outcomes = side_by_side([partial(one.prepare, sizes) for one in steps.values()])
    signature = step.current.signature
    return {
        schedule: one
        for (schedule, one), outcome in zip(steps.items(), outcomes, strict=True)
        if not isinstance(outcome, Exception) and one.current.signature == signature
    }
