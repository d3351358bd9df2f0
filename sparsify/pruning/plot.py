"""Plots of a recipe's target share of zeros over steps: as text and as SVG. The module does not import torch.

In: the recipe `rigl90`. Out: a drawing with one curve for each rule that prunes.
"""

from collections.abc import Mapping
from typing import Final

from sparsify.errors import SparsifyError
from sparsify.pruning.chart import Point, chart
from sparsify.pruning.schedule import Schedule, Staged
from sparsify.pruning.targets import staged_schedule
from sparsify.recipe import Recipe

COLUMNS, ROWS = 60, 10
AnySchedule = Schedule | Staged
POINTS: Final = 2000
"""A curve has about so many steps at most."""


def schedules(recipe: Recipe) -> dict[str, AnySchedule]:
    """Schedules of the pruning rules, by rule name; an epoch counts as one step.

    Raises:
        SparsifyError: no rule prunes.
    """
    result = {
        rule.id or f"rule {at + 1}": staged_schedule(rule)
        for at, rule in enumerate(recipe.rules)
        if rule.prune is not None
    }
    if not result:
        raise SparsifyError(f"no rule of {recipe.name} prunes", "a recipe with `prune`, as rigl90")
    return result


def as_text(schedules_by_rule: Mapping[str, AnySchedule]) -> str:
    """The curves as characters, one drawing for each rule.

    >>> print(as_text({"w": Schedule("oneshot", to=0.9)}).splitlines()[0])
    w: oneshot, 0.9 zeros at the start
    """
    return "\n\n".join(_drawn(name, schedule) for name, schedule in schedules_by_rule.items())


def _drawn(name: str, schedule: AnySchedule) -> str:
    """A heading, and a drawing for schedules with changes over steps."""
    if schedule.end == 0:
        return f"{name}: {schedule.kind}, {schedule.target(0):g} zeros at the start"
    updates = sum(schedule.is_update(step) for step in range(1, schedule.end + 1))
    first, last = schedule.target(0), schedule.target(schedule.end)
    heading = f"{name}: {schedule.kind}, from {first:g} to {last:g} zeros, {updates} updates"
    length = schedule.end + max(1, schedule.end // 10)
    values = [schedule.current_target(round(at * length / (COLUMNS - 1))) for at in range(COLUMNS)]
    lines = []
    for row in range(ROWS, -1, -1):
        line = "".join("*" if round(value * ROWS) == row else " " for value in values)
        lines.append(f"{row / ROWS:4.1f} |{line}".rstrip())
    axis = f"     +{'-' * COLUMNS}"
    return "\n".join([heading, *lines, axis, f"      0{length:>{COLUMNS - 1}} steps"])


def as_svg(schedules_by_rule: Mapping[str, AnySchedule]) -> str:
    """The curves as SVG: steps to the right, shares of zeros upwards, each update a corner."""
    length = max(schedule.end + max(1, schedule.end // 10) for schedule in schedules_by_rule.values())
    curves = {
        f"{name}: {schedule.kind}": corners(schedule, length) for name, schedule in schedules_by_rule.items()
    }
    return chart(curves, "steps", "share of zeros", length=length)


def corners(schedule: AnySchedule, length: int) -> list[Point]:
    """The points of the target over `length` steps; the target is constant between updates."""
    stride = max(1, length // POINTS)
    before = schedule.current_target(0)
    points: list[Point] = [(0, before)]
    for step in [*range(stride, length, stride), length]:
        value = schedule.current_target(step)
        if value != before:
            points += [(step, before), (step, value)]
            before = value
    return [*points, (length, before)]
