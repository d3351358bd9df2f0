"""The stages of the compiler from an einsum program to C++; each result is verified and dumped.

In: the step `Y[i,k] = sum(j, A[i,j] * T[j,k])` of a plan. Out: its `Stages`: program, notation, schedule, loops, C++.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from sparsify.compiler.cpp import codegen
from sparsify.compiler.cpp import verify as cpp
from sparsify.compiler.einsum import verify as einsum
from sparsify.compiler.einsum.infer import format
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.loops import batch_reductions, hoist_loads, lower, simplify
from sparsify.compiler.loops import nodes as loop_nodes
from sparsify.compiler.loops import verify as loops
from sparsify.compiler.notation import concretize, printer
from sparsify.compiler.notation import verify as notation
from sparsify.compiler.notation.lane_width import lane_bytes, lanes
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.plan.prepare.transpose_operands import Twin
from sparsify.compiler.plan.step import Step
from sparsify.compiler.schedule.describe import gloss
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.rewrite import apply
from sparsify.compiler.schedule.search.searched import Searched
from sparsify.compiler.schedule.sizes import UNKNOWN, Sizes
from sparsify.compiler.schedule.templates.candidates import candidates, search_of
from sparsify.compiler.schedule.templates.heavy_rows import with_hubs
from sparsify.dump import Dump
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError
from sparsify.options import Options, current


@dataclass(frozen=True, slots=True)
class Given:
    """The settings besides the program that determine a kernel."""

    schedule: Schedule
    vector_bytes: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A lowering from one representation to the next.

    Attributes:
        name: name of the result in `SPARSIFY_DUMP` and `explain`.
        run: function to the next representation.
        text: printer of the result.
        verify: check of well-formedness, raises.
        refuses: whether `verify` rejects illegal schedules: such a check always runs.
    """

    name: str
    run: Callable[[Any, Given], Any]
    text: Callable[[Any, Given], str]
    verify: Callable[[Any], None]
    refuses: bool = False


def infer_formats(program: Program, given: Given) -> Program:
    """The program with a format for each result."""
    return format.infer_format(program)


def concretized(program: Program, given: Given) -> Notation:
    """Concrete index notation: a loop for each index variable, in no particular order."""
    return concretize.concretize(program)


def scheduled(plain: Notation, given: Given) -> Notation:
    """The loops after applying the schedule."""
    return apply.apply(plain, given.schedule)


def lowered(tree: Notation, given: Given) -> loop_nodes.Function:
    """Loop IR: positions and registers instead of index variables and tensors."""
    return lower.lower(tree, given.vector_bytes)


def simplified(function: loop_nodes.Function, given: Given) -> loop_nodes.Function:
    """The loops simplified: neighbouring horizontal reductions in one tree, common vectors of sums loaded once."""
    return hoist_loads.hold(batch_reductions.together(simplify.simplify(function)))


def emitted(function: loop_nodes.Function, given: Given) -> str:
    """The C++ translation unit."""
    return codegen.emit(function)


def plain_text(result: object, given: Given) -> str:
    """The `str` of a representation."""
    return str(result)


def nest_text(tree: Notation, given: Given) -> str:
    """The loops of a notation before its schedule, without declarations, which the program prints."""
    return printer.folded(tree.body)


def directives_text(schedule: Schedule) -> str:
    """The directives with their explanations."""
    texts = [str(directive) for directive in schedule.directives]
    width = max(map(len, texts), default=0)
    glosses = map(gloss, schedule.directives)
    return (
        "\n".join(f"{text:{width}}   {words}" for text, words in zip(texts, glosses, strict=True))
        or "as it is"
    )


def schedule_text(tree: Notation, given: Given) -> str:
    """A schedule, a directive a line, and the notation after it."""
    return f"{directives_text(given.schedule)}\n\n{printer.indented(tree.body)}"


STAGES: Final[tuple[Stage, ...]] = (
    Stage("einsum", infer_formats, plain_text, einsum.verify),  # formats determine the loops
    Stage("notation", concretized, nest_text, notation.verify),  # the loops that a schedule transforms
    Stage("schedule", scheduled, schedule_text, notation.verify, refuses=True),  # the last stage with tensors
    Stage("lowered", lowered, plain_text, loops.verify),  # index variables end here: levels become arrays
    Stage("loops", simplified, plain_text, loops.verify),  # lowering is verbose
    Stage("cpp", emitted, plain_text, cpp.verify),  # C++ is printed from loop IR only
)
# Number of stages before scheduling, run once for all candidates.
UNSCHEDULED: Final = 2
RUNNERS_UP: Final = 3


