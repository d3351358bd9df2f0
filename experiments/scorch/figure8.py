"""Figure 8: SpMV, SpMM, SpMSpM and SDDMM over matrices of the SuiteSparse collection, time against stored entries.

In: a `Setting`. Out: the figure: sparsify, torch's sparse operators, scipy and pydata/sparse.

As in appendix E.1: 10 runs, CSR, for SpMSpM coordinates; for SpMSpM, non-square matrices are cut to squares, and each
matrix is multiplied with its transpose.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.io
import scipy.sparse
import torch
from torch import Tensor

import sparsify
from sparsify.bench import peers
from sparsify.bench.harness import Case, Contender, nothing
from sparsify.compiler.kernel.pattern_cache import KNOWN
from sparsify.errors import DataError
from sparsify.runner.peers import installed

from ..reproduce.figure import OURS, Figure, Outcome, Row, Setting, timed

OPERATIONS: Final = ("SpMV", "SpMM", "SpMSpM", "SDDMM")
COLUMNS: Final = 64  # columns of dense matrices; the paper does not state them
SMALL: Final = ("HB/west0479", "Bai/olm1000", "HB/bcsstk13", "Hamm/memplus")
TORCH, SCIPY, PYDATA = "torch.sparse", "scipy", "pydata/sparse"
FOLDER: Final = "suitesparse"
# Largest value whose squares, and sums of thousands of squares, are finite in float32.
LARGEST: Final = 1e15
# Maximum bytes of torch's dense products for SDDMM.
DENSE_BYTES: Final = 1 << 30


@cache
def matrix(file: Path) -> "scipy.sparse.csr_array":
    """Matrix in float32 and CSR, stored zeros included; scaled by its largest value if products could overflow.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        found = scipy.sparse.csr_array(scipy.io.mmread(file)).astype(np.float32)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file} cannot be read: {error}", "fetch the file again") from None
    largest = float(np.abs(found.data).max(initial=0.0))
    if largest > LARGEST:
        found.data /= np.float32(largest)
    found.sum_duplicates()
    found.sort_indices()
    return found


def csr_of(matrix: "scipy.sparse.csr_array") -> Tensor:
    """Matrix in torch's CSR layout with int64 coordinates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR layout a beta
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)),
            torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data.copy()),
            size=matrix.shape,
        )


def square(matrix: "scipy.sparse.csr_array") -> "scipy.sparse.csr_array":
    """Matrix cut to its leading square."""
    size = min(matrix.shape)
    found = scipy.sparse.csr_array(matrix[:size, :size])
    found.sort_indices()
    return found


def measure(operation: str, file: Path, name: str, setting: Setting) -> Outcome:
    """Times of one operation on one matrix."""
    found = matrix(file)
    draw = torch.Generator().manual_seed(setting.seed)
    case = Case(f"{operation} {name}", name, name, [], [], tolerance=1e-4)
    make = {"SpMV": _spmv, "SpMM": _spmm, "SpMSpM": _spmspm, "SDDMM": _sddmm}[operation]
    calls, case.expected, note = make(found, draw)
    # Clears the memo of result patterns, so that every call computes the pattern.
    before = KNOWN.clear if operation == "SpMSpM" else nothing
    case.contenders += [
        # Peers' sparse results have other orders of entries, so their values are not compared.
        Contender(
            who,
            call,
            who != OURS,
            before if who == OURS else nothing,
            is_checked=who == OURS or operation in ("SpMV", "SpMM"),
        )
        for who, call in calls.items()
        if call is not None
    ]
    times = timed(case, setting, seconds=1.0, runs=10)
    missing = {who: installed.reason(who) for who, call in calls.items() if call is None}
    facts = {"nonzeros": int(found.nnz), "rows": int(found.shape[0]), "columns": int(found.shape[1])}
    return Outcome(times, missing, facts, note)


Calls = dict[str, Callable[[], Any] | None]
Made = tuple[Calls, Callable[[], Tensor], str]


def _spmv(found: "scipy.sparse.csr_array", draw: torch.Generator) -> Made:
    """`y[i] = A[i,j] * x[j]`."""
    x = torch.randn(found.shape[1], generator=draw)
    return _dense_product(found, x, "ij,j->i")


def _spmm(found: "scipy.sparse.csr_array", draw: torch.Generator) -> Made:
    """`C[i,k] = A[i,j] * B[j,k]`."""
    return _dense_product(found, torch.randn(found.shape[1], COLUMNS, generator=draw), "ij,jk->ik")


def _dense_product(found: "scipy.sparse.csr_array", B: Tensor, subscripts: str) -> Made:
    """Product with a dense vector or matrix."""
    A, theirs = sparsify.tensor(found, "csr"), csr_of(found)
    calls: Calls = {
        OURS: lambda: sparsify.einsum(subscripts, A, B),
        TORCH: lambda: theirs @ B,
        **peers.product(theirs, B),
    }
    return calls, lambda: torch.from_numpy(found.astype(np.float64) @ B.double().numpy()), ""


def _spmspm(found: "scipy.sparse.csr_array", draw: torch.Generator) -> Made:
    """`C[i,k] = A[i,j] * B[j,k]`, B the transpose of A; torch's operands are in coordinate format."""
    cut = square(found)
    other = scipy.sparse.csr_array(cut.T.tocsr())
    other.sort_indices()
    A, B = sparsify.tensor(cut, "csr"), sparsify.tensor(other, "csr")
    left, right = csr_of(cut).to_sparse_coo(), csr_of(other).to_sparse_coo()
    calls: Calls = {
        OURS: lambda: sparsify.einsum("ij,jk->ik", A, B),
        TORCH: lambda: torch.sparse.mm(left, right),
        **peers.product(csr_of(cut), csr_of(other)),
    }

    def expected() -> Tensor:
        result = scipy.sparse.csr_array(cut.astype(np.float64) @ other.astype(np.float64))
        pattern = scipy.sparse.csr_array(_ones(cut) @ _ones(other))
        return _values_at(result, pattern)

    note = "cut to a square" if cut.shape != found.shape else ""
    return calls, expected, note


