"""Call overhead of tiny operands compared with torch.

In: `small-product`. Out: the microseconds of a call beyond those of torch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

import sparsify
from sparsify.bench.harness import Case, Clock, Contender, measure

# In microseconds, beyond torch.
ASKED = 5.0
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def _matrices(rows: int, stored: int, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One random matrix as a `SparseTensor` and as a sparse torch tensor."""
    draw = torch.Generator().manual_seed(0)
    at = torch.randint(0, rows, (2, stored), generator=draw).unique(dim=1)
    values = torch.randn(at.shape[1], generator=draw)
    theirs = torch.sparse_coo_tensor(at, values, (rows, rows)).coalesce()
    return sparsify.tensor(
        (at, values, (rows, rows)), form
    ), theirs if form == "coo" else theirs.to_sparse_csr()


def _product(rows: int, stored: int, form: str) -> Pair:
    ours, theirs = _matrices(rows, stored, form)
    return lambda: sparsify.einsum("ij,jk->ik", ours, ours), lambda: theirs @ theirs


def _vector(rows: int, stored: int) -> Pair:
    ours, theirs = _matrices(rows, stored, "csr")
    x = torch.ones(rows)
    return lambda: sparsify.einsum("ij,j->i", ours, x), lambda: theirs @ x


def _addition(rows: int, stored: int, form: str) -> Pair:
    ours, theirs = _matrices(rows, stored, form)
    return lambda: ours + ours, lambda: theirs + theirs


PAIRS: Mapping[str, Callable[[], Pair]] = {
    "tiny-product": lambda: _product(10, 30, "csr"),
    "tiny-vector": lambda: _vector(10, 30),
    "empty-product": lambda: _product(1000, 0, "csr"),
    "hypersparse-product": lambda: _product(10**6, 1000, "coo"),
    "hypersparse-sum": lambda: _addition(10**6, 1000, "coo"),
}
ROWS = tuple(PAIRS)


def row(name: str, seconds: float, clock: Clock) -> dict[str, Any]:
    """Row of the table."""
    ours, theirs = PAIRS[name]()
    contenders = [Contender("sparsify", ours, baseline=False), Contender("torch", theirs)]
    case = Case(name, "", "generated", contenders, [])
    times = measure(case, seconds=seconds, clock=clock).times
    beyond = times["sparsify"].median_us - times["torch"].median_us
    return {
        "name": name,
        "kind": "limits",
        "work": case.work,
        "data": case.data,
        "unit": "us",
        "contenders": [found.to_dict() for found in times.values()],
        "targets": [{"label": "beyond torch", "asked": ASKED, "reached": beyond, "met": beyond <= ASKED}],
    }
