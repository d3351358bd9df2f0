"""`python -m experiments.training [--rows grid ...] [--out bench.json] [--quick]`: measures, prints, writes.

In: names of rows, or beginnings of names. Out: one table on standard output and, with `--out`, JSON.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from experiments.foundation import command
from experiments.training import language, steps, updates
from sparsify.bench.harness import Clock
from sparsify.bench.place import Place
from sparsify.bench.table import CLOCKS, measured

# By percent of zeros: target ratios of a step, of a step with optimizer, and of the weight gradient alone.
ASKED: Final[Mapping[int, tuple[float, float, float]]] = {
    80: (2.5, 2.5, 2.2),
    90: (4.5, 5.0, 4.0),
    95: (7.0, 8.0, 7.0),
}
# Steps that must not be slower than dense ones: percent of zeros, rows, features of a square weight.
GRID: Final = [
    (zeros, rows, features)
    for features in (64, 256, 768, 3072)
    for rows in (16, 64, 256, 1024, 4096)
    for zeros in (0, 30, 50, 70)
]
CASES: Final[Mapping[str, command.Make]] = {
    **{f"step-{zeros}": partial(steps.linear, zeros, asked=asked[0]) for zeros, asked in ASKED.items()},
    **{
        f"adamw-{zeros}": partial(steps.linear, zeros, asked=asked[1], has_optimizer=True)
        for zeros, asked in ASKED.items()
    },
    **{f"gradient-{zeros}": partial(steps.gradient, zeros, asked=asked[2]) for zeros, asked in ASKED.items()},
    "bert-layer-90": partial(steps.encoder, 90, asked=2.3),
    "gpt-90": partial(language.step, 90, asked=(1.7, 1.3)),
    **{f"grid-{'-'.join(map(str, sizes))}": partial(steps.square, *sizes) for sizes in GRID},
}


# Percent of the time of training that updates of masks may take.
UPDATES: Final = {"rigl-update-90": (90, 3.0)}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 0, or 2 if no row matches."""
    return command.main(argv, run_row, (*CASES, *UPDATES), "training")


def run_row(name: str, place: Place, *, quick: bool = False, clock: Clock = CLOCKS[False]) -> dict[str, Any]:
    """Measures one row of the table and returns its times as plain data."""
    if name in UPDATES:
        zeros, asked = UPDATES[name]
        return updates.row(zeros, place, asked, quick=quick, clock=clock)
    return measured(CASES[name](place), quick, clock)
