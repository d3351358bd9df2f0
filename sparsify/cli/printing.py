"""Output of verbs: a table for people, or one JSON object for programs.

In: rows and the data behind them. Out: text on standard output.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

SCHEMA = 1
PLAIN = None  # rich help takes a third of the start-up time

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def print_json(data: Mapping[str, Any]) -> None:
    """Prints data as one JSON object with the version of the layout."""
    typer.echo(json.dumps({"schema": SCHEMA, **data}, indent=2, default=str))


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Prints rows in aligned columns; the last column is wrapped on narrow terminals."""
    from sparsify.report_text import UNLIMITED, terminal_width, wrapped

    cells = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    margin, width = " " * sum(size + 2 for size in widths[:-1]), terminal_width(UNLIMITED)
    for row in cells:
        line = "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        typer.echo(wrapped(line, width, margin if 2 * len(margin) < width else "  "))
