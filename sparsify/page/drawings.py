"""Pictures of a report page: marks with positions in percent or drawing units, rendered by a template.

In: spans of a call, work of regions, layers. Out: `timeline`, `roofline`, `bars`; only numbers, no markup.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from sparsify.page.contents import LayerRow, Roof, Span, Work

WIDTH, HEIGHT = 640.0, 320.0
LEFT, BOTTOM = 56.0, 36.0
# Maximum number of spans in a timeline; the shortest spans are left out.
SPANS = 1500


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a lane: start and length in percent; `title` is the tooltip."""

    left: float
    width: float
    title: str
    region: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of bars, with a name and the length in words."""

    name: str
    length: str
    bars: Sequence[Bar]


def timeline(dense: Sequence[Span], sparse: Sequence[Span]) -> list[Lane]:
    """The spans of both models on one scale."""
    end = max((span.start_us + span.us for span in (*dense, *sparse)), default=0.0)
    if not end:
        return []
    pairs = [("dense", dense), ("sparse", sparse)]
    return [
        Lane(name, microseconds(max(s.start_us + s.us for s in spans)), _bars(spans, end))
        for name, spans in pairs
        if spans
    ]


def _bars(spans: Sequence[Span], end: float) -> list[Bar]:
    """The bars of a lane, without the shortest of very many."""
    shown = sorted(sorted(spans, key=lambda s: -s.us)[:SPANS], key=lambda s: s.start_us)
    return [
        Bar(
            100 * span.start_us / end,
            100 * span.us / end,
            f"{span.name}, {microseconds(span.us)}" + (f", {span.where}" if span.where else ""),
            span.region,
            span.region or span.name,
        )
        for span in shown
    ]


@dataclass(frozen=True, slots=True)
class Dot:
    """A region in a roofline: position, tooltip, name."""

    x: float
    y: float
    title: str
    region: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """The drawing of a roofline: the roof as points, ticks of both axes, a dot for each region."""

    roof: str
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    dots: Sequence[Dot]
    peak: str
    bandwidth: str


def roofline(works: Iterable[Work], measured: Mapping[str, float], roof: Roof | None) -> Roofline | None:
    """Operations a second against operations a byte, both on logarithmic axes; `None` without measurements.

    Source: the roofline model, Williams, Waterman and Patterson, 2009.

    Args:
        works: work of regions.
        measured: microseconds of regions, by name.
        roof: limits of the machine.
    """
    known = [w for w in works if measured.get(w.region) and w.operations and w.bytes]
    if roof is None or not known:
        return None
    rates = [(w, w.operations / w.bytes, w.operations / measured[w.region]) for w in known]
    knee = roof.operations / roof.bytes
    low_x, high_x = _decades([knee, *(x for _, x, _ in rates)])
    low_y, high_y = _decades([roof.operations, *(y for _, _, y in rates)])

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * (log10(value) - low_x) / (high_x - low_x)

    def up(value: float) -> float:
        share = (log10(value) - low_y) / (high_y - low_y)
        return (HEIGHT - BOTTOM) - (HEIGHT - BOTTOM - 8) * share

    start = max(10**low_x, 10**low_y / roof.bytes)
    corners = [(start, start * roof.bytes), (knee, roof.operations), (10**high_x, roof.operations)]
    dots = [
        Dot(across(x), up(y), f"{w.region}: {_rate(y)}, {x:.3g} operations a byte", w.region)
        for w, x, y in rates
    ]
    return Roofline(
        " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in corners),
        [(across(10**p), f"{10**p:g}") for p in range(low_x, high_x + 1)],
        [(up(10**p), f"{10**p / 1e3:g}") for p in range(low_y, high_y + 1)],
        dots,
        _rate(roof.operations),
        f"{roof.bytes / 1e3:.3g} GB/s",
    )


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """The powers of ten around some values."""
    found = [log10(value) for value in values]
    return floor(min(found)), floor(max(found)) + 1


def _rate(operations: float) -> str:
    """Operations a microsecond as operations a second."""
    return f"{operations / 1e3:.3g} GFLOP/s"


def bars(layers: Iterable[LayerRow]) -> list[tuple[str, float]]:
    """The known shares of zeros, with names of layers."""
    return [(layer.name, share) for layer in layers for share in layer.zeros]


def percent(share: float) -> str:
    """A share in percent: never rounded to 0 or 100 unless exact.

    >>> percent(0.9), percent(0.99972)
    ('90.0 %', '99.97 %')
    """
    digits = 1
    while digits < 6 and round(100 * share, digits) in (0, 100) and 0 < share < 1:
        digits += 1
    return f"{100 * share:.{digits}f} %"


def microseconds(value: float) -> str:
    """A time in a fitting unit.

    >>> microseconds(1234.5)
    '1.23 ms'
    """
    return (
        f"{value:.3g} us"
        if value < 1e3
        else f"{value / 1e3:.3g} ms"
        if value < 1e6
        else f"{value / 1e6:.3g} s"
    )


def size(value: int) -> str:
    """A number of bytes in a fitting unit.

    >>> size(147456)
    '144.0 KiB'
    """
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if value >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value / 1024:.1f} KiB"
