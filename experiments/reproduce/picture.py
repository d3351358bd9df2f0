"""Times as a picture: bars of each row, or points and lines against a size; as SVG without any library.

In: a `Figure` and its records. Out: `svg(...)`, a text; `write_png(...)`, a file, where matplotlib is installed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log10
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from .figure import Figure, Record
from .table import contenders

COLOURS: Final = ("#2a78b8", "#c8553d", "#3d8c40", "#8a5fb0", "#b08a2a", "#666666")
TEN: Final = 10
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 460, 320, 62, 58, 48, 12
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing: by contender its points; the places of bars are 0, 1, 2 ... with `labels` below.

    Points that `is_joined` joins to a line stand on a plain scale, others on a logarithmic one.
    """

    title: str
    across: str
    series: Mapping[str, Sequence[Point]]
    labels: tuple[str, ...] = ()
    is_joined: bool = False


def panels(figure: Figure, records: Sequence[Record]) -> list[Panel]:
    """The panels of a figure; neither rows that were not measured nor numbers without a logarithm are drawn."""
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
    """The powers of ten around all values.

    >>> decades([0.02, 3.0])
    (-2, 1)
    """
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return low, max(high, low + 1)


def svg(figure: Figure, records: Sequence[Record]) -> str:
    """The drawing of all panels side by side."""
    drawn = panels(figure, records)
    whole = max(1, len(drawn)) * WIDTH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{whole}" height="{HEIGHT}" fill="white"/>',
    ]
    for at, panel in enumerate(drawn):
        parts += [f'<g transform="translate({at * WIDTH},0)">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


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
        parts.append(f'<text x="{x:.0f}" y="32" fill="{COLOURS[at % len(COLOURS)]}">{escape(name)}</text>')
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
    for place, label in enumerate(panel.labels):
        x = LEFT + group * (place + 0.5)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(label)}</text>'
        )
    return parts


def _points(panel: Panel, up: Any, wide: float) -> list[str]:
    """A point for each row, against a size; joined to lines where the panel says so."""
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
    """The ticks across with their texts, and where a size stands."""
    sizes = [x for points in panel.series.values() for x, _ in points]
    if panel.is_joined:
        low, high = TEN * floor(min(sizes) / TEN), TEN * ceil(max(sizes) / TEN)
        high = max(high, low + TEN)
        ticks = [(float(size), f"{size}") for size in range(low, high + 1, TEN * ceil((high - low) / 100))]
        return ticks, lambda size: LEFT + wide * (size - low) / (high - low)
    left, right = decades(sizes)
    powers = [(10.0**power, f"1e{power}") for power in range(left, right + 1)]
    return powers, lambda size: LEFT + wide * (log10(size) - left) / (right - left)


def write_png(figure: Figure, records: Sequence[Record], file: Path) -> bool:
    """Draws the same with matplotlib; `False` where it is not installed."""
    try:
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        return False
    drawn = panels(figure, records)
    drawing = Drawing(figsize=(5.2 * max(1, len(drawn)), 3.6), layout="constrained")
    for axes, panel in zip(drawing.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        for at, (name, points) in enumerate(panel.series.items()):
            xs, ys = [x for x, _ in points], [y for _, y in points]
            colour = COLOURS[at % len(COLOURS)]
            if panel.labels:
                width = 0.8 / len(panel.series)
                axes.bar([x + width * at for x in xs], ys, width, label=name, color=colour)
            else:
                axes.plot(xs, ys, "o-" if panel.is_joined else "o", label=name, color=colour, markersize=4)
        axes.set_yscale("log")
        axes.set_ylabel("ms")
        axes.set_title(panel.title, fontsize=9)
        if panel.labels:
            axes.set_xticks([n + 0.3 for n in range(len(panel.labels))], panel.labels, fontsize=8)
        else:
            axes.set_xscale("linear" if panel.is_joined else "log")
            axes.set_xlabel(panel.across)
        axes.legend(fontsize=7)
    drawing.savefig(file, dpi=150)
    return True
