"""Call overhead: the time of a call on tiny operands, where arithmetic is negligible.

In: nothing. Out: the microseconds of a call on a matrix of ten rows, without and with gradients, beside torch's.
"""

from typing import Any

import torch

import sparsify
from experiments import graphs
from sparsify.bench.harness import Case, Clock, Contender, measure

# The limits, in microseconds.
ASKED = {"sparsify": 5.0, "sparsify with grad": 10.0}
ROWS = 10


def row(seconds: float, clock: Clock) -> dict[str, Any]:
    """Row of the table."""
    seeded = torch.Generator().manual_seed(0)
    dense = torch.randn(ROWS, ROWS, generator=seeded) * (torch.rand(ROWS, ROWS, generator=seeded) < 0.3)
    x = torch.randn(ROWS, 8, generator=seeded)
    learned = x.clone().requires_grad_()
    theirs = graphs.csr(*_arrays(dense), tuple(dense.shape))
    ours = sparsify.tensor(dense, "csr")
    case = Case(
        "call-overhead",
        f"A {ROWS} rows, K 8",
        "generated",
        [
            Contender("sparsify", lambda: sparsify.einsum("ij,jk->ik", ours, x), baseline=False),
            Contender(
                "sparsify with grad", lambda: sparsify.einsum("ij,jk->ik", ours, learned), baseline=False
            ),
            Contender("torch CSR", lambda: theirs @ x),
            Contender("torch CSR with grad", lambda: theirs @ learned),
        ],
        [],
        lambda: dense.double() @ x.double(),
    )
    times = measure(case, seconds=seconds, clock=clock).times
    return {
        "name": case.name,
        "kind": "limits",
        "work": case.work,
        "data": case.data,
        "unit": "us",
        "contenders": [found.to_dict() for found in times.values()],
        "targets": [
            {
                "label": name,
                "asked": asked,
                "reached": times[name].median_us,
                "met": times[name].median_us <= asked,
            }
            for name, asked in ASKED.items()
        ],
    }


def _arrays(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """pos, crd and values of a dense matrix in CSR."""
    rows, columns = dense.nonzero(as_tuple=True)
    pos = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(rows, minlength=len(dense)).cumsum(0)])
    return pos.int(), columns.int(), dense[rows, columns]
