"""`python -m experiments.kernels [--rows linear-1024 ...] [--out bench.json] [--quick]`: measures, prints, writes.

In: names of rows, or beginnings of names. Out: one table on standard output and, with `--out`, JSON.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from experiments.foundation import command
from experiments.kernels import compile_times
from experiments.kernels.bert import bert
from experiments.kernels.nmg import nmg, one_thread
from experiments.kernels.resnet import resnet
from sparsify.bench.harness import Clock
from sparsify.bench.linear import Weight, linear
from sparsify.bench.place import Place
from sparsify.bench.table import CLOCKS, measured

# Target ratios against torch's and against oneDNN's dense product, by rows of the input and weight.
ASKED: Mapping[tuple[int, Weight], tuple[float | None, float | None]] = {
    (1024, Weight(50)): (2.0, 0.95),
    (1024, Weight(70)): (3.2, 1.5),
    (1024, Weight(80)): (4.2, 1.9),
    (1024, Weight(90)): (7.5, 3.1),
    (1024, Weight(95)): (11.0, 4.8),
    (1024, Weight(98)): (19.0, 9.0),
    (1024, Weight(50, of=4)): (2.2, 1.0),
    (1024, Weight(50, (16, 1), of=0)): (2.8, 1.25),
    (1024, Weight(75, of=4)): (3.8, None),
    (1024, Weight(88, of=8)): (6.5, None),
    (1024, Weight(50, (4, 1))): (None, 1.35),
    (1024, Weight(80, (4, 1))): (None, 3.2),
    (1024, Weight(90, (4, 1))): (None, 5.4),
    (1024, Weight(95, (4, 1))): (None, 9.0),
    (1024, Weight(50, (8, 1))): (None, 1.7),
    (1024, Weight(80, (8, 1))): (None, 3.7),
    (1024, Weight(90, (8, 1))): (None, 6.3),
    (1024, Weight(50, (32, 1))): (None, 1.6),
    (1024, Weight(90, (32, 1))): (None, 5.6),
    (1024, Weight(90, (16, 16))): (None, None),
    (1024, Weight(90, (32, 32))): (None, None),
    (128, Weight(50)): (2.4, None),
    (128, Weight(70)): (3.8, None),
    (128, Weight(80)): (None, None),
    (128, Weight(90)): (8.5, None),
    (16, Weight(50)): (None, None),
    (16, Weight(70)): (2.6, None),
    (16, Weight(90)): (6.0, None),
    (16, Weight(95)): (10.0, None),
    (1, Weight(50)): (1.6, None),
    (1, Weight(90)): (6.0, None),
    (1, Weight(50, dtype="bfloat16")): (1.6, None),
    (1, Weight(90, dtype="bfloat16")): (6.0, None),
    (1, Weight(50, dtype="int8")): (1.6, None),
    (1, Weight(90, dtype="int8")): (6.0, None),
}
# Target ratios of whole encoders of BERT.
BERTS: Mapping[Weight, tuple[float | None, float | None]] = {
    Weight(60): (1.6, 1.05),
    Weight(80): (2.2, 1.4),
    Weight(90): (2.6, 1.7),
    Weight(50, (16, 1), of=0): (1.0, 1.0),
    Weight(50, (8, 1)): (1.0, 1.0),
}
# Target ratios of ResNet-50 against torch, by images and per cent of zeros.
RESNETS: Mapping[tuple[int, int], float] = {(1, 80): 1.3, (1, 90): 1.8, (8, 80): 1.3, (8, 90): 1.8}
CASES: Mapping[str, command.Make] = (
    {
        f"linear-{rows}-{weight}": partial(
            linear, weight, rows, torch_ratio=torch_ratio, onednn_ratio=onednn_ratio
        )
        for (rows, weight), (torch_ratio, onednn_ratio) in ASKED.items()
    }
    | {
        f"bert-{weight}": partial(bert, weight, torch_ratio=torch_ratio, onednn_ratio=onednn_ratio)
        for weight, (torch_ratio, onednn_ratio) in BERTS.items()
    }
    | {
        f"resnet50-{batch}-{zeros}": partial(resnet, zeros, batch, asked=asked)
        for (batch, zeros), asked in RESNETS.items()
    }
)
# One thread; targets exceed the ratios against MKL reported by the authors of n:m:g.
ALONE: Mapping[str, command.Make] = {
    "nmg-50": partial(nmg, 2, 4, torch_ratio=1.7),
    "nmg-90": partial(nmg, 1, 10, torch_ratio=4.8),
}
ROWS = (*CASES, *ALONE, "compile")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; exit status 0, or 2 if no row matches."""
    return command.main(argv, run_row, ROWS, "kernels")


def run_row(name: str, place: Place, *, quick: bool = False, clock: Clock = CLOCKS[False]) -> dict[str, Any]:
    """Measurements of one row as plain data."""
    if name == "compile":
        return compile_times.row()
    if name in ALONE:
        with one_thread():
            return measured(ALONE[name](place), quick, clock)
    return measured(CASES[name](place), quick, clock)
