"""Pictures of times: bars of each row, or points and lines against a size; as SVG without any library.

In: a `Figure` and its records. Out: `svg(...)`, a text; `png.py` makes PNG of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log10, radians, sin
from typing import Any, Final
from xml.sax.saxutils import escape

from .figure import Figure, Record
from .table import contenders

COLOURS: Final = ("#2a78b8", "#c8553d", "#3d8c40", "#8a5fb0", "#b08a2a", "#666666")
TEN: Final = 10
# Pixels of a letter, and the angle in degrees of labels too wide for their bars.
LETTER, SLANT = 6, 35
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 460, 320, 62, 58, 48, 12
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing: points by contender; bars stand at 0, 1, 2 ... with `labels` below.

    Joined points (`is_joined`) have a linear horizontal axis, others a logarithmic one.
    """

    title: str
    across: str
    series: Mapping[str, Sequence[Point]]
    labels: tuple[str, ...] = ()
    is_joined: bool = False


def panels(figure: Figure, records: Sequence[Record]) -> list[Panel]:
    """Panels of a figure; unmeasured rows and numbers without a logarithm are left out."""
    measured = [record for record in records if record.outcome is not None]
    groups = list(dict.fromkeys(figure.panels(record.row) for record in measured))
    found = []
    for group in groups:
        rows = [record for record in measured if figure.panels(record.row) == group]
        series: dict[str, list[Point]] = {}
        for name in contenders(rows):
            for place, record in enumerate(rows):
                assert record.outcome is not None, "rows of panels are measured"
                if name in record.outcome.times:
                    x = float(record.outcome.facts[figure.across]) if figure.across else float(place)
                    y = record.outcome.times[name].median_ms
                    if 0 < y < inf and (not figure.across or 0 < x < inf):
                        series.setdefault(name, []).append((x, y))
        if not series:
            continue
        labels = () if figure.across else tuple(record.row for record in rows)
        title = f"{figure.title}{f': {group}' if group else ''}"
        joined = figure.kind == "lines"
        found.append(Panel(title, figure.across, {n: sorted(p) for n, p in series.items()}, labels, joined))
    return found


def decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten around all values.

    >>> decades([0.02, 3.0])
    (-2, 1)
    """
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return low, max(high, low + 1)


def svg(figure: Figure, records: Sequence[Record]) -> str:
    """Drawing of all panels side by side."""
    drawn = panels(figure, records)
    whole, tall = max(1, len(drawn)) * WIDTH, HEIGHT + max(map(overhang, drawn), default=0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {tall}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{whole}" height="{tall}" fill="white"/>',
    ]
    for at, panel in enumerate(drawn):
        parts += [f'<g transform="translate({at * WIDTH},0)">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def overhang(panel: Panel) -> int:
    """Height of slanted labels below a panel; 0 if the labels fit side by side."""
    longest = max(map(len, panel.labels), default=0) * LETTER
    if longest * len(panel.labels) <= WIDTH - LEFT - RIGHT:
        return 0
    return max(1, ceil(longest * sin(radians(SLANT)) + 2 * LETTER - BOTTOM + 16))


def _panel(panel: Panel) -> list[str]:
    """Axes, grid, names and marks of a panel."""
    values = [y for points in panel.series.values() for _, y in points]
    low, high = decades(values)
    tall, wide = HEIGHT - TOP - BOTTOM, WIDTH - LEFT - RIGHT

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - tall * (log10(value) - low) / (high - low)

    parts = [f'<text x="{LEFT}" y="16" font-size="12">{escape(panel.title)}, ms</text>']
    for power in range(low, high + 1):
        y = up(10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for at, name in enumerate(panel.series):
        x = LEFT + at * wide / max(1, len(panel.series))
        parts.append(f'<rect x="{x:.0f}" y="24" width="9" height="9" fill="{COLOURS[at % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 13:.0f}" y="32">{escape(name)}</text>')
    return [*parts, *(_bars(panel, up, wide) if panel.labels else _points(panel, up, wide))]


def _bars(panel: Panel, up: Any, wide: float) -> list[str]:
    """A group of bars for each row."""
    group = wide / len(panel.labels)
    bar = 0.8 * group / max(1, len(panel.series))
    parts = []
    for at, points in enumerate(panel.series.values()):
        for place, value in points:
            x, y = LEFT + group * place + 0.1 * group + bar * at, up(value)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
                f'fill="{COLOURS[at % len(COLOURS)]}"><title>{value:.4g} ms</title></rect>'
            )
    is_slanted, down = overhang(panel) > 0, HEIGHT - BOTTOM + 16
    for place, label in enumerate(panel.labels):
        middle = f"{LEFT + group * (place + 0.5):.1f}"
        turned = f'text-anchor="end" transform="rotate(-{SLANT} {middle} {down})"'
        how = turned if is_slanted else 'text-anchor="middle"'
        parts.append(f'<text x="{middle}" y="{down}" {how}>{escape(label)}</text>')
    return parts


def _points(panel: Panel, up: Any, wide: float) -> list[str]:
    """A point for each row, against a size; joined by lines if `is_joined`."""
    ticks, across = _scale(panel, wide)
    parts = []
    for value, text in ticks:
        parts.append(
            f'<text x="{across(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>'
        )
    for at, points in enumerate(panel.series.values()):
        colour = COLOURS[at % len(COLOURS)]
        if panel.is_joined:
            corners = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
            parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}"/>')
        for x, y in points:
            parts.append(
                f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}" '
                f'fill-opacity="0.8"><title>{x:g}: {y:.4g} ms</title></circle>'
            )
    middle = LEFT + wide / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 22}" text-anchor="middle">{escape(panel.across)}</text>')
    return parts


def _scale(panel: Panel, wide: float) -> tuple[list[tuple[float, str]], Callable[[float], float]]:
    """Ticks of the horizontal axis with their texts, and the map from sizes to coordinates."""
    sizes = [x for points in panel.series.values() for x, _ in points]
    if panel.is_joined:
        low, high = TEN * floor(min(sizes) / TEN), TEN * ceil(max(sizes) / TEN)
        high = max(high, low + TEN)
        ticks = [(float(size), f"{size}") for size in range(low, high + 1, TEN * ceil((high - low) / 100))]
        return ticks, lambda size: LEFT + wide * (size - low) / (high - low)
    left, right = decades(sizes)
    powers = [(10.0**power, f"1e{power}") for power in range(left, right + 1)]
    return powers, lambda size: LEFT + wide * (log10(size) - left) / (right - left)
