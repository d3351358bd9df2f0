"""Ratios of measured rows as a picture; needs matplotlib.

In: rows, a file. Out: bars of what was reached against each baseline, with the interval.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsify.errors import SparsifyError


def plot(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Writes the picture, in the format that the name of the file says.

    Raises:
        SparsifyError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SparsifyError(
            "plots need matplotlib, which is not installed", "pip install 'sparsify-fx[plot]'"
        ) from error
    bars = [(row["name"], target) for row in rows if row["kind"] == "ratios" for target in row["targets"]]
    figure = Figure(figsize=(8, 1 + 0.3 * len(bars)), layout="constrained")
    axes = figure.subplots()
    names = [f"{name} / {target['baseline']}" for name, target in bars]
    reached = [target["reached"] for _, target in bars]
    low = [max(0.0, target["reached"] - target["low"]) for _, target in bars]
    high = [max(0.0, target["high"] - target["reached"]) for _, target in bars]
    axes.barh(names, reached, xerr=[low, high])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast")
    figure.savefig(file)