@dataclass(frozen=True, slots=True)
class Stages:
    """The results of all stages for a step, as shown by `explain`.

    Attributes:
        program: step with formats.
        plain: notation before the schedule.
        schedule: chosen schedule.
        notation: notation after the schedule.
        loops: simplified loop IR.
        cpp: translation unit.
        refused: better schedules that do not lower, with reasons.
        behind: next best schedules.
        twins: operands read in another format.
        why: reason for a searched schedule, empty for others.
    """

    program: Program
    plain: Notation
    schedule: Schedule
    notation: Notation
    loops: loop_nodes.Function
    cpp: str
    refused: tuple[tuple[Schedule, str], ...] = ()
    behind: tuple[Schedule, ...] = ()
    twins: tuple[Twin, ...] = ()
    why: str = ""


def compile_stages(
    step: Step,
    schedule: Schedule | None,
    vector_bytes: int,
    options: Options | None = None,
    sizes: Sizes = UNKNOWN,
) -> Stages:
    """The step through all stages up to C++: with the given schedule, or the first candidate that lowers.

    Args:
        step: statement of a plan.
        schedule: schedule, or `None` for an automatic choice.
        vector_bytes: vector width of the code.
        options: dumps and checks; by default the options in force.
        sizes: sizes of the operands, for the choice.

    Raises:
        ScheduleError, DiscordantError: the given schedule does not fit.
        UnsupportedProgramError: no candidate lowers.
    """
    options = options or current()
    wanted = schedule if schedule is not None else chosen(step, vector_bytes, sizes)
    key = f"{step.program}|{wanted}|{vector_bytes}"
    dump = Dump(options, f"{step.result}-{hashlib.sha256(key.encode()).hexdigest()[:12]}")
    program, plain = run(STAGES[:UNSCHEDULED], step.program, Given(Schedule(), vector_bytes), options, dump)
    refused: list[tuple[Schedule, str]] = []
    waiting = schedules(program, plain, vector_bytes, sizes, step.order)
    for candidate in (schedule,) if schedule is not None else waiting:
        given = Given(candidate, vector_bytes)
        try:
            tree, _, short, text = run(STAGES[UNSCHEDULED:], plain, given, options, dump)
        except (ScheduleError, DiscordantError, UnsupportedProgramError) as error:
            if schedule is not None:
                raise
            refused.append((candidate, str(error)))
            continue
        behind = tuple(islice(dict.fromkeys(other for other in waiting if other != candidate), RUNNERS_UP))
        found = None if schedule is not None else searched(plain, vector_bytes, sizes, step.order)
        why = "" if found is None else found.said(candidate)
        return Stages(program, plain, candidate, tree, short, text, tuple(refused), behind, step.twins, why)
    # The last candidate is the unscheduled loops: their error does not concern a schedule.
    raise UnsupportedProgramError(f"no loop order computes `{step.program.statements[0]}`: {refused[-1][1]}")


def run(stages: tuple[Stage, ...], start: Any, given: Given, options: Options, dump: Dump) -> list[Any]:
    """The results of all stages, in order, verified and dumped."""
    results = []
    result = start
    for stage in stages:
        result = stage.run(result, given)
        if dump.wants(stage.name):
            dump.write(stage.name, stage.text(result, given))
        if stage.refuses or options.debug_asserts:
            stage.verify(result)
        results.append(result)
    return results


def chosen(step: Step, vector_bytes: int, sizes: Sizes) -> Schedule:
    """The first schedule to try for operands of these sizes."""
    return next(schedules(step.program, plain_notation(step), vector_bytes, sizes, step.order))


@lru_cache(maxsize=256)
def plain_notation(step: Step) -> Notation:
    """The notation of a step before its schedule."""
    return concretize.concretize(format.infer_format(step.program))


def searched(
    plain: Notation, vector_bytes: int, sizes: Sizes, order: tuple[str, ...] = ()
) -> Searched | None:
    """The searched schedules of a program without a template; `None` for other programs."""
    return search_of(plain, lanes(plain, vector_bytes), lane_bytes(plain), sizes, order)


def schedules(
    program: Program,
    plain: Notation,
    vector_bytes: int,
    sizes: Sizes = UNKNOWN,
    order: tuple[str, ...] = (),
) -> Iterator[Schedule]:
    """The schedules to try, the best first; `order` is the loop order if chosen by cost."""
    for schedule in candidates(plain, lanes(plain, vector_bytes), lane_bytes(plain), sizes, order):
        yield from with_hubs(plain, schedule, sizes)
