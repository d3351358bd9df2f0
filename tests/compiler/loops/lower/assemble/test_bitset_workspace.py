"""Marked workspaces: marks in every order and number, the three phases, and refusals."""

import numpy as np
import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.loops.bitset import marks_bytes
from sparsify.compiler.loops.nodes import Allocate, AllocateOutput, Declare, Mark, TakeMarks
from sparsify.compiler.schedule.directives import Schedule
from sparsify.errors import ScheduleError
from tests.compiler.cpp.running import compare
from tests.compiler.loops.build import kernel, lit, load, loop, var

MARKED = "order i, j, k; precompute row_Y = Y at i in thread marked; prefetch B 2; parallel i dynamic A"


@pytest.mark.parametrize("extent", [1, 63, 64, 255, 4096, 4097, 9000])
def test_marks_come_out_in_order(extent):
    """Numbers are marked, counted, marked again and taken; nothing is left for a second round."""
    again = [
        loop("p", lit(0), var("n"), Mark("marks", load("A", var("p"), var("p").type), var("extent"))),
    ]
    function = kernel(
        "n extent",
        "A:int64 *Y:int32",
        Allocate("marks", "int8", marks_bytes(var("extent")), 0),
        Declare(var("count"), lit(0), True),
        Declare(var("next"), lit(0), True),
        *again,
        TakeMarks(var("count"), None, "marks", var("extent"), lit(0)),
        AllocateOutput("Y", "int32", var("count")),
        *again,
        TakeMarks(var("next"), "Y", "marks", var("extent"), var("count")),
        TakeMarks(var("next"), "Y", "marks", var("extent"), var("count")),
    )
    draw = np.random.default_rng(extent)
    numbers = np.concatenate([draw.integers(0, extent, size=extent // 3), [0, extent - 1]])
    left = compare(function, {"n": len(numbers), "extent": extent}, {"A": numbers})
    assert left["Y"].tolist() == sorted(set(numbers.tolist()))


def random(rows, columns, seed, density=0.1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=draw) * (torch.rand(rows, columns, generator=draw) < density)


@pytest.mark.parametrize("density", [0.0, 0.03, 1.0])
@pytest.mark.parametrize("shape", [(40, 300, 50), (1, 1, 1), (3, 5, 0), (0, 5, 3)], ids=str)
def test_products_are_right_and_sorted(shape, density):
    rows, inner, columns = shape
    a, b = random(rows, inner, 0, density), random(inner, columns, 1, density)
    A, B = sparsify.tensor(a, "csr"), sparsify.tensor(b, "csr")
    for _ in range(2):
        found = sparsify.einsum("ij,jk->ik", A, B, schedule=MARKED)
        torch.testing.assert_close(found.to_dense(), a @ b, rtol=1e-4, atol=1e-4)  # sums of 300 in any order
        sparsify.tensor(found.to_torch())  # refuses what is not sorted or stored twice


@pytest.mark.parametrize("form", ["csr", "coo", "dcsr"])
def test_threads_begin_where_their_first_row_does(form):
    """The row number of a thread's first stored row differs from its position: two of three rows are empty."""
    a, b = random(90, 40, 0, 0.4), random(40, 50, 1, 0.3)
    a[1::3] = a[2::3] = 0
    with options.override(threads=2, serial_threshold=0):
        for _ in range(2):
            A, B = sparsify.tensor(a, form), sparsify.tensor(b, "csr")
            found = sparsify.einsum("ij,jk->ik", A, B, format="csr")
            torch.testing.assert_close(found.to_dense(), a @ b)
            sparsify.tensor(found.to_torch())


def test_a_function_of_a_product():
    a, b = random(30, 40, 0), random(40, 50, 1)
    A, B = sparsify.tensor(a, "csr"), sparsify.tensor(b, "csr")
    for _ in range(2):
        found = sparsify.evaluate("Y[i,k] = relu(sum(j, A[i,j] * B[j,k]))", A=A, B=B, format="csr")
        torch.testing.assert_close(found.to_dense(), (a @ b).relu())


def test_a_minimum_over_paths():
    distance = torch.where(random(30, 30, 2) != 0, random(30, 30, 3, 1.0).abs(), torch.inf)
    D = sparsify.tensor(distance, "csr", fill=torch.inf)
    for _ in range(2):
        found = sparsify.evaluate("Y[i,k] = min(j, D[i,j] + E[j,k])", D=D, E=D, format="csr")
        torch.testing.assert_close(found.to_dense(), (distance[:, :, None] + distance[None]).amin(1))


def test_the_text_of_a_marked_workspace_is_read_back():
    assert str(Schedule.parse(MARKED)).replace("\n", "; ") == MARKED
    with pytest.raises(ScheduleError, match="registers have no list"):
        Schedule.parse("precompute w at i in register marked")


def test_results_without_rows_are_refused():
    A = sparsify.tensor(random(5, 5, 0), "csr")
    with pytest.raises(ScheduleError, match="no rows that are assembled apart"):
        sparsify.einsum("ij,jk->ik", A, A, format="dcsr", schedule=MARKED.split("; parallel")[0])


def test_rows_repeat_those_before_them():
    """Groups of rows with equal columns, empty rows among them, and rows of equal length with other columns."""
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]])
    a = (random(6, 4, 0, 1.0) * mask).repeat(40, 1)
    b = random(4, 90, 1, 0.3)
    A, B = sparsify.tensor(a, "csr"), sparsify.tensor(b, "csr")
    for schedule in (MARKED, MARKED.split("; parallel")[0]):
        found = sparsify.einsum("ij,jk->ik", A, B, schedule=schedule)
        torch.testing.assert_close(found.to_dense(), a @ b)
        assert found.pattern.nnz == int(((a != 0).float() @ (b != 0).float()).count_nonzero())