def _ones(matrix: "scipy.sparse.csr_array") -> "scipy.sparse.csr_array":
    """Matrix of ones at the entries of another matrix."""
    return scipy.sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)


def _values_at(result: "scipy.sparse.csr_array", pattern: "scipy.sparse.csr_array") -> Tensor:
    """Values of a result at the entries of a pattern, row by row."""
    result.sort_indices()
    pattern.sort_indices()
    if result.nnz == pattern.nnz:
        return torch.from_numpy(result.data)
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    return torch.from_numpy(np.asarray(result[rows, pattern.indices]).ravel())


def _sddmm(found: "scipy.sparse.csr_array", draw: torch.Generator) -> Made:
    """`D[i,j] = A[i,j] * (B @ C)[i,j]`; torch multiplies densely before it samples."""
    B = torch.randn(found.shape[0], COLUMNS, generator=draw)
    C = torch.randn(COLUMNS, found.shape[1], generator=draw)
    A, theirs = sparsify.tensor(found, "csr"), csr_of(found).to_sparse_coo()
    fits = 4 * found.shape[0] * found.shape[1] <= DENSE_BYTES
    calls: Calls = {OURS: lambda: sparsify.einsum("ij,ik,kj->ij", A, B, C)}
    if fits:
        calls[TORCH] = lambda: theirs * (B @ C)
    rows = torch.from_numpy(np.repeat(np.arange(found.shape[0]), np.diff(found.indptr)))
    columns = torch.from_numpy(found.indices.astype(np.int64))
    values = torch.from_numpy(found.data.copy()).double()

    def expected() -> Tensor:
        return values * (B.double()[rows] * C.double().T[columns]).sum(1)

    return calls, expected, "" if fits else "torch's dense product would take more than 1 GiB"


def rows(setting: Setting) -> Sequence[Row]:
    """Each operation on each matrix, small matrices first; a subset when quick."""
    folder = None if setting.root is None else setting.root / FOLDER
    files = [] if folder is None else sorted(folder.glob("*/*.mtx.gz"), key=lambda file: file.stat().st_size)
    named = {f"{file.parent.name}/{file.name.removesuffix('.mtx.gz')}": file for file in files}
    if setting.quick:
        named = {name: file for name, file in named.items() if name in SMALL}
    if not named:
        return [Row(operation, "SuiteSparse", partial(_nothing, folder)) for operation in OPERATIONS]
    return [
        Row(
            f"{operation} {name}",
            "SuiteSparse",
            partial(measure, operation, file, name),
            (f"{FOLDER}/{name}.mtx.gz",),
            4.0,
        )
        for operation in OPERATIONS
        for name, file in named.items()
    ]


def _nothing(folder: Path | None, setting: Setting) -> Outcome:
    """Raises the error of a missing collection."""
    raise DataError(
        f"there are no matrices: looked for */*.mtx.gz in {folder or 'no data root'}",
        f"unpack matrices of sparse.tamu.edu as {FOLDER}/GROUP/NAME.mtx.gz below --data-root DIR",
    )


FIGURE = Figure(
    "figure8",
    "sparse kernels",
    rows,
    TORCH,
    "like PyTorch for SpMV and SpMSpM, ahead for SpMM beyond 10^2 nonzeros, orders of magnitude for SDDMM beyond 10^3.",
    facts=("nonzeros", "rows", "columns"),
    why={
        SCIPY: "it runs on one thread, which waits for no other, and takes operands unchecked",
        f"SpMSpM {SCIPY}": "its rows are not sorted; ours are, and their pattern is found anew in each call",
        TORCH: "its call on the threads that it has is cheaper than the start of ours",
        f"SpMSpM {TORCH}": "MKL's product; ours counts the entries of each row before it fills them",
        PYDATA: "its product does not sort the coordinates of its result",
    },
    kind="points",
    across="nonzeros",
    panels=lambda row: row.split()[0],
)
