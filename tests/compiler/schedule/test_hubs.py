"""Which rows are shared by threads, by how long they are, and what is said of it."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.schedule.hubs import hub_entries
from sparsify.compiler.schedule.sizes import Sizes, sizes_of

NODES = 20_000
SPMM = "Y[i,k] = A[i,j] * X[j,k]"


def matrix(hub: int, format: str = "csr") -> sparsify.SparseTensor:
    """One entry a row, and `hub` more in row 7."""
    nodes = torch.arange(NODES)
    rows = torch.cat([nodes, torch.full((hub,), 7)])
    columns = torch.cat([nodes.flip(0), torch.arange(hub)])
    ones = torch.ones(len(rows))
    return sparsify.tensor(
        torch.sparse_coo_tensor(torch.stack([rows, columns]), ones, (NODES, NODES)), format
    )


def schedule_of(A: sparsify.SparseTensor, columns: int) -> str:
    (step,) = evaluate_kernel(SPMM, A=A, X=torch.empty(NODES, columns)).generated
    step.prepare(sizes_of(step.program, (A, torch.empty(NODES, columns))))
    return str(step.stages.schedule)


def test_rows_longer_than_a_share_are_split() -> None:
    star, even = matrix(15_000), matrix(6_000)
    assert "parallel i dynamic A hubs 8192" in schedule_of(star, 128)
    assert "hubs" not in schedule_of(even, 128)
    assert "hubs" not in schedule_of(star, 1)  # too little to do
    assert "hubs 8192" in schedule_of(star, 128)  # the shapes were met before


@pytest.mark.parametrize(
    ("longest", "stored", "columns", "entries"),
    [
        (500_000, 1_000_000, 128, 16_384),
        (500_000, 1_000_000, 32, 32_768),
        (500_000, 1_000_000, 1, 131_072),
        (100_000, 1_000_000, 1, 0),
        (10_000, 1_000_000, 128, 0),
        (500_000, 100_000_000, 128, 0),
        (None, 1_000_000, 128, 0),
    ],
)
def test_limits(longest: int | None, stored: int, columns: int, entries: int) -> None:
    (step,) = evaluate_kernel(SPMM, A=matrix(0), X=torch.empty(NODES, columns)).generated
    rows = {} if longest is None else {"A": longest}
    assert hub_entries(step.program, "A", Sizes({"k": columns}, {"A": stored}, rows=rows)) == entries


def test_columns_that_are_read_as_rows() -> None:
    """The gradient of X goes through the columns of A, of which one is long."""
    stored = matrix(15_000)
    A = sparsify.tensor((stored.coordinates().flip(0), torch.ones(NODES + 15_000), (NODES, NODES)), "csr")
    assert (A.pattern.longest(0), A.pattern.longest(1)) == (2, 15_001)
    X = torch.ones(NODES, 128, requires_grad=True)
    kernel = evaluate_kernel(SPMM, A=A, X=X)
    kernel(A, X).sum().backward()
    assert X.grad is not None and X.grad[7].eq(15_001).all()
    (step,) = kernel.adjoint(("X",)).generated
    assert "hubs 8192" in str(step.stages.schedule)


def test_the_reason_is_said() -> None:
    star = matrix(15_000)
    text = str(sparsify.explain(SPMM, A=star, X=torch.empty(NODES, 128)))
    assert (
        "A: the longest row has 15,001 of 35,000 entries; all threads share each row of more than 8,192"
        in text
    )


def test_strips_are_not_shared_and_the_explanation_says_so() -> None:
    """Scores of a row, of which an entry depends on all others, stay with one thread."""
    text = """S[i,j] = A[i,j] * f[j]
        m[i] max= where(stored(A[i,j]), S[i,j], -inf)
        P[i,j] = exp(S[i,j] - m[i]) * stored(A[i,j])
        d[i] = P[i,j]
        Y[i,k] = sum(j, P[i,j] * X[j,k]) / d[i]"""
    given = {"A": matrix(15_000), "f": torch.ones(NODES), "X": torch.empty(NODES, 128)}
    assert "refused" in str(sparsify.explain(text, **given))
