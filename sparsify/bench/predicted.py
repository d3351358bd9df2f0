"""Predicted against measured times, over kernels of all kinds.

In: nothing. Out: `Prediction("spmm-2708-5-128", 150.0, 139.0)` for each kernel, and the median ratio.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import torch
from tabulate import tabulate

from sparsify.bench.harness import Case, Clock, Contender, measure
from sparsify.compiler import calibrate
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.schedule.cost.machine import Machine
from sparsify.compiler.schedule.cost.statement import estimate_us
from sparsify.compiler.schedule.sizes import sizes_of
from sparsify.options import current
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.tensor import SparseTensor

HEADERS: Final = ("kernel", "predicted us", "measured us", "predicted / measured")
SPMM: Final = "Y[i,k] = A[i,j] * X[j,k]"
LINEAR: Final = "Y[t,n] = sum(k, X[t,k] * W[n,k]) + b[n]"
PANELS: Final = "j/192: dense, i: dense, j%192: compressed(crd=int16)"
BLOCKS: Final = "j/384: dense, i/4: dense, j%384: compressed(crd=int16), i%4: dense"
SDDMM: Final = "S[i,j] = A[i,j] * X[i,k] * X[j,k]"
SPMV: Final = "y[i] = A[i,j] * x[j]"
SPGEMM: Final = "C[i,k] = A[i,j] * B[j,k]"
ADD: Final = "C[i,k] = A[i,k] + B[i,k]"
DENSE: Final = "Y[t,n] = X[t,k] * W[n,k]"
# Stored percent of a weight's entries, rows of a block, format.
LAYERS: Final = ((50, 1, PANELS), (10, 1, PANELS), (5, 1, "dense, compressed"), (20, 4, BLOCKS))
Operands = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prediction:
    """One kernel: name, predicted time, and time of the fastest call."""

    name: str
    predicted_us: float
    measured_us: float

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.predicted_us / self.measured_us

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "ratio": self.ratio}


def predictions(seconds: float, clock: Clock, scale: float = 1.0) -> Iterator[Prediction]:
    """Every kernel, measured for about so many seconds; `scale` below 1 makes the operands smaller."""
    machine = calibrate.measured(current())
    for name, text, make in kernels(scale):
        with torch.no_grad():
            yield predicted(name, text, make(), machine, seconds, clock)


def predicted(
    name: str, text: str, operands: Operands, machine: Machine, seconds: float, clock: Clock
) -> Prediction:
    """The predicted and the measured time of one kernel."""
    kernel = evaluate_kernel(text, None, format=None, schedule=None, sizes=None, **operands)
    given = [operands[name] for name in kernel.program.inputs]
    sizes = sizes_of(kernel.program, given)
    expected = estimate_us(kernel.program, sizes.extents, sizes.stored, machine)
    case = Case(name, text, "generated", [Contender("sparsify", lambda: kernel(*given), baseline=False)], [])
    times = measure(case, seconds=seconds, least=3, clock=clock).times["sparsify"]
    return Prediction(name, expected, min(times.runs_us))


def kernels(scale: float) -> Iterator[tuple[str, str, Callable[[], Operands]]]:
    """Products of sparse matrices with dense ones, vectors and each other, sampled products, layers, dense products."""
    for rows, stored, columns in ((2708, 5, 128), (2708, 5, 16), (20_000, 7, 32), (20_000, 50, 16)):
        make = partial(with_table, scaled(rows, scale), stored, columns)
        yield f"spmm {rows} x {stored}, {columns} columns", SPMM, make
    for rows, stored, columns in ((2708, 5, 128), (20_000, 20, 32)):
        make = partial(with_table, scaled(rows, scale), stored, columns)
        yield f"sddmm {rows} x {stored}, {columns} columns", SDDMM, make
    for rows, stored in ((2708, 5), (20_000, 7), (100_000, 20)):
        yield f"spmv {rows} x {stored}", SPMV, partial(with_vector, scaled(rows, scale), stored)
    for kind, text in (("spgemm", SPGEMM), ("add", ADD)):
        for rows, stored in ((2708, 5), (20_000, 7)):
            yield f"{kind} {rows} x {stored}", text, partial(with_other, scaled(rows, scale), stored)
    outputs = scaled(3072, scale) // 4 * 4
    for percent, height, form in LAYERS:
        for rows in (1, 16, 128)[height > 1 :]:
            make = partial(layer, rows, percent, height, form, outputs)
            yield f"linear {percent} %, blocks of {height}, {rows} rows", LINEAR, make
    for rows, wide, columns in ((1, 3072, 768), (128, 768, 768), (64, 64, 64), (4096, 16, 500)):
        yield f"dense {rows} x {columns} -> {wide}", DENSE, partial(two_dense, rows, wide, columns)


def scaled(rows: int, scale: float) -> int:
    return max(32, round(rows * scale))


def with_table(rows: int, stored: int, columns: int) -> Operands:
    """A sparse matrix and a dense one."""
    return {"A": uniform(rows, rows, stored), "X": torch.ones(rows, columns)}


def with_vector(rows: int, stored: int) -> Operands:
    """A sparse matrix and a vector."""
    return {"A": uniform(rows, rows, stored), "x": torch.ones(rows)}


def with_other(rows: int, stored: int) -> Operands:
    """Two sparse matrices."""
    return {"A": uniform(rows, rows, stored), "B": uniform(rows, rows, stored, 1)}


def two_dense(rows: int, outputs: int, columns: int) -> Operands:
    """Two dense matrices."""
    return {"X": torch.ones(rows, columns), "W": torch.ones(outputs, columns)}


def uniform(rows: int, columns: int, stored: int, seed: int = 0) -> SparseTensor:
    """A matrix in csr with about so many entries in each row, anywhere."""
    drawn = torch.randint(0, columns, (rows, stored), generator=torch.Generator().manual_seed(seed))
    places = (torch.arange(rows).unsqueeze(1) * columns + drawn).flatten().unique()
    coordinates = torch.stack([places // columns, places % columns])
    return tensor((coordinates, torch.ones(len(places)), (rows, columns)), "csr")


def layer(rows: int, percent: int, height: int, form: str, outputs: int) -> Operands:
    """The operands of a linear layer of 768 columns with `percent` of the weight's entries stored."""
    drawn = torch.rand(outputs // height, 768, generator=torch.Generator().manual_seed(0))
    weight = (drawn < percent / 100).float().repeat_interleave(height, 0)
    return {"X": torch.ones(rows, 768), "W": tensor(weight, form), "b": torch.ones(outputs)}


def median_ratio(found: Sequence[Prediction]) -> float:
    """Median factor of misprediction, at least 1: over- and underestimates count alike."""
    return statistics.median(max(one.ratio, 1 / one.ratio) for one in found)


def table(found: Sequence[Prediction]) -> str:
    """All kernels, and the median."""
    lines = [(p.name, f"{p.predicted_us:.1f}", f"{p.measured_us:.1f}", f"{p.ratio:.2f}") for p in found]
    text = tabulate(lines, headers=HEADERS, tablefmt="simple", disable_numparse=True)
    return f"{text}\nwithin {median_ratio(found):.2f}x in the median of {len(found)} kernels"
