"""A drawing as PNG: by a browser from its SVG, else by matplotlib.

In: a `Figure`, its records, the SVG file. Out: `write(...)`, whether there is a PNG; `HOW` says how to get one.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from .figure import Figure, Record
from .picture import COLOURS, Panel, panels

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
SCALE: Final = 2
"""Pixels for each unit of the SVG."""
SECONDS: Final = 60.0
"""Time after which a browser is given up."""
HOW: Final = "PNG needs Chromium (apt install chromium) or matplotlib (pip install 'sparsify-fx[plot]')"


def write(figure: Figure, records: Sequence[Record], drawing: Path, file: Path) -> bool:
    """Writes the PNG of an SVG drawing; `False` without a renderer, and an older file is removed.

    Args:
        figure, records: contents of `drawing`.
        drawing: the SVG file.
        file: the PNG file.
    """
    file.unlink(missing_ok=True)
    return by_browser(drawing, file) or by_matplotlib(figure, records, file)


def by_browser(drawing: Path, file: Path) -> bool:
    """Screenshot of the SVG; `False` without a browser, or on failure."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return False
    width, height = size(drawing.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="sparsify-", ignore_cleanup_errors=True) as profile:
        command = [browser, "--headless=new", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        command += [f"--force-device-scale-factor={SCALE}", f"--screenshot={file.resolve()}"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses root otherwise
        try:
            subprocess.run(
                [*command, drawing.resolve().as_uri()],
                check=True,
                timeout=SECONDS,
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return file.is_file()


def size(svg: str) -> tuple[int, int]:
    """Width and height of a drawing.

    Raises:
        ValueError: it has no view box.

    >>> size('<svg viewBox="0 0 520 360">')
    (520, 360)
    """
    found = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg)
    if found is None:
        raise ValueError("a drawing without a view box")
    return int(found[1]), int(found[2])


def by_matplotlib(figure: Figure, records: Sequence[Record], file: Path) -> bool:
    """Panels drawn by matplotlib; `False` if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        return False
    drawn = panels(figure, records)
    drawing = Drawing(figsize=(5.2 * max(1, len(drawn)), 3.6), layout="constrained")
    for axes, panel in zip(drawing.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
        _panel(axes, panel)
    drawing.savefig(file, dpi=150)
    return True


def _panel(axes: Any, panel: Panel) -> None:
    """Marks, scales and names of a panel."""
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
