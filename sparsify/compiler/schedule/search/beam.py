"""Beam search over schedules: all actions on the best few schedules, until none has a lower estimate.

In: the facts of `Y[i,k] += A[i,j] * B[i,j] * X[j,k]`. Out: schedules with their estimated times, the best first.

The search is bounded by the number of estimated schedules. A limit of time would let the load of the machine decide
which kernel is compiled.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.nodes import Forall
from sparsify.compiler.schedule.cost.scheduled import scheduled_us
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.rewrite.apply import apply
from sparsify.compiler.schedule.search import compose
from sparsify.compiler.schedule.search.facts import Facts
from sparsify.compiler.schedule.search.loops import entries, merge, reorder, sum_lanes, tile_lanes, vector
from sparsify.compiler.schedule.search.temporaries import accumulate, place, place_all, workspace
from sparsify.compiler.schedule.search.threads import parallel, prefetch
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError

Action = Callable[[Schedule, Facts], Iterator[Schedule]]
ACTIONS: Final[tuple[Action, ...]] = (
    tile_lanes,
    accumulate,
    place_all,
    place,
    sum_lanes,
    entries,
    workspace,
    merge,
    vector,
    reorder,
    prefetch,
)
REFUSED: Final = (ScheduleError, DiscordantError, UnsupportedProgramError)
WIDTH: Final = 3
DEPTH: Final = 8
# The search ends after so many rounds without an estimate below this share of the best one.
PATIENCE: Final = 1
LESS: Final = 0.99
# Most estimated schedules of a program.
MOST: Final = 64


@dataclass(frozen=True, slots=True)
class Priced:
    """A schedule and its estimated time."""

    schedule: Schedule
    us: float


def search(facts: Facts, most: int = MOST) -> tuple[list[Priced], int]:
    """The best schedules, ascending by estimated time, and the number of estimated ones, at most `most`."""
    tried: dict[Schedule, float] = {}
    idle = 0
    beam = _priced(iter((compose.start(facts),)), facts, tried, most)
    for _ in range(DEPTH):
        made = (new for one in beam for action in ACTIONS for new in action(one.schedule, facts))
        found = _best([*beam, *_priced(made, facts, tried, most)])
        if found == beam or not found:
            break
        idle = idle + 1 if found[0].us > LESS * beam[0].us else 0
        beam = found
        if idle > PATIENCE:
            break
    return beam, len(tried)


def _priced(made: Iterator[Schedule], facts: Facts, tried: dict[Schedule, float], most: int) -> list[Priced]:
    """The new applicable schedules with their estimates."""
    found = []
    for schedule in made:
        if schedule in tried:
            continue
        if len(tried) >= most:
            break
        tried[schedule] = completed(schedule, facts)[1]
        if tried[schedule] < inf:
            found.append(Priced(schedule, tried[schedule]))
    return found


def _best(found: list[Priced]) -> list[Priced]:
    """The beam: the cheapest schedules; the text decides between equal ones."""
    return sorted(found, key=lambda one: (one.us, str(one.schedule)))[:WIDTH]


def completed(schedule: Schedule, facts: Facts) -> tuple[Schedule, float]:
    """A schedule as it is compiled, with threads if legal and without orders of single loops, and its estimate."""
    try:
        tree = facts.under(schedule.directives)
    except REFUSED:
        return schedule, inf
    for threaded, directive in parallel(schedule, facts):
        # The rows of an operand balance the threads of one loop.
        if directive.by and sum(loop.index == directive.index for loop in find(tree.body, Forall)) > 1:
            continue
        with suppress(*REFUSED):
            shared = apply(tree, Schedule((directive,)))
            return compose.tidy(threaded), scheduled_us(shared, facts.pricing)
    return compose.tidy(schedule), scheduled_us(tree, facts.pricing)


def estimate(schedule: Schedule, facts: Facts) -> float:
    """The estimated time of a schedule in microseconds, infinite for a refused one."""
    try:
        return scheduled_us(apply(facts.plain, schedule), facts.pricing)
    except REFUSED:
        return inf
