"""Measured rows as a table, as JSON and as CSV.

In: rows from `measured(case, ...)`. Out: `table(rows)`, one line for each ratio or limit; files.
"""

import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from errno import EISDIR
from pathlib import Path
from typing import Any, Final

from tabulate import tabulate

from sparsify.bench.environment import facts
from sparsify.bench.harness import Case, Clock, measure
from sparsify.errors import SparsifyError

HEADERS: Final = (
    "row",
    "ours",
    "ours ms",
    "of limit",
    "set by",
    "asked",
    "reached",
    "interval",
    "against",
    "its ms",
    "met",
    "data",
)
LIMIT_NOTE: Final = (
    "of limit: the least time that this machine allows, in percent of ours, and what sets it; "
    "`sparsify env` shows the machine's figures"
)
# Shorter calls are dominated by call overhead.
SHORT_US: Final = 200.0
# By whether the time on the processor counts.
CLOCKS: Mapping[bool, Clock] = {False: time.perf_counter_ns, True: time.thread_time_ns}


def measured(case: Case, quick: bool, clock: Clock) -> dict[str, Any]:
    """The measurements of a case, as plain data."""
    if quick:
        return measure(case, seconds=1.0, least=3, most=3, clock=clock).to_dict()
    return measure(case, clock=clock).to_dict()


def check_writable(*files: Path | None) -> None:
    """Creates the folders of output files and checks that the files can be written; `None` is skipped.

    Raises:
        SparsifyError: a file cannot be written.
    """
    for file in files:
        if file is None:
            continue
        try:
            if file.is_dir():
                raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
            file.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=file.parent).close()
        except OSError as error:
            raise SparsifyError(
                f"{file} cannot be written: {error.strerror}", "a file in a folder of yours"
            ) from error


def command(arguments: Sequence[str]) -> str:
    """The command line of a process, without the paths of programs.

    >>> command(["/usr/bin/python3", "-m", "experiments.training", "--quick"])
    'python -m experiments.training --quick'
    >>> command(["/usr/bin/python3", "/usr/bin/sparsify", "bench", "models"])
    'sparsify bench models'
    """
    program, *rest = arguments
    if rest and not rest[0].startswith("-") and not rest[0].endswith(".py"):
        return " ".join((Path(rest[0]).name, *rest[1:]))
    return " ".join(("python" if Path(program).name.startswith("python") else program, *rest))


def write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the rows measured so far: a stopped run keeps the finished rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "schema": 1,
        "command": command(sys.orig_argv),
        "machine": facts(),
        "rows": rows,
    }
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, file)


def write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the lines of the table."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(HEADERS)
        writer.writerows(lines(rows))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of all rows with a line for each ratio or limit, without empty columns; then notes."""
    found = lines(rows)
    kept = [number for number in range(len(HEADERS)) if any(line[number] for line in found)]
    shown = [[line[number] for number in kept] for line in found]
    headers = [HEADERS[number] for number in kept]
    text = tabulate(shown, headers=headers, tablefmt="simple", disable_numparse=True)
    return "\n\n".join([text, *notes(rows)])


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Notes: preparation times, limits, reasons for faster contenders, and missing contenders."""
    prepared = [
        (row["name"], ", ".join(f"{name} {spent:.1f}" for name, spent in row["prepared_ms"].items()))
        for row in rows
        if row.get("prepared_ms")
    ]
    found = []
    if prepared:
        found.append(
            tabulate(prepared, headers=("row", "before, and not in the times, ms"), tablefmt="simple")
        )
    if any(row.get("limit") for row in rows):
        found.append(LIMIT_NOTE)
    if ahead := [line for row in rows if row.get("kind") == "ratios" for line in behind(row)]:
        found.append("\n".join(["ahead of ours, by the whole interval:", *ahead]))
    if missing := sorted({name for row in rows for name in row.get("missing", ())}):
        reasons = {name: why for row in rows for name, why in row.get("reasons", {}).items()}
        lines = [f"  {name}: {reasons.get(name, 'not installed')}" for name in missing]
        found.append("\n".join(["not measured:", *lines]))
    return found


def behind(row: Mapping[str, Any]) -> list[str]:
    """Lines for contenders faster than ours, each with the reason."""
    times = {contender["name"]: contender["median_us"] for contender in row.get("contenders", ())}
    return [
        f"  {row['name']}, {target['ours']}, {target['baseline']} ({1 / target['reached']:.2g}x): "
        f"{_reason(row, target, times[target['ours']])}"
        for target in row.get("targets", ())
        if target["high"] < 1 and target["reached"] > 0
    ]


def _reason(row: Mapping[str, Any], target: Mapping[str, Any], ours_us: float) -> str:
    """Reason for a faster contender: the suite's note, negligible work, or fresh (cold) result memory."""
    if known := row.get("why", {}).get(target["baseline"]):
        return str(known)
    least = row.get("limit")
    if ours_us < SHORT_US and (least is None or least["us"] < ours_us / 2):
        return (
            f"a call of {ours_us:.2g} us has next to no work; the rest compares operands with those that the kernel "
            "is for, in Python"
        )
    if target["ours"].endswith("fresh"):
        return "results in memory that no call has touched before"
    return "no reason is noted; `sparsify explain` prints the schedule and its runners-up"


def lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The lines of the table."""
    return [line for row in rows for line in (_ratios(row) if row["kind"] == "ratios" else _limits(row))]


def _ratios(row: Mapping[str, Any]) -> list[list[str]]:
    times = {contender["name"]: contender for contender in row["contenders"]}
    least = row.get("limit")
    return [
        [
            row["name"],
            target["ours"],
            f"{times[target['ours']]['median_us'] / 1e3:.4g}",
            f"{least['us'] / times[target['ours']]['median_us']:.0%}" if least else "",
            least["bound"] if least else "",
            "" if target["asked"] is None else f"{target['asked']:.1f}x",
            f"{target['reached']:.2f}x",
            f"{target['low']:.2f}-{target['high']:.2f}",
            target["baseline"],
            f"{times[target['baseline']]['median_us'] / 1e3:.4g}",
            {None: "", True: "yes", False: "no"}[target["met"]],
            row["data"],
        ]
        for target in row["targets"]
    ]


def _limits(row: Mapping[str, Any]) -> list[list[str]]:
    unit = row["unit"]
    return [
        [
            row["name"],
            target["label"],
            "",
            "",
            "",
            "" if target["asked"] is None else f"{target['asked']:.0f} {unit}",
            f"{target['reached']:.1f} {unit}",
            "",
            "",
            "",
            {None: "", True: "yes", False: "no"}[target["met"]],
            target.get("data", row["data"]),
        ]
        for target in row["targets"]
    ]
