"""Sparse matrix products, sums, and products with a vector.

In: `product("pubmed", place)`. Out: a `Case` of A times A against torch's product (MKL) and scipy's.
"""

import torch

import sparsify
from experiments import graphs
from experiments.graphs import Matrix
from sparsify.bench.harness import Case, Contender, Target
from sparsify.bench.place import Place
from sparsify.compiler.kernel.pattern_cache import KNOWN
from sparsify.runtime.buffers import POOL

UNIFORM_ROWS, UNIFORM_A_ROW = 20_000, 20
# Share of the rows of the 100,000-row mesh of `graphs`.
FEM_SHARE = 0.3


def matrix(name: str, place: Place, seed: int = 0) -> Matrix:
    """A graph's adjacency, the mesh with 30,000 rows, or a matrix with uniformly random coordinates."""
    if name == "fem":
        return graphs.matrix(name, place.root, FEM_SHARE * place.scale)
    if name != "uniform":
        return graphs.matrix(name, place.root, place.scale)
    rows = max(50, int(UNIFORM_ROWS * place.scale))
    draw = torch.Generator().manual_seed(seed)
    columns = torch.randint(0, rows, (rows * UNIFORM_A_ROW,), generator=draw)
    at = torch.stack([torch.arange(rows).repeat_interleave(UNIFORM_A_ROW), columns]).unique(dim=1)
    pos = torch.cat([torch.zeros(1, dtype=torch.int64), at[0].bincount(minlength=rows).cumsum(0)])
    values = torch.randn(at.shape[1], generator=draw)
    return Matrix(
        name, "generated, entries anywhere", graphs.csr(pos.int(), at[1].int(), values, (rows, rows))
    )


def product(name: str, place: Place, *, pooled: float, known: float) -> Case:
    """`C[i,k] = A[i,j] * A[j,k]` into sorted CSR; for a known pattern only values are computed."""
    found = matrix(name, place)
    wide, theirs = graphs.widened(found.csr), graphs.scipy_of(found.csr)
    case = Case(f"spgemm-{name}", f"A {found}", found.source, [], [], lambda: _expected(found))
    sparse = case.prepare("to SparseTensor", lambda: sparsify.tensor(found.csr))

    def ours() -> torch.Tensor:
        return sparsify.einsum("ij,jk->ik", sparse, sparse)

    def forget() -> None:
        POOL.clear()
        KNOWN.clear()

    case.prepare("first call", ours)
    case.contenders += [
        Contender("sparsify", ours, baseline=False, before=KNOWN.clear),
        Contender("sparsify fresh", ours, baseline=False, before=forget),
        Contender("sparsify known pattern", ours, baseline=False),
        # Neither library sorts the columns of a row.
        Contender("torch CSR", lambda: wide @ wide, is_checked=False),
        Contender("scipy", lambda: theirs @ theirs, is_checked=False),
    ]
    baselines = ("torch CSR", "scipy")
    case.targets += [
        Target("sparsify", baselines, pooled, "pooled"),
        Target("sparsify fresh", baselines, 1.0, "fresh"),
        Target("sparsify known pattern", baselines, known, "known pattern"),
    ]
    return case


def _expected(found: Matrix) -> torch.Tensor:
    """Values of A times A in float64, columns sorted."""
    plain = graphs.scipy_of(found.csr.double())
    result = plain @ plain
    result.sort_indices()
    return torch.from_numpy(result.data)


def addition(name: str, place: Place, *, asked: float) -> Case:
    """`A + B` with B on the pattern of A, and with B on another pattern (A reversed or transposed)."""
    found = matrix(name, place)
    plain = graphs.scipy_of(found.csr)
    other = plain.T.tocsr() if name == "uniform" else (plain[::-1, ::-1]).tocsr()
    other.sort_indices()
    narrow = graphs.csr(
        torch.from_numpy(other.indptr).int(),
        torch.from_numpy(other.indices).int(),
        torch.from_numpy(other.data.copy()),
        other.shape,
    )
    case = Case(f"add-{name}", f"A {found}", found.source, [], [])
    A, B = case.prepare("to SparseTensor", lambda: (sparsify.tensor(found.csr), sparsify.tensor(narrow)))
    same = A.with_values(A.values() * 2)
    twice = graphs.widened(found.csr * 2)
    wide, wide_other, plain_twice = graphs.widened(found.csr), graphs.widened(narrow), plain * 2
    case.prepare("first call", lambda: (A + B, A + same))
    case.contenders += [
        Contender("sparsify", lambda: A + B, baseline=False),
        Contender("torch CSR", lambda: wide + wide_other),
        Contender("scipy", lambda: plain + other),
        Contender("sparsify, equal patterns", lambda: A + same, baseline=False),
        Contender("torch CSR, equal patterns", lambda: wide + twice),
        Contender("scipy, equal patterns", lambda: plain + plain_twice),
    ]
    case.targets += [
        Target("sparsify", ("torch CSR", "scipy"), asked, "other pattern"),
        Target(
            "sparsify, equal patterns",
            ("torch CSR, equal patterns", "scipy, equal patterns"),
            asked,
            "equal patterns",
        ),
    ]
    return case


def vector(name: str, place: Place, *, asked: float) -> Case:
    """`y[i] = A[i,j] * x[j]`."""
    found = matrix(name, place)
    x = torch.randn(found.rows, generator=torch.Generator().manual_seed(0))
    narrow, wide, plain = found.csr, graphs.widened(found.csr), graphs.scipy_of(found.csr)
    expected = graphs.scipy_of(found.csr.double())
    case = Case(
        f"spmv-{name}",
        f"A {found}",
        found.source,
        [],
        [],
        lambda: torch.from_numpy(expected @ x.double().numpy()),
    )
    sparse = case.prepare("to SparseTensor", lambda: sparsify.tensor(narrow))
    case.prepare("first call", lambda: sparsify.einsum("ij,j->i", sparse, x))
    case.contenders += [
        Contender("sparsify", lambda: sparsify.einsum("ij,j->i", sparse, x), baseline=False),
        Contender("torch CSR int32", lambda: narrow @ x),
        Contender("torch CSR int64", lambda: wide @ x),
        Contender("scipy", lambda: plain @ x.numpy()),
    ]
    case.targets.append(
        Target("sparsify", tuple(c.name for c in case.contenders if c.baseline), asked, "pooled")
    )
    return case
