"""`python -m experiments.foundation [--rows spmm-cora ...] [--out bench.json] [--quick]`: measures, prints, writes.

In: names of rows, or beginnings of names. Out: one table on standard output and, with `--out`, JSON.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.foundation import convolutions, firsts, overhead, products
from sparsify.bench.harness import Case, Clock
from sparsify.bench.place import Place
from sparsify.bench.table import CLOCKS, measured, table, write

BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "data"
Make = Callable[[Place], Case]
Run = Callable[..., dict[str, Any]]

CASES: Mapping[str, Make] = {
    "spmm-cora-128": lambda place: products.spmm("cora", 128, place, pooled=2.2),
    "spmm-pubmed-128": lambda place: products.spmm("pubmed", 128, place, pooled=2.5),
    "spmm-arxiv-128": lambda place: products.spmm("arxiv", 128, place, pooled=3.5, fresh=1.6),
    "spmm-arxiv-32": lambda place: products.spmm("arxiv", 32, place, pooled=3.2),
    "spmm-fem-128": lambda place: products.spmm("fem", 128, place, pooled=3.5, fresh=1.4),
    "spmm-fem-16": lambda place: products.spmm("fem", 16, place, pooled=1.5),
    "sddmm-cora-128": lambda place: products.sddmm("cora", 128, place, pooled=1.8),
    "sddmm-pubmed-128": lambda place: products.sddmm("pubmed", 128, place, pooled=1.3),
    "sddmm-arxiv-128": lambda place: products.sddmm("arxiv", 128, place, pooled=2.8),
    "sddmm-fem-64": lambda place: products.sddmm("fem", 64, place, pooled=2.5),
    # A tenth of PubMed's features is stored, so that recipes make them sparse.
    "gcn-layer-pubmed": lambda place: convolutions.layer(
        "pubmed", place, torch_ratio=2.1, pyg_ratio=6.0, sparse_features=True, dense_ratio=2.1
    ),
    "gcn-layer-pubmed-dense-x": lambda place: convolutions.layer(
        "pubmed", place, torch_ratio=2.1, pyg_ratio=6.0
    ),
    "gcn-layer-arxiv-dense-x": lambda place: convolutions.layer(
        "arxiv", place, torch_ratio=4.0, fresh=2.2, pyg_ratio=30.0
    ),
    "gcn-layer-cora": lambda place: convolutions.layer(
        "cora", place, torch_ratio=2.3, sparse_features=True, dense_ratio=10.0
    ),
    "gcn-model-cora": lambda place: convolutions.model("cora", place, asked=8.0),
    "gcn-model-citeseer": lambda place: convolutions.model("citeseer", place, asked=8.0),
    "gcn-model-pubmed": lambda place: convolutions.model("pubmed", place, asked=6.0),
    "gcn-model-arxiv": lambda place: convolutions.model("arxiv", place, asked=20.0),
}
ROWS = (*CASES, "first-kernel", "call-overhead")


def main(
    argv: Sequence[str] | None = None,
    run: Run | None = None,
    names: Sequence[str] = ROWS,
    suite: str = "foundation",
) -> int:
    """Runs the command; exit status 0, or 2 if no row matches. Rows with a missing package are skipped.

    Args:
        run: function that measures a row, `run_row` by default.
        names: names of all rows.
        suite: package of the command.
    """
    arguments = _arguments(argv, suite)
    run = run or run_row
    rows = chosen(arguments.rows, names)
    if not rows:
        print(
            f"no row begins with {', '.join(arguments.rows)}; there are {', '.join(names)}", file=sys.stderr
        )
        return 2
    place = Place(data_root(arguments.data_root), arguments.scale)
    found: list[dict[str, Any]] = []
    for number, name in enumerate(rows, 1):
        print(f"[{number}/{len(rows)}] {name}", file=sys.stderr, flush=True)
        try:
            row = run(name, place, quick=arguments.quick, clock=CLOCKS[arguments.cpu_time])
        except ModuleNotFoundError as error:
            print(f"{name} is left out, {error.name} is not installed", file=sys.stderr)
            continue
        found.append(row)
        if arguments.out is not None:
            write(arguments.out, found)
    print(table(found))
    if arguments.out is not None:
        print(f"written: {arguments.out}", file=sys.stderr)
    return 0


def _arguments(argv: Sequence[str] | None, suite: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{suite}",
        description=f"Measures the rows of {suite} in turns with their baselines, prints a table, writes JSON.",
    )
    parser.add_argument("--rows", nargs="+", default=[""], metavar="NAME", help="names, or how they begin")
    parser.add_argument("--out", type=Path, help="write everything that was measured here, as JSON")
    parser.add_argument("--data-root", type=Path, help="real data sets; SPARSIFY_DATA_ROOT, ../shared/data")
    parser.add_argument("--quick", action="store_true", help="three turns a row")
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread and its time on the processor: for busy machines"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="below 1: generated data of that size")
    return parser.parse_args(argv)


def data_root(given: Path | None) -> Path | None:
    """Folder of real data sets: argument, SPARSIFY_DATA_ROOT or ../shared/data; `None` if the folder is missing."""
    named = os.environ.get("SPARSIFY_DATA_ROOT")
    places = [given] if given is not None else [Path(named)] if named else [BESIDE]
    return next((place for place in places if place.is_dir()), None)


def chosen(beginnings: Sequence[str], names: Sequence[str] = ROWS) -> list[str]:
    """Rows with one of the prefixes, in the order of the table."""
    return [name for name in names if name.startswith(tuple(beginnings))]


def run_row(name: str, place: Place, *, quick: bool = False, clock: Clock = CLOCKS[False]) -> dict[str, Any]:
    """Measurements of one row as plain data."""
    if name == "first-kernel":
        return firsts.row()
    if name == "call-overhead":
        return overhead.row(1.0 if quick else 4.0, clock)
    return measured(CASES[name](place), quick, clock)
