"""Parallel loops over tiles that the edge of a matrix cuts."""

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.evaluate import evaluate_kernel

BLOCKS = "j/4: dense, i: dense, j%4: compressed"


@pytest.mark.parametrize("rest", ["", "; split i io ii 2 tail 1"])
def test_threads_share_no_more_of_a_block_than_the_edge_leaves(rest):
    """11 = 2 blocks of 4 and 3: all coordinates of a block run, stored or not."""
    a, b = (torch.randn(11, 11, generator=torch.Generator().manual_seed(n)) for n in range(2))
    a = a * (a > 0.3)
    found = sparsify.evaluate(
        "Y[i,j] = A[i,j] + B[i,j] * B[j,i]",
        A=sparsify.tensor(a, BLOCKS),
        B=b,
        schedule=f"order jo, i, ji{rest}; parallel ji",
    )
    torch.testing.assert_close(found, a + b * b.t())


@pytest.mark.parametrize("rows", [9, 11])
def test_threads_without_blocks_leave_the_cut_one_to_others(rows):
    """All work is in the last block, at which most of the threads' chunks begin and end."""
    a = torch.zeros(rows, 300)
    a[8:] = torch.randn(rows - 8, 300, generator=torch.Generator().manual_seed(0))
    stored = sparsify.tensor(a, "i/4: dense, j: compressed, i%4: dense")
    x = torch.ones(300, 4)
    schedule = "order io, j, ii, k; unroll ii; parallel io dynamic A"
    with options.override(threads=2, serial_threshold=0):
        found = sparsify.evaluate("Y[i,k] = A[i,j] * X[j,k]", A=stored, X=x, schedule=schedule)
    torch.testing.assert_close(found, a @ x, rtol=1e-5, atol=1e-4)  # sums of 300 in any order


@pytest.mark.parametrize(
    ("form", "cost"),
    [("csr", 4), ("bcsr(16,16)", 1), ("bcsr(8,2)", 2), ("i/8: dense, j: compressed, i%8: dense", 4)],
)
def test_what_a_row_costs_is_counted_in_what_positions_are(form, cost):
    """A row of blocks has blocks: of 16 x 16 one costs more than the end of a row."""
    A = sparsify.tensor(torch.eye(32), form)
    outer = "i" if form == "csr" else "io"
    kernel = evaluate_kernel(
        "y[i] = A[i,j] * x[j]", schedule=f"parallel {outer} dynamic A", A=A, x=torch.ones(32)
    )
    assert f"by A2_pos + {cost} * rows)" in str(kernel.generated[0].stages.loops)


@pytest.mark.parametrize(
    ("scope", "shared", "is_own"),
    [("thread", "i", True), ("memory", "i", False), ("thread", "j in P", False)],
)
def test_copies_that_each_thread_makes_for_itself(scope, shared, is_own):
    """Copies in thread memory are made per thread inside of a parallel loop; other copies before it."""
    A = sparsify.tensor(torch.rand(40, 9, generator=torch.Generator().manual_seed(0)), "csr")
    X = torch.rand(9, 16, generator=torch.Generator().manual_seed(1))
    schedule = f"pack P = X[j, k] at root in {scope}; vector k; parallel {shared}"
    with options.override(threads=2, serial_threshold=0, compiler_flags=("-O0",)):
        kernel = evaluate_kernel("Y[i,k] = A[i,j] * X[j,k]", schedule=schedule, A=A, X=X)
        found = kernel(A, X)
    torch.testing.assert_close(found, A.to_dense() @ X)
    text = str(kernel.generated[0].stages.loops)
    assert ("setup:" in text[: text.index("scratch P")]) == is_own
