"""Tables and lists in the width of a terminal: names folded by pattern, rows as paragraphs if a table is too wide.

In: `fold(["layer.0.weight", "layer.1.weight", "layer.2.weight"])`. Out: `["layer.{0-2}.weight (3)"]`.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Final

from tabulate import tabulate

# A decimal that stands alone, or a whole number: `0.9 KiB` and `layers.0.1.weight`.
NUMBER: Final = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])|\d+")
# So many texts of a pattern are folded, and so many ranges of numbers are written out.
LEAST: Final = 3
RANGES: Final = 4
NARROWEST: Final = 20
UNLIMITED: Final = sys.maxsize

Row = Sequence[str]


def terminal_width(piped: int = 0) -> int:
    """The columns of the terminal, or of `COLUMNS`.

    Args:
        piped: width for output not to a terminal; 0 for Python's default of 80 columns.
    """
    is_known = os.environ.get("COLUMNS", "").isdigit() or (
        sys.__stdout__ is not None and sys.__stdout__.isatty()
    )
    return shutil.get_terminal_size().columns if is_known or not piped else piped


def fold(texts: Iterable[str]) -> list[str]:
    """Texts, folded into one with a count if equal up to numbers, in order of first occurrence.

    >>> fold(["h.0.w", "h.1.w", "h.3.w", "x"])
    ['h.{0-1,3}.w (3)', 'x']
    """
    return [text for found in _patterns(texts) for text in _one_or_all(found)]


def _one_or_all(texts: list[str]) -> list[str]:
    """Texts of one pattern, folded if there are at least `LEAST`."""
    return texts if len(texts) < LEAST else [f"{merged(texts)} ({len(texts)})"]


def _patterns(texts: Iterable[str]) -> list[list[str]]:
    """Texts grouped by pattern (the text without numbers)."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for text in texts:
        groups.setdefault(tuple(NUMBER.split(text)), []).append(text)
    return list(groups.values())


def merged(texts: Sequence[str]) -> str:
    """One text for several texts equal up to numbers.

    >>> merged(["0.9 KiB of 4", "1.1 KiB of 4"])
    '{0.9...1.1} KiB of 4'
    """
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    numbers = iter(
        [_numbers(sorted(set(column), key=lambda text: (float(text), text))) for column in columns]
    )
    return NUMBER.sub(lambda _: next(numbers), texts[0])


def _numbers(values: Sequence[str]) -> str:
    """Different numbers in ascending order as ranges: `{0-3,5}`."""
    if len(values) == 1:
        return values[0]
    between = f"{{{values[0]}...{values[-1]}}}"
    if any("." in value or value != str(int(value)) for value in values):
        return between
    ranges: list[list[int]] = []
    for value in map(int, values):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    texts = [f"{first}-{last}" if first < last else str(first) for first, last in ranges]
    return f"{{{','.join(texts)}}}" if len(texts) <= RANGES else between


def fold_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Rows, folded into one if equal up to numbers, with a count in the first cell."""
    groups: dict[tuple[tuple[str, ...], ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(tuple(NUMBER.split(cell)) for cell in row), []).append(row)
    found: list[list[str]] = []
    for same in groups.values():
        if len(same) < LEAST:
            found += map(list, same)
        else:
            first, *others = (merged(cells) for cells in zip(*same, strict=True))
            found.append([f"{first} ({len(same)})", *others])
    return found


def wrapped(text: str, width: int, indent: str = "  ") -> str:
    """A text wrapped to lines of at most `width` characters (at least 20); continuation lines are indented."""
    width = max(width, NARROWEST)
    indent = indent[: width - NARROWEST]
    lines: list[str] = []
    for line in text.splitlines():
        fits = len(line) <= width
        lines += [line] if fits else wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


def fitted(headers: Row, rows: Sequence[Row], width: int) -> str:
    """Rows as a table, or as paragraphs if the table is wider than `width`.

    >>> print(fitted(("name", "format"), [["a.weight", "dense, compressed"]], 24))
    a.weight
      format  dense,
              compressed
    """
    table = tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True)
    if max(map(len, table.splitlines())) <= width:
        return table
    return paragraphs(headers, rows, width)


def paragraphs(headers: Row, rows: Iterable[Row], width: int) -> str:
    """Rows as paragraphs: the first cell in a line, then the other cells, each after the header."""
    return "\n".join(_paragraph(headers, row, width) for row in rows)


def _paragraph(headers: Row, row: Row, width: int) -> str:
    """A row: the first cell, then the other nonempty cells, with at least one line for each part of a list."""
    margin = max(map(len, headers[1:]))
    blank = " " * (margin + 4)
    lines = [wrapped(row[0], width)]
    for header, cell in zip(headers[1:], row[1:], strict=True):
        parts = [part for line in cell.splitlines() for part in line.split("; ")]
        for number, part in enumerate(parts if cell else ()):
            label = f"  {header.ljust(margin)}  " if number == 0 else blank
            lines.append(wrapped(label + part, width, blank))
    return "\n".join(lines)
