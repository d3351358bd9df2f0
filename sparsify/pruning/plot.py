"""The share of zeros that a recipe wants, over steps: as text and as SVG. Nothing here imports torch.

In: the recipe `rigl90`. Out: a drawing with one curve for each rule that prunes.
"""

from collections.abc import Mapping
from typing import Final
from xml.sax.saxutils import escape

from sparsify.errors import SparsifyError
from sparsify.pruning.schedule import Schedule
from sparsify.pruning.targets import schedule_of
from sparsify.recipe import Recipe

WIDTH, HEIGHT, MARGIN = 640, 320, 48
COLOURS: Final = ("#2a78b8", "#c8553d", "#3d8c40", "#8a5fb0")
COLUMNS, ROWS = 60, 10


def schedules(recipe: Recipe) -> dict[str, Schedule]:
    """The schedules of the rules that prune, by the names of the rules; epochs are counted as they are.

    Raises:
        SparsifyError: no rule prunes.
    """
    found = {
        rule.id or f"rule {at + 1}": schedule_of(rule, 1)
        for at, rule in enumerate(recipe.rules)
        if rule.prune is not None
    }
    if not found:
        raise SparsifyError(f"no rule of {recipe.name} prunes", "a recipe with `prune`, as rigl90")
    return found


def held(schedule: Schedule, step: int) -> float:
    """The share of zeros at a step: the target of the last update until then."""
    if step < schedule.start or schedule.end == 0:
        return schedule.target(0)
    last = schedule.start + (step - schedule.start) // schedule.every * schedule.every
    return schedule.target(schedule.end if step >= schedule.end else last)


def as_text(found: Mapping[str, Schedule]) -> str:
    """The curves as characters, one drawing for each rule.

    >>> print(as_text({"w": Schedule("oneshot", to=0.9)}).splitlines()[0])
    w: oneshot, 0.9 zeros at the start
    """
    return "\n\n".join(_drawn(name, schedule) for name, schedule in found.items())


def _drawn(name: str, schedule: Schedule) -> str:
    """A heading, and a drawing where the masks change over steps."""
    if schedule.end == 0:
        return f"{name}: {schedule.kind}, {schedule.target(0):g} zeros at the start"
    updates = sum(schedule.is_update(step) for step in range(1, schedule.end + 1))
    first, last = schedule.target(0), schedule.target(schedule.end)
    heading = f"{name}: {schedule.kind}, from {first:g} to {last:g} zeros, {updates} updates"
    length = schedule.end + max(1, schedule.end // 10)
    values = [held(schedule, round(at * length / (COLUMNS - 1))) for at in range(COLUMNS)]
    lines = []
    for row in range(ROWS, -1, -1):
        line = "".join("*" if round(value * ROWS) == row else " " for value in values)
        lines.append(f"{row / ROWS:4.1f} |{line}".rstrip())
    axis = f"     +{'-' * COLUMNS}"
    return "\n".join([heading, *lines, axis, f"      0{length:>{COLUMNS - 1}} steps"])


def as_svg(found: Mapping[str, Schedule]) -> str:
    """The curves as SVG: steps to the right, shares of zeros upwards, each update a corner."""
    length = max(schedule.end + max(1, schedule.end // 10) for schedule in found.values())
    inner, tall = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def place(step: float, value: float) -> str:
        return f"{MARGIN + inner * step / length:.1f},{HEIGHT - MARGIN - tall * value:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<polyline points="{place(0, value)} {place(length, value)}" stroke="#ddd"/>')
        y = HEIGHT - MARGIN - tall * value + 4
        parts.append(f'<text x="{MARGIN - 8}" y="{y:.1f}" text-anchor="end">{value:g}</text>')
    for step in (0, length // 2, length):
        x = MARGIN + inner * step / length
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">steps</text>')
    parts.append(f'<text x="{MARGIN}" y="20">share of zeros</text>')
    for at, (name, schedule) in enumerate(found.items()):
        colour = COLOURS[at % len(COLOURS)]
        stride = max(1, length // 2000)
        corners, before = [place(0, held(schedule, 0))], held(schedule, 0)
        for step in [*range(stride, length, stride), length]:
            value = held(schedule, step)
            if value != before:
                corners += [place(step, before), place(step, value)]
                before = value
        corners.append(place(length, before))
        points = " ".join(corners)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = WIDTH - MARGIN, 20 + 16 * at
        text = escape(f"{name}: {schedule.kind}")
        parts.append(f'<text x="{x}" y="{y}" text-anchor="end" fill="{colour}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])
