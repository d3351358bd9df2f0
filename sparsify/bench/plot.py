"""Ratios of measured rows as a picture; needs matplotlib.

In: rows, a file. Out: one bar for each baseline of a row, with the interval, on a logarithmic scale around 1.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsify.errors import SparsifyError

FASTER, SLOWER = "#2a78b8", "#c8553d"
BAR_INCHES = 0.22


def plot(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Writes the picture, in the format of the file's suffix.

    Raises:
        SparsifyError: as `check`, or no ratios to draw.
    """
    check(file)
    from matplotlib.figure import Figure

    measured = [row for row in rows if row["kind"] == "ratios" and row["targets"]]
    if not measured:
        raise SparsifyError(
            "there are no ratios to draw", "the suite memory has limits alone: choose another"
        )
    bars = [target for row in measured for target in row["targets"]]
    figure = Figure(figsize=(9, 1.2 + BAR_INCHES * (len(bars) + len(measured))), layout="constrained")
    axes = figure.subplots()
    places, names = _places(measured)
    for place, target in zip(places, bars, strict=True):
        _bar(axes, place, target)
    axes.set_yticks(places, names, fontsize=8)
    axes.set_ylim(max(places) + 1, min(places) - 1.6)
    for row, first in zip(measured, _firsts(measured, places), strict=True):
        middle = {"transform": axes.get_yaxis_transform(), "va": "center", "ha": "right"}
        axes.text(-0.01, first - 0.95, row["name"], fontsize=8, weight="bold", **middle)
    _scale(axes, bars)
    figure.savefig(file, dpi=150)


def check(file: Path) -> None:
    """Checks in advance that a picture can be drawn into a file.

    Raises:
        SparsifyError: matplotlib is missing, or does not support the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SparsifyError(
            "plots need matplotlib, which is not installed", "pip install 'sparsify-fx[plot]'"
        ) from error
    if file.suffix.removeprefix(".") not in Figure().canvas.get_supported_filetypes():
        raise SparsifyError(
            f"{file} cannot be drawn: its name says no format", "end it in .png, .svg or .pdf"
        )


def _places(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[str]]:
    """Positions of bars from top to bottom, with a gap for the name above the first bar of a row, and labels."""
    places: list[float] = []
    names: list[str] = []
    for number, row in enumerate(rows):
        for target in row["targets"]:
            places.append(float(len(places) + number))
            fresh = " (fresh results)" if target["ours"].endswith("fresh") else ""
            names.append(f"{target['baseline']}{fresh}")
    return places, names


def _firsts(rows: Sequence[Mapping[str, Any]], places: Sequence[float]) -> list[float]:
    """The place of the first bar of each row."""
    found, number = [], 0
    for row in rows:
        found.append(places[number])
        number += len(row["targets"])
    return found


def _bar(axes: Any, place: float, target: Mapping[str, Any]) -> None:
    """Draws one ratio as a bar from 1 to the reached value, with interval and number."""
    reached = target["reached"]
    low, high = min(target["low"], reached), max(target["high"], reached)
    axes.barh(place, reached - 1, left=1, height=0.8, color=FASTER if reached >= 1 else SLOWER)
    axes.plot((low, high), (place, place), color="black", linewidth=0.9)
    end, side, away = (max(high, 1.0), "left", 4) if reached >= 1 else (min(low, 1.0), "right", -4)
    label = {"textcoords": "offset points", "va": "center", "ha": side, "fontsize": 7}
    axes.annotate(f"{reached:.2g}x", (end, place), (away, 0), **label)
    if target["asked"] is not None:
        axes.plot((target["asked"],) * 2, (place - 0.4, place + 0.4), color="black", linestyle=":")


def _scale(axes: Any, bars: Sequence[Mapping[str, Any]]) -> None:
    """Sets a logarithmic axis of ratios: 2x and 0.5x are equally far from 1."""
    ends = [target[key] for target in bars for key in ("reached", "low", "high")]
    least, most = min(ends), max(ends)
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(0.5, least / 1.5), max(2.0, most * 1.5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.grid(axis="x", linewidth=0.3)
    axes.set_axisbelow(True)
    axes.set_xlabel("times as fast as the baseline; the line is the 95 % interval")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
