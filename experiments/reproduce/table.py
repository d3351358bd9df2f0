"""Rows of a figure as a table and as CSV: times of sparsify and peers, results of the paper, facts.

In: a `Figure` and its records. Out: text with a line a row, and notes: data of the rows, missing peers, and for each
row with a faster peer the reason.
"""

import csv
from collections.abc import Iterable, Sequence
from math import exp, inf, log
from pathlib import Path
from typing import Final

from tabulate import tabulate

from .figure import OURS, Fact, Figure, Outcome, Record

Cells = list[str]
# Columns of the CSV printed below the table of the text, one line for all rows with equal cells.
BELOW: Final = ("data", "note", "why")
# Columns with longer texts are printed below the table, too.
LONG_CELL: Final = 60


def contenders(records: Sequence[Record]) -> list[str]:
    """All contenders in the order of the rows, sparsify first."""
    found = [name for r in records if r.outcome is not None for name in r.outcome.times]
    missing = [name for r in records if r.outcome is not None for name in r.outcome.missing]
    return list(dict.fromkeys([OURS, *found, *missing]))


def headers(figure: Figure, records: Sequence[Record]) -> Cells:
    """Names of the columns."""
    names = contenders(records)
    return [
        "row",
        *(f"{name}, ms" for name in names),
        f"faster than {figure.against}",
        "paper (theirs)",
        "ahead of ours",
        "largest difference",
        *figure.facts,
        *BELOW,
    ]


def lines(figure: Figure, records: Sequence[Record]) -> list[Cells]:
    """Cells of each row; an unmeasured row has the reason."""
    names = contenders(records)
    return [_line(figure, record, names) for record in records]


def _line(figure: Figure, record: Record, names: Sequence[str]) -> Cells:
    cited = figure.numbers.get(record.row, "")
    if record.outcome is None:
        empty = [""] * (len(names) + 1)
        how = "failed" if record.failed else "not measured"
        facts = [""] * len(figure.facts)
        return [record.row, *empty, cited, "", "", *facts, record.data, f"{how}: {record.reason}", ""]
    outcome = record.outcome
    times = [
        f"{outcome.times[name].median_ms:.4g}" if name in outcome.times else _absent(outcome, name)
        for name in names
    ]
    ratio = f"{outcome.ratio(figure.against):.2f}x" if _has_ratio(outcome, figure) else ""
    ahead = ", ".join(faster(outcome))
    facts = [_shown(outcome.facts.get(name, "")) for name in figure.facts]
    difference = outcome.times[OURS].difference
    error = "" if difference is None else f"{difference:.1e}"
    why = "; ".join(f"{name}: {reason(figure, record.row, outcome, name)}" for name in faster(outcome))
    return [record.row, *times, ratio, cited, ahead, error, *facts, record.data, outcome.note, why]


def _has_ratio(outcome: Outcome, figure: Figure) -> bool:
    """Whether a row has a finite, positive ratio of times; a time of 0 has no logarithm."""
    return figure.against in outcome.times and 0 < outcome.ratio(figure.against) < inf


def _absent(outcome: Outcome, name: str) -> str:
    return outcome.missing.get(name, "").partition(":")[0].partition(",")[0]


def _shown(fact: Fact) -> str:
    return f"{fact:.4g}" if isinstance(fact, float) else str(fact)


def faster(outcome: Outcome) -> list[str]:
    """Peers faster than sparsify."""
    return [name for name in outcome.times if name != OURS and outcome.ratio(name) < 1]


def reason(figure: Figure, row: str, outcome: Outcome, name: str) -> str:
    """Lead of a faster peer in a row, and the reason stated by the figure."""
    ours, theirs = outcome.times[OURS], outcome.times[name]
    by = f"{ours.median_ms / theirs.median_ms:.2f}x, " if theirs.median_ms else ""
    overlaps = " (the intervals of the two medians overlap)" if theirs.high_ms >= ours.low_ms else ""
    stated = figure.why.get(f"{figure.panels(row)} {name}", figure.why.get(name, "no reason is known"))
    return f"{by}{stated}{overlaps}"


def text(figure: Figure, records: Sequence[Record]) -> str:
    """The table with its title, without columns that are empty, and its notes."""
    names, found = headers(figure, records), lines(figure, records)
    places = [at for at in range(len(names) - len(BELOW)) if not is_long(line[at] for line in found)]
    kept = [at for at in places if at == 0 or any(line[at] for line in found)]
    shown = tabulate(
        [[line[at] for at in kept] for line in found],
        headers=[names[at] for at in kept],
        tablefmt="simple",
        disable_numparse=True,
    )
    return "\n\n".join([f"{figure.name}: {figure.title}", shown, *notes(figure, records)])


def notes(figure: Figure, records: Sequence[Record]) -> list[str]:
    """Data and notes of the rows, the mean ratio beside the paper's, missing peers, and reasons of faster peers."""
    measured = [record.outcome for record in records if record.outcome is not None]
    every = lines(figure, records)
    cells = [line[-len(BELOW) :] for line in every]
    found = _grouped("Data", records, [data for data, _, _ in cells])
    found += _grouped("Note", records, [note for _, note, _ in cells])
    for at, name in enumerate(headers(figure, records)[: -len(BELOW)]):
        if is_long(line[at] for line in every):
            found += _grouped(name.capitalize(), records, [line[at] for line in every])
    found += [f"The paper reports, on its authors' machine: {figure.cited}"]
    ratios = [outcome.ratio(figure.against) for outcome in measured if _has_ratio(outcome, figure)]
    if ratios:
        mean = exp(sum(map(log, ratios)) / len(ratios))
        found.append(f"Geometric mean of {len(ratios)} rows on this machine: {mean:.2f}x of {figure.against}")
    missing = {name: how for outcome in measured for name, how in outcome.missing.items()}
    found += ["\n".join(f"{name} is {why}" for name, why in missing.items())] if missing else []
    behind = [f"  {record.row}: {why}" for record, (_, _, why) in zip(records, cells, strict=True) if why]
    if behind:
        head = f"A peer is ahead in {len(behind)} of {len(records)} rows:"
        found.append("\n".join([head, *behind]))
    return found


def is_long(cells: Iterable[str]) -> bool:
    """Whether a column has texts too long for table cells."""
    return any(len(cell) > LONG_CELL for cell in cells)


def _grouped(title: str, records: Sequence[Record], cells: Sequence[str]) -> list[str]:
    """A line for each distinct text with the names of its rows (no names if all rows agree); skips row names."""
    rows: dict[str, list[str]] = {}
    for record, cell in zip(records, cells, strict=True):
        if cell and cell != record.row:
            rows.setdefault(cell, []).append(record.row)
    every = len(records)
    shown = [
        f"{title}: {cell}" if len(names) == every else f"{title} of {', '.join(names)}: {cell}"
        for cell, names in rows.items()
    ]
    return ["\n".join(shown)] if shown else []


def write_csv(figure: Figure, records: Sequence[Record], file: Path) -> None:
    """Writes the table, with the interval of each median in further columns."""
    names = contenders(records)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        bounds = [f"{name}, {end} ms" for name in names for end in ("low", "high")]
        writer.writerow([*headers(figure, records), *bounds])
        for record, line in zip(records, lines(figure, records), strict=True):
            times = {} if record.outcome is None else record.outcome.times
            ends = [
                f"{end:.6g}" if name in times else ""
                for name in names
                for end in ((times[name].low_ms, times[name].high_ms) if name in times else (0.0, 0.0))
            ]
            writer.writerow([*line, *ends])
