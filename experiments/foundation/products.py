"""SpMM and SDDMM on graphs and a mesh.

In: `spmm("arxiv", 128, place)`. Out: a `Case` against every formulation of torch and scipy.
"""

from collections.abc import Iterator

import torch

import sparsify
from experiments import graphs
from experiments.graphs import Matrix
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.runtime.buffers import POOL

# Maximum rows of gathered operands in memory during a float64 check.
CHECKED_ROWS = 200_000


def spmm(name: str, columns: int, place: Place, *, pooled: float | None, fresh: float | None = None) -> Case:
    """`C[i,k] = A[i,j] * B[j,k]` with `columns` k; target ratios for reused and for fresh result buffers."""
    matrix = graphs.matrix(name, place.root, place.scale)
    dense = torch.randn(matrix.rows, columns, generator=torch.Generator().manual_seed(0))
    narrow, wide = matrix.csr, graphs.widened(matrix.csr)
    case = Case(
        f"spmm-{name}-{columns}",
        f"A {matrix}, K {columns}",
        matrix.source,
        [],
        [],
        lambda: torch.from_numpy(graphs.scipy_of(narrow.double()) @ dense.double().numpy()),
    )
    sparse = case.prepare("to SparseTensor", lambda: sparsify.tensor(narrow))
    coordinates = case.prepare("to torch COO", lambda: wide.to_sparse_coo().coalesce())
    other = graphs.scipy_of(narrow)
    case.prepare("first call", lambda: sparsify.einsum("ij,jk->ik", sparse, dense))
    case.contenders += [
        Contender("sparsify", lambda: sparsify.einsum("ij,jk->ik", sparse, dense), baseline=False),
        Contender("torch CSR int32", lambda: narrow @ dense),
        Contender("torch CSR int64", lambda: wide @ dense),
        Contender('torch mm "sum"', lambda: torch.sparse.mm(wide, dense, "sum")),
        Contender("torch COO", lambda: torch.sparse.mm(coordinates, dense)),
        Contender("scipy", lambda: other @ dense.numpy()),
    ]
    theirs = tuple(c.name for c in case.contenders if c.baseline)
    case.targets.append(Target("sparsify", theirs, pooled, "pooled"))
    if fresh is not None:
        call = case.contenders[0].call
        case.contenders.append(Contender("sparsify fresh", call, baseline=False, before=POOL.clear))
        case.targets.append(Target("sparsify fresh", theirs, fresh, "fresh"))
    return case


def sddmm(name: str, columns: int, place: Place, *, pooled: float) -> Case:
    """`S[i,j] = A[i,j] * sum(k, P[i,k] * Q[j,k])` with `columns` k; torch's form does not multiply by A."""
    matrix = graphs.matrix(name, place.root, place.scale)
    seeded = torch.Generator().manual_seed(0)
    p, q = (torch.randn(matrix.rows, columns, generator=seeded) for _ in range(2))
    ones = torch.ones(matrix.nnz)
    narrow = graphs.csr(matrix.csr.crow_indices(), matrix.csr.col_indices(), ones, tuple(matrix.csr.shape))
    wide, turned = graphs.widened(narrow), q.T.contiguous()
    case = Case(
        f"sddmm-{name}-{columns}",
        f"A {matrix}, K {columns}",
        matrix.source,
        [],
        [],
        lambda: torch.cat(list(_sampled(matrix, p, q))),
    )
    sparse = case.prepare("to SparseTensor", lambda: sparsify.tensor(narrow))
    case.prepare("first call", lambda: sparsify.einsum("ij,ik,jk->ij", sparse, p, q))
    case.contenders += [
        Contender("sparsify", lambda: sparsify.einsum("ij,ik,jk->ij", sparse, p, q), baseline=False),
        Contender("sampled_addmm int32", lambda: torch.sparse.sampled_addmm(narrow, p, turned, beta=0.0)),
        Contender("sampled_addmm int64", lambda: torch.sparse.sampled_addmm(wide, p, turned, beta=0.0)),
        Contender("sampled_addmm, Q.T a view", lambda: torch.sparse.sampled_addmm(wide, p, q.T, beta=0.0)),
    ]
    theirs = tuple(c.name for c in case.contenders if c.baseline)
    case.targets.append(Target("sparsify", theirs, pooled, "pooled"))
    return case


def _sampled(matrix: Matrix, p: torch.Tensor, q: torch.Tensor) -> Iterator[torch.Tensor]:
    """Dot products of rows at the stored coordinates, in float64 and in chunks of `CHECKED_ROWS`."""
    counts = matrix.csr.crow_indices().diff().long()
    rows = torch.repeat_interleave(torch.arange(matrix.rows), counts)
    columns = matrix.csr.col_indices().long()
    for start in range(0, max(1, matrix.nnz), CHECKED_ROWS):
        part = slice(start, start + CHECKED_ROWS)
        yield (p[rows[part]].double() * q[columns[part]].double()).sum(1)
