"""Sampled products: the schedule in groups of entries, its loops, its results, and its refusals."""

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.pipeline import compile_stages
from sparsify.compiler.plan.plan import Step
from sparsify.compiler.schedule.directives import Schedule
from sparsify.errors import ScheduleError
from sparsify.storage.format import Format

TEXT = "S[i,j] = sum(k, A[i,j] * P[i,k] * Q[j,k])"
GROUPS = (
    "pos j p A; split p po pi 4 tail 2 1; precompute w at po in register; split k ko ki 16 tail 8; "
    "order w: ko, pi, ki; precompute lanes = w over ki in register; unroll pi; vector ki; "
    "parallel i dynamic A; prefetch Q 16"
)
# Sums of at most 70 products of normal numbers in float32.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def operands(rows: int, columns: int, inner: int, density: float, dtype: torch.dtype = torch.float32):
    """A mask with an empty row, and the two dense factors."""
    generator = torch.Generator().manual_seed(rows * columns + inner)
    values = torch.randn(rows, columns, generator=generator, dtype=dtype)
    matrix = torch.where(torch.rand(rows, columns, generator=generator) < density, values, 0)
    matrix[rows // 2] = 0
    factors = (torch.randn(n, inner, generator=generator, dtype=dtype) for n in (rows, columns))
    return matrix, *factors


def stages(schedule: str | None = GROUPS, vector_bytes: int = 32):
    csr = Operand(Format("csr"), "float32", index_dtypes=(("", ""), ("int32", "int32")))
    dense = Operand(Format("dense, dense"), "float32")
    program = declare(parse(TEXT), {"A": csr, "P": dense, "Q": dense})
    return compile_stages(Step(program), schedule and Schedule.parse(schedule), vector_bytes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vector_bytes", [0, 16, 32])
@pytest.mark.parametrize(
    ("rows", "columns", "inner", "density"),
    [(1, 1, 1, 1.0), (20, 30, 24, 0.3), (7, 9, 33, 0.5), (13, 5, 70, 1.0), (6, 40, 16, 0.05), (4, 4, 8, 0.0)],
)
def test_groups_of_entries(rows, columns, inner, density, vector_bytes, threads):
    matrix, P, Q = operands(rows, columns, inner, density)
    with options.override(vector_bytes=vector_bytes, threads=threads, serial_threshold=0):
        S = sparsify.evaluate(TEXT, A=sparsify.tensor(matrix, "csr"), P=P, Q=Q, schedule=GROUPS)
    expected = matrix.double() * (P.double() @ Q.double().T)
    torch.testing.assert_close(S.to_dense(), expected.float(), **CLOSE)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("inner", [1, 8, 19])
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr", "bcsr(2,5)", "bcsr(5,2)"])
def test_chosen_schedules(form, inner, dtype):
    matrix, P, Q = operands(20, 30, inner, 0.3, dtype)
    A = sparsify.tensor(matrix, form)
    product = P.double() @ Q.double().T
    values = sparsify.evaluate(TEXT, A=A, P=P, Q=Q)
    torch.testing.assert_close(values.to_dense().double(), matrix * product, **CLOSE)
    stored = sparsify.evaluate("S[i,j] = where(stored(A[i,j]), sum(k, P[i,k] * Q[j,k]), -inf)", A=A, P=P, Q=Q)
    rows, columns = stored.coordinates()
    assert stored.fill == -torch.inf
    torch.testing.assert_close(stored.values().double(), product[rows, columns], **CLOSE)


def test_a_sampled_product_that_is_summed_is_never_dense():
    matrix, P, Q = operands(20, 30, 8, 0.3)
    A = sparsify.tensor(matrix, "csr")
    y = sparsify.evaluate("y[i] += A[i,j] * sum(k, P[i,k] * Q[j,k])", A=A, P=P, Q=Q)
    torch.testing.assert_close(y, (matrix * (P @ Q.T)).sum(1), **CLOSE)


def test_four_sums_are_reduced_in_one_tree(golden):
    made = stages()
    golden("loops/sddmm.txt", str(made.loops))
    assert "reduce_add_of_4_float32x8" in made.cpp


def test_the_chosen_schedule_is_the_one_written_by_hand():
    assert str(stages(None).schedule) == "order i, j; " + GROUPS


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("pos k p A", "would skip coordinates|not been entered|changes nothing"),
        ("precompute w at k in register", "no loop k|cannot leave"),
        ("order j, i; pos j p A", "entered|opposite loop orders|order the loops"),
        ("pos j p A; split p po pi 4; vector pi", "vector|lanes"),
        ("unroll j", "extent"),
    ],
)
def test_schedules_that_do_not_fit(schedule, message):
    with pytest.raises(ScheduleError, match=message):
        stages(schedule)
