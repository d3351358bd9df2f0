"""`python -m experiments.compiler [--rows spgemm ...] [--out bench.json] [--quick]`: measures, prints, writes.

In: names of rows, or beginnings of names. Out: one table on standard output and, with `--out`, JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.compiler import first_calls, matrices, scheduling, small, tensors
from experiments.foundation import command
from sparsify.bench.harness import Clock
from sparsify.bench.place import Place
from sparsify.bench.table import CLOCKS, measured

CASES: Mapping[str, command.Make] = {
    "spgemm-pubmed": lambda place: matrices.product("pubmed", place, pooled=2.0, known=2.7),
    "spgemm-fem": lambda place: matrices.product("fem", place, pooled=1.7, known=2.8),
    "spgemm-uniform": lambda place: matrices.product("uniform", place, pooled=1.4, known=1.6),
    "add-pubmed": lambda place: matrices.addition("pubmed", place, asked=1.5),
    "add-fem": lambda place: matrices.addition("fem", place, asked=1.5),
    "spmv-pubmed": lambda place: matrices.vector("pubmed", place, asked=0.95),
    "spmv-fem": lambda place: matrices.vector("fem", place, asked=0.95),
    "mttkrp-3": lambda place: tensors.mttkrp(place, asked=1.0),
}
ROWS = (*CASES, *small.ROWS, "scheduling", "first-call")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; the exit status is 0, or 2 if no row matches."""
    return command.main(argv, run_row, ROWS, "compiler")


def run_row(name: str, place: Place, *, quick: bool = False, clock: Clock = CLOCKS[False]) -> dict[str, Any]:
    """Measurements of one row as plain data."""
    if name in small.ROWS:
        return small.row(name, 0.3 if quick else 2.0, clock)
    if name == "scheduling":
        return scheduling.row(100 if quick else scheduling.COUNT)
    if name == "first-call":
        return first_calls.row(processor=clock is CLOCKS[True], every=10 if quick else 1)
    return measured(CASES[name](place), quick, clock)