def test_rows_that_a_diagonal_decides_are_not_repeated():
    """`A[i,i]` is stored for some rows only, whose other columns are equal."""
    a = torch.eye(6) * torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    a[:, 5] = 1
    b = random(4, 90, 1, 0.3)
    A, B = sparsify.tensor(a, "csr"), sparsify.tensor(b, "csr")
    found = sparsify.evaluate("Y[i,k] = sum(j, A[i,i] * B[j,k])", A=A, B=B, format="csr")
    torch.testing.assert_close(found.to_dense(), a.diagonal()[:, None] * b.sum(0))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [30, 700])  # of which few are filled at once, and many are counted before
def test_rows_that_repeat_columns_are_marked_once(rows, threads):
    """Groups of rows with equal columns in the right operand; the left one has all, some or one of a group."""
    inner = 300
    a = random(rows, inner, 0, 0.4)
    a[1::4] = (a[1::4].reshape(-1, inner // 3, 3) * torch.tensor([1.0, 0.0, 1.0])).reshape(-1, inner)
    mask = (random(inner // 3, 400, 1, 0.3) != 0).repeat_interleave(3, 0)
    mask[4], mask[8], mask[9] = False, False, mask[7]
    b = random(inner, 400, 2, 1.0) * mask
    A, B = sparsify.tensor(a, "csr"), sparsify.tensor(b, "csr")
    with options.override(threads=threads, serial_threshold=0):
        found = sparsify.einsum("ij,jk->ik", A, B, schedule=MARKED)
    torch.testing.assert_close(found.to_dense(), a @ b, rtol=1e-4, atol=1e-4)
    sparsify.tensor(found.to_torch())
    assert found.pattern.nnz == int(((a != 0).float() @ (b != 0).float() > 0).sum())


def test_a_mask_decides_which_rows_are_marked():
    """Three operands: the row before may not have been visited, and every row is marked."""
    a, d = random(20, 30, 0, 0.5), random(20, 30, 3, 0.5)
    b = random(30, 60, 2, 1.0) * (random(10, 60, 1, 0.3) != 0).repeat_interleave(3, 0)
    operands = {name: sparsify.tensor(x, "csr") for name, x in (("A", a), ("B", b), ("D", d))}
    text = "Y[i,k] = sum(j, A[i,j] * D[i,j] * B[j,k])"
    found = sparsify.evaluate(text, **operands, format="csr", schedule=MARKED)
    torch.testing.assert_close(found.to_dense(), (a * d) @ b)
