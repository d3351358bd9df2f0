"""Products of sparse matrices against torch, scipy and other projects.

In: `spmm(2708, 5, 128, place)`. Out: a `Case` with results checked against float64.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import sparsify
from sparsify.bench import peers
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.bench.predicted import uniform
from sparsify.bench.roofline import Work
from sparsify.runtime.buffers import POOL
from sparsify.storage.tensor import SparseTensor

# Bytes of a number, and of a stored entry in csr (value and coordinate).
ITEM = 4
ENTRY = 2 * ITEM


def scaled(rows: int, place: Place) -> int:
    """An extent at the scale of a place; small extents (up to 32) stay unchanged."""
    return max(min(rows, 32), round(rows * place.scale))


def against(
    case: Case,
    ours: Callable[[], Any],
    theirs: Mapping[str, Callable[[], Any] | None],
) -> Case:
    """The case with our call against each peer's, without required ratios; `None` marks a missing peer.

    Our calls with pooled results are compared with every peer, calls with fresh results with the fastest peer.
    """
    case.prepare("first call", ours)
    present = {label: call for label, call in theirs.items() if call is not None}
    case.contenders += [
        Contender("sparsify", ours, baseline=False),
        *(Contender(label, call) for label, call in present.items()),
        Contender("sparsify fresh", ours, baseline=False, before=POOL.clear),
    ]
    case.targets += [Target("sparsify", (label,), None, label) for label in present]
    case.targets.append(Target("sparsify fresh", tuple(present), None, "fresh"))
    case.missing += [label for label, call in theirs.items() if call is None]
    return case


def row(name: str, work: str, expected: Callable[[], Tensor] | None, least: Work | None = None) -> Case:
    """A case without contenders, of generated operands."""
    return Case(name, work, "generated", [], [], expected, least=least)


def generated(rows: int, stored: int, place: Place) -> tuple[SparseTensor, Tensor]:
    """A square matrix with about so many entries a row, and the same as torch's CSR."""
    A = uniform(scaled(rows, place), scaled(rows, place), stored)
    return A, A.to_torch()


def dense(rows: int, columns: int) -> Tensor:
    """[rows, columns] of random numbers."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def spmm(rows: int, stored: int, columns: int, place: Place) -> Case:
    """A sparse matrix times a dense one."""
    A, csr = generated(rows, stored, place)
    X = dense(A.shape[1], columns)
    size = ITEM * columns * A.shape[0]
    case = row(
        f"spmm-{rows}-{stored}-{columns}",
        f"{A.shape[0]} rows, {A.nnz} entries, {columns} columns",
        lambda: csr.double() @ X.double(),
        Work(2.0 * A.nnz * columns, ENTRY * A.nnz + 2 * size, ITEM * A.nnz * columns, size),
    )
    theirs = {"torch CSR": lambda: csr @ X, 'torch mm "sum"': lambda: torch.sparse.mm(csr, X, "sum")}
    return against(case, lambda: sparsify.einsum("ij,jk->ik", A, X), {**theirs, **peers.spmm(csr, X)})


def spmv(rows: int, stored: int, place: Place) -> Case:
    """A sparse matrix times a vector."""
    A, csr = generated(rows, stored, place)
    x = dense(A.shape[1], 1).flatten()
    case = row(
        f"spmv-{rows}-{stored}",
        f"{A.shape[0]} rows, {A.nnz} entries",
        lambda: csr.double() @ x.double(),
        Work(2.0 * A.nnz, ENTRY * A.nnz + 2 * ITEM * A.shape[0]),
    )
    theirs = {"torch CSR": lambda: csr @ x, **peers.product(csr, x)}
    return against(case, lambda: sparsify.einsum("ij,j->i", A, x), theirs)


def sddmm(rows: int, stored: int, columns: int, place: Place) -> Case:
    """SDDMM: a dense product sampled at the entries of a sparse matrix."""
    A, csr = generated(rows, stored, place)
    P, Q = torch.randn(2, A.shape[0], columns, generator=torch.Generator().manual_seed(0)).unbind()
    turned, at = Q.T.contiguous(), A.coordinates().long()
    size = ITEM * columns * A.shape[0]
    case = row(
        f"sddmm-{rows}-{stored}-{columns}",
        f"{A.shape[0]} rows, {A.nnz} entries, {columns} columns",
        lambda: (P[at[0]].double() * Q[at[1]].double()).sum(1),
        Work(2.0 * A.nnz * columns, (ENTRY + ITEM) * A.nnz + 2 * size, ITEM * A.nnz * columns, size),
    )
    theirs = {"sampled_addmm": lambda: torch.sparse.sampled_addmm(csr, P, turned, beta=0.0)}
    return against(case, lambda: sparsify.einsum("ij,ik,jk->ij", A, P, Q), theirs)


def spgemm(rows: int, stored: int, place: Place) -> Case:
    """A sparse matrix times itself; only ours has columns in ascending order."""
    A, csr = generated(rows, stored, place)
    wanted = peers.scipy_of(csr.double()) @ peers.scipy_of(csr.double())
    products = int(csr.crow_indices().diff()[csr.col_indices()].sum())
    case = row(
        f"spgemm-{rows}-{stored}",
        f"{A.shape[0]} rows, {A.nnz} entries, {wanted.nnz} in the result",
        lambda: torch.from_numpy(wanted.sorted_indices().data),
        Work(2.0 * products, ENTRY * (2 * A.nnz + wanted.nnz), ENTRY * products, ENTRY * A.nnz),
    )
    theirs = {"torch": lambda: csr @ csr, **peers.product(csr, csr)}
    return against(case, lambda: sparsify.einsum("ij,jk->ik", A, A), theirs)


def added(rows: int, stored: int, place: Place) -> Case:
    """The sum of a sparse matrix and another one of the same size."""
    A, csr = generated(rows, stored, place)
    B = uniform(A.shape[0], A.shape[1], stored, seed=1)
    other = B.to_torch()
    wanted = peers.scipy_of(csr.double()) + peers.scipy_of(other.double())
    case = row(
        f"add-{rows}-{stored}",
        f"{A.shape[0]} rows, {A.nnz} and {B.nnz} entries",
        lambda: torch.from_numpy(wanted.sorted_indices().data),
        Work(float(A.nnz + B.nnz), ENTRY * (A.nnz + B.nnz + wanted.nnz)),
    )
    left, right = peers.scipy_of(csr), peers.scipy_of(other)
    theirs = {"torch": lambda: csr + other, "scipy": lambda: left + right}
    return against(case, lambda: A + B, theirs)
