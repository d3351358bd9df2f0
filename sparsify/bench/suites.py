"""The suites of `sparsify bench`: what is measured against what.

In: the name of a suite. Out: its rows by name, each a function that makes the `Case` or measures by itself.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import nn

import sparsify
from sparsify.bench.harness import Case, Clock, Contender, Target
from sparsify.bench.linear import RECIPE, Weight, linear
from sparsify.bench.place import Place
from sparsify.bench.predicted import uniform
from sparsify.bench.table import measured
from sparsify.runner.measure import peak_bytes

Make = Callable[[Place], Case]
Row = Callable[[Place, bool, Clock], dict[str, Any]]
WEIGHTS: Final = {"targets": ["param:*.weight"], "role": "weight", "source": "given"}
MLP: Final = {**RECIPE, "sparsify": [WEIGHTS]}


def timed(make: Make) -> Row:
    """A row that runs the contenders of a case in turns."""

    def run(place: Place, quick: bool, clock: Clock) -> dict[str, Any]:
        return measured(make(place), quick, clock)

    return run


def scaled(rows: int, place: Place) -> int:
    return max(32, round(rows * place.scale))


def against(
    name: str,
    work: str,
    ours: Callable[[], Any],
    theirs: Mapping[str, Callable[[], Any]],
    expected: Callable[[], torch.Tensor] | None,
) -> Case:
    """A case of one call of ours against others; nothing is asked."""
    contenders = [Contender("sparsify", ours, baseline=False)]
    contenders += [Contender(label, call) for label, call in theirs.items()]
    targets = [Target("sparsify", (label,), None, label) for label in theirs]
    return Case(name, work, "generated", contenders, targets, expected)


def spmm(rows: int, stored: int, columns: int, place: Place) -> Case:
    """A sparse matrix times a dense one."""
    A = uniform(scaled(rows, place), scaled(rows, place), stored)
    X = torch.randn(A.shape[1], columns, generator=torch.Generator().manual_seed(0))
    csr = A.to_torch()
    return against(
        f"spmm-{rows}-{stored}-{columns}",
        f"{A.shape[0]} rows, {A.nnz} entries, {columns} columns",
        lambda: sparsify.einsum("ij,jk->ik", A, X),
        {"torch CSR": lambda: csr @ X, 'torch mm "sum"': lambda: torch.sparse.mm(csr, X, "sum")},
        lambda: csr.double() @ X.double(),
    )


def spmv(rows: int, stored: int, place: Place) -> Case:
    """A sparse matrix times a vector."""
    A = uniform(scaled(rows, place), scaled(rows, place), stored)
    x = torch.randn(A.shape[1], generator=torch.Generator().manual_seed(0))
    csr = A.to_torch()
    return against(
        f"spmv-{rows}-{stored}",
        f"{A.shape[0]} rows, {A.nnz} entries",
        lambda: sparsify.einsum("ij,j->i", A, x),
        {"torch CSR": lambda: csr @ x},
        lambda: csr.double() @ x.double(),
    )


def sddmm(rows: int, stored: int, columns: int, place: Place) -> Case:
    """A dense product sampled where a sparse matrix has entries."""
    A = uniform(scaled(rows, place), scaled(rows, place), stored)
    P, Q = torch.randn(2, A.shape[0], columns, generator=torch.Generator().manual_seed(0)).unbind()
    csr, turned = A.to_torch(), Q.T.contiguous()
    at = A.coordinates().long()
    return against(
        f"sddmm-{rows}-{stored}-{columns}",
        f"{A.shape[0]} rows, {A.nnz} entries, {columns} columns",
        lambda: sparsify.einsum("ij,ik,jk->ij", A, P, Q),
        {"sampled_addmm": lambda: torch.sparse.sampled_addmm(csr, P, turned, beta=0.0)},
        lambda: (P[at[0]].double() * Q[at[1]].double()).sum(1),
    )


def spgemm(rows: int, stored: int, place: Place) -> Case:
    """A sparse matrix times itself."""
    A = uniform(scaled(rows, place), scaled(rows, place), stored)
    csr = A.to_torch()

    def reference() -> torch.Tensor:
        found = csr.double() @ csr.double()
        rows = torch.arange(len(found.crow_indices()) - 1).repeat_interleave(found.crow_indices().diff())
        return found.values()[(rows * found.shape[1] + found.col_indices()).argsort()]

    case = against(
        f"spgemm-{rows}-{stored}",
        f"{A.shape[0]} rows, {A.nnz} entries",
        lambda: sparsify.einsum("ij,jk->ik", A, A),
        {"torch": lambda: csr @ csr},
        reference,
    )
    # Columns need not ascend in torch's rows, so that its values come in an order of their own.
    case.contenders[1] = replace(case.contenders[1], is_checked=False)
    return case


def mlp(zeros: int, rows: int, place: Place) -> Case:
    """Four linear layers with ReLU, pruned at random, against the dense model."""
    sizes = [scaled(size, place) // 32 * 32 for size in (768, 3072, 768, 3072, 768)]
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for columns, outputs in itertools.pairwise(sizes):
        one = nn.Linear(columns, outputs)
        one.weight.data *= Weight(zeros).mask(outputs, columns)
        layers += [one, nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).eval().requires_grad_(False)
    x = torch.randn(rows, sizes[0])
    sparse = sparsify.apply(model, MLP, x, verify=False)
    exact = nn.Sequential(*layers[:-1])
    case = against(
        f"mlp-{zeros}",
        f"{' -> '.join(map(str, sizes))}, {rows} rows, {zeros} % zeros",
        lambda: sparse(x),
        {"torch": lambda: model(x)},
        None,
    )
    with torch.no_grad():
        wanted = exact.double()(x.double())
        exact.float()
    case.expected = lambda: wanted
    return case


def small_layer(place: Place) -> Case:
    """A layer of a tenth of the usual extents."""
    case = linear(Weight(90), 1, Place(place.root, 0.1 * place.scale))
    case.name = f"small-{case.name}"
    return case


def packed_bytes(zeros: int, place: Place, quick: bool, clock: Clock) -> dict[str, Any]:
    """The bytes of a packed weight and the memory of a call, against values with 16-bit coordinates and dense."""
    case = linear(Weight(zeros), 128, place)
    outputs, columns = (scaled(size, place) // 32 * 32 for size in (3072, 768))
    torch.manual_seed(0)
    layer = nn.Linear(columns, outputs).eval().requires_grad_(False)
    layer.weight *= Weight(zeros).mask(outputs, columns)
    recipe = {**RECIPE, "compile": {"memory": "compact"}}
    sparse = sparsify.apply(layer, recipe, torch.randn(128, columns), verify=False)
    x = torch.randn(128, columns)
    sparse(x)
    entries = sparse.report.conversions
    least = int(layer.weight.count_nonzero()) * 6
    ours = entries[0].bytes_after if entries else layer.weight.nbytes
    peak = peak_bytes(lambda: sparse(x)) or 0
    return {
        "name": f"weight-{zeros}",
        "kind": "limits",
        "work": case.work,
        "data": "generated",
        "unit": "%",
        "contenders": [],
        "targets": [
            limit("bytes of values and 16-bit coordinates", ours / least, 1.15),
            limit("bytes of the dense weight", ours / layer.weight.nbytes, 1.0),
            limit("peak of a call, of input and result", peak / (4 * 128 * (columns + outputs)), 3.0),
        ],
    }


def limit(label: str, reached: float, asked: float) -> dict[str, Any]:
    """A part that must not be exceeded, in percent."""
    return {"label": label, "asked": 100 * asked, "reached": 100 * reached, "met": reached <= asked}


SUITES: Final[Mapping[str, Mapping[str, Row]]] = {
    "kernels": {
        **{
            f"spmm-{rows}-{stored}-{columns}": timed(partial(spmm, rows, stored, columns))
            for rows, stored, columns in ((2708, 5, 128), (20_000, 7, 32), (100_000, 20, 32))
        },
        "sddmm-20000-20-64": timed(partial(sddmm, 20_000, 20, 64)),
        "spmv-100000-20": timed(partial(spmv, 100_000, 20)),
        "spgemm-20000-10": timed(partial(spgemm, 20_000, 10)),
    },
    "layers": {
        f"linear-{rows}-{weight}": timed(partial(linear, weight, rows))
        for rows in (1, 128)
        for weight in (Weight(50), Weight(90), Weight(50, of=4), Weight(80, (4, 1)))
    },
    "models": {f"mlp-{zeros}": timed(partial(mlp, zeros, 128)) for zeros in (60, 90)},
    "small": {
        "spmm-10-2-4": timed(partial(spmm, 10, 2, 4)),
        "spmv-10-2": timed(partial(spmv, 10, 2)),
        "small-linear-1-90": timed(small_layer),
    },
    "memory": {f"weight-{zeros}": partial(packed_bytes, zeros) for zeros in (50, 90)},
}
