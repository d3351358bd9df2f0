"""The rows of a figure as a table and as CSV: ours, peers, what the paper reports, facts beside the times.

In: a `Figure` and its records. Out: text with a line a row, and notes: missing peers, where a peer is ahead and why.
"""

import csv
from collections.abc import Sequence
from math import exp, inf, log
from pathlib import Path

from tabulate import tabulate

from .figure import OURS, Fact, Figure, Outcome, Record

Cells = list[str]


def contenders(records: Sequence[Record]) -> list[str]:
    """All contenders in the order of the rows, ours first."""
    found = [name for r in records if r.outcome is not None for name in r.outcome.times]
    missing = [name for r in records if r.outcome is not None for name in r.outcome.missing]
    return list(dict.fromkeys([OURS, *found, *missing]))


def headers(figure: Figure, records: Sequence[Record]) -> Cells:
    """The names of the columns."""
    names = contenders(records)
    return [
        "row",
        *(f"{name}, ms" for name in names),
        f"faster than {figure.against}",
        "paper (theirs)",
        "ahead of ours",
        "largest difference",
        *figure.facts,
        "data",
        "note",
    ]


def lines(figure: Figure, records: Sequence[Record]) -> list[Cells]:
    """The cells of each row; a row that was not measured says why."""
    names = contenders(records)
    return [_line(figure, record, names) for record in records]


def _line(figure: Figure, record: Record, names: Sequence[str]) -> Cells:
    cited = figure.numbers.get(record.row, "")
    if record.outcome is None:
        empty = [""] * (len(names) + 1)
        how = "failed" if record.failed else "not measured"
        facts = [""] * len(figure.facts)
        return [record.row, *empty, cited, "", "", *facts, record.data, f"{how}: {record.reason}"]
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
    return [record.row, *times, ratio, cited, ahead, error, *facts, record.data, outcome.note]


def _has_ratio(outcome: Outcome, figure: Figure) -> bool:
    """Whether the times of a row can be divided; a time of 0 has no logarithm."""
    return figure.against in outcome.times and 0 < outcome.ratio(figure.against) < inf


def _absent(outcome: Outcome, name: str) -> str:
    return "not installed" if name in outcome.missing else ""


def _shown(fact: Fact) -> str:
    return f"{fact:.4g}" if isinstance(fact, float) else str(fact)


def faster(outcome: Outcome) -> list[str]:
    """The peers that take less time than ours."""
    return [name for name in outcome.times if name != OURS and outcome.ratio(name) < 1]


def text(figure: Figure, records: Sequence[Record]) -> str:
    """The table with its title, without columns that are empty, and its notes."""
    names, found = headers(figure, records), lines(figure, records)
    kept = [at for at in range(len(names)) if at == 0 or any(line[at] for line in found)]
    shown = tabulate(
        [[line[at] for at in kept] for line in found],
        headers=[names[at] for at in kept],
        tablefmt="simple",
        disable_numparse=True,
    )
    return "\n\n".join([f"{figure.name}: {figure.title}", shown, *notes(figure, records)])


def notes(figure: Figure, records: Sequence[Record]) -> list[str]:
    """The mean ratio beside the paper's, peers that are missing, and why peers are ahead."""
    measured = [record.outcome for record in records if record.outcome is not None]
    found = [f"The paper reports, on its authors' machine: {figure.cited}"]
    ratios = [outcome.ratio(figure.against) for outcome in measured if _has_ratio(outcome, figure)]
    if ratios:
        mean = exp(sum(map(log, ratios)) / len(ratios))
        found.append(f"Geometric mean of {len(ratios)} rows on this machine: {mean:.2f}x of {figure.against}")
    missing = {name: how for outcome in measured for name, how in outcome.missing.items()}
    found += [f"{name} is not installed: {how}" for name, how in missing.items()]
    ahead = dict.fromkeys(name for outcome in measured for name in faster(outcome))
    for name in ahead:
        reason = figure.why.get(name, "no reason is known")
        rows = [r.row for r in records if r.outcome is not None and name in faster(r.outcome)]
        shown = ", ".join(rows[:6]) + (f" and {len(rows) - 6} more" if len(rows) > 6 else "")
        found.append(f"{name} is ahead in {len(rows)} of {len(records)} rows ({shown}): {reason}")
    return found


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
