"""Curves as SVG. The module does not import torch.

In: `chart({"loss": [(0, 5.5), (10, 2.5)]}, "steps", "loss", top=6)`. Out: a drawing with one polyline for each curve,
after the polylines of the grid.
"""

from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Final
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN = 640, 320, 48
COLOURS: Final = ("#2a78b8", "#c8553d", "#3d8c40", "#8a5fb0", "#b08a2a", "#5f6b73")
LINES: Final = 4
Point = tuple[float, float]


def chart(
    curves: Mapping[str, Sequence[Point]],
    across: str,
    up: str,
    *,
    bottom: float = 0.0,
    top: float = 1.0,
    length: float | None = None,
) -> str:
    """The drawing of curves.

    Args:
        curves: points of each curve from left to right, by label.
        across, up: names of the horizontal and the vertical axis.
        bottom, top: range of the vertical axis.
        length: range of the horizontal axis from 0, by default up to the last point.
    """
    length = length or max((x for points in curves.values() for x, _ in points), default=0) or 1
    inner, tall = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def point(x: float, y: float) -> str:
        return (
            f"{MARGIN + inner * x / length:.1f},{HEIGHT - MARGIN - tall * (y - bottom) / (top - bottom):.1f}"
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for line in range(LINES + 1):
        value = bottom + (top - bottom) * line / LINES
        parts.append(f'<polyline points="{point(0, value)} {point(length, value)}" stroke="#ddd"/>')
        y = HEIGHT - MARGIN - tall * line / LINES + 4
        parts.append(f'<text x="{MARGIN - 8}" y="{y:.1f}" text-anchor="end">{value:g}</text>')
    parts += [
        f'<text x="{MARGIN + inner * x / length:.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{x:g}</text>'
        for x in (0, length // 2, length)
    ]
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text x="{MARGIN}" y="20">{escape(up)}</text>')
    for at, (label, points) in enumerate(curves.items()):
        colour = COLOURS[at % len(COLOURS)]
        drawn = " ".join(point(x, y) for x, y in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        text = escape(label)
        parts.append(
            f'<text x="{WIDTH - MARGIN}" y="{20 + 16 * at}" text-anchor="end" fill="{colour}">{text}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis that covers all values, rounded to few digits.

    >>> bounds([1.3, 5.2])
    (1.0, 6.0)
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    unit = 10.0 ** floor(log10(high - low)) if high > low else max(abs(high), 1.0)
    bottom, top = unit * floor(low / unit), unit * -floor(-high / unit)
    return (bottom, top) if top > bottom else (bottom, bottom + unit)
