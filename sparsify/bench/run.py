"""Runs suites: selects rows by name and measures each in turn.

In: names of suites and prefixes of row names. Out: rows as plain data.
"""

import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

import torch

from sparsify.bench.place import Place
from sparsify.bench.suites import SUITES, Row
from sparsify.bench.table import CLOCKS, write
from sparsify.compiler import calibrate
from sparsify.errors import SparsifyError
from sparsify.options import current


def run(
    suites: Sequence[str],
    beginnings: Sequence[str] = (),
    *,
    quick: bool = False,
    cpu_time: bool = False,
    scale: float = 1.0,
    out: Path | None = None,
) -> list[dict[str, Any]]:
    """The measured rows of suites (by default all); `out` always has the finished rows.

    Raises:
        SparsifyError: a suite is unknown, or no row matches.
    """
    if not 0 < scale < inf:
        raise SparsifyError(f"--scale {scale:g}", "more than 0")
    calibrate.try_measured(current())
    found = []
    chosen = rows_of(suites, beginnings)
    for number, (name, row) in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {name}", file=sys.stderr, flush=True)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support")  # torch calls it a beta
            found.append(row(Place(None, scale), quick, CLOCKS[cpu_time]))
        if out is not None:
            write(out, found)
    return found


def rows_of(suites: Sequence[str], beginnings: Sequence[str]) -> list[tuple[str, Row]]:
    """Rows of suites, selected by prefixes of names."""
    for name in suites:
        if name not in SUITES:
            near = get_close_matches(name, SUITES, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise SparsifyError(f"there is no suite {name}", f"{guess}there are {', '.join(SUITES)}")
    every = [(name, row) for suite in suites or SUITES for name, row in SUITES[suite].items()]
    kept = [(name, row) for name, row in every if name.startswith(tuple(beginnings) or "")]
    if not kept:
        there = ", ".join(name for name, _ in every)
        raise SparsifyError(f"no row begins with {', '.join(beginnings)}", f"there are {there}")
    return kept
