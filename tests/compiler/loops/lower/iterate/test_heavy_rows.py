"""Heavy rows shared by threads: sums are correct, and rounded equally on any number of threads."""

import re

import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops.nodes import ParallelFor
from sparsify.errors import ScheduleError

WIDTHS = (64, 32, 16, 0)
# Text, and by which of the operands that are sparse threads share rows.
TEXTS = (
    "Y[i,k] = A[i,j] * X[j,k]",
    "y[i] = A[i,j] * x[j]",
    "Y[i,k] = relu(sum(j, A[i,j] * X[j,k]) - b[k])",
    "y[i] = sum(j, A[i,j] * x[j]) / sum(j, A[i,j])",
    "Y[i,k] max= where(stored(A[i,j]), A[i,j] * X[j,k], -inf)",
    "y[i] min= where(stored(A[i,j]), A[i,j], inf)",
    "Y[i,k] = sum(j, A[i,j] * B[i,j] * X[j,k])",
    "Y[i,h,k] = A[i,j] * Z[j,h,k]",
)


def star(rows: int, columns: int, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Two rows with nearly all entries, empty rows, and rows of one entry."""
    drawn = torch.Generator().manual_seed(rows)
    dense = torch.zeros(rows, columns, dtype=dtype)
    dense[torch.arange(0, rows, 3), torch.randint(columns, ((rows + 2) // 3,), generator=drawn)] = 2.0
    for row in (1, rows - 1):
        dense[row] = torch.rand(columns, generator=drawn, dtype=dtype) + 0.5
        dense[row] *= torch.rand(columns, generator=drawn) < 0.9
    return dense


def operands(text: str, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Random operands of a program, `A` and `B` dense."""
    drawn = torch.Generator().manual_seed(7)
    found = {
        "A": star(20, 150, dtype=dtype),
        "B": star(20, 150, dtype=dtype).flip(1),
        "X": torch.randn(150, 37, generator=drawn, dtype=dtype),
        "Z": torch.randn(150, 2, 9, generator=drawn, dtype=dtype),
        "x": torch.randn(150, generator=drawn, dtype=dtype),
        "b": torch.randn(37, generator=drawn, dtype=dtype),
    }
    return {name: value for name, value in found.items() if f"{name}[" in text}


def sparse(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: sparsify.tensor(x, "csr") if name in "AB" else x for name, x in given.items()}


# Where the compiler chooses several kernels, other loops, or no registers as no lanes hold columns.
GIVEN = {
    "/": "precompute w at i in register; precompute w1 at i in register; parallel i dynamic A",
    "Z[": "order i, h, k, j; precompute s = Y at k in register; parallel i dynamic A",
    "relu": "order i, k, j; precompute w at k in register; parallel i dynamic A",
    "X[": "order i, k, j; precompute s = Y at k in register; parallel i dynamic A",
}


def in_hubs(text: str, given: dict[str, torch.Tensor], entries: int) -> str:
    """Chosen schedule for the operands, with rows of more than `entries` entries shared."""
    steps = evaluate_kernel(text, **given).generated
    chosen = str(steps[0].stages.schedule)
    if len(steps) > 1 or "precompute" not in chosen or "Z[" in text:
        chosen = next(schedule for part, schedule in GIVEN.items() if part in text)
    return re.sub(r"(parallel i dynamic A)", rf"\1 hubs {entries}", chosen)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("text", TEXTS)
def test_rows_in_parts_are_right_on_any_number_of_threads(text: str, width: int) -> None:
    dense = operands(text)
    given = sparse(dense)
    with options.override(vector_bytes=width, serial_threshold=0):
        wanted = sparsify.evaluate(text, **given)
        schedule = in_hubs(text, given, 40)
        assert "hubs 40" in schedule
        found = []
        for threads in (1, 2, 3):
            with options.override(vector_bytes=width, serial_threshold=0, threads=threads):
                found.append(sparsify.evaluate(text, **given, schedule=schedule))
        # Sums of 150 in any order; rows without entries have no mean.
        torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [width for width in WIDTHS if width])
def test_sums_of_several_lets_in_one_loop_are_shared(width: int) -> None:
    """A count, a mean and a maximum over the neighbours, whose entries are read once."""
    text = """c[i] += A[i,j]
        s[i,k] += A[i,j] * X[j,k]
        M[i,k] max= where(stored(A[i,j]), X[j,k], -inf)
        Y[i,k] = s[i,k] / max(c[i], 1)
        Z[i,k] = where(c[i] == 0, 0, M[i,k])"""
    given = sparse(operands("A[ X["))
    with options.override(vector_bytes=width, serial_threshold=0):
        wanted = sparsify.evaluate(text, ["Y", "Z"], **given)
        (step,) = evaluate_kernel(text, ["Y", "Z"], **given).generated
        schedule = re.sub(r"(parallel i dynamic A)", r"\1 hubs 40", str(step.stages.schedule))
        assert "hubs 40" in schedule
        (step,) = evaluate_kernel(text, ["Y", "Z"], **given, schedule=schedule).generated
        for name in ("c", "s", "M"):
            assert f"{name}_parts" in step.stages.cpp
        found = []
        for threads in (1, 2, 3):
            with options.override(vector_bytes=width, serial_threshold=0, threads=threads):
                found.append(sparsify.evaluate(text, ["Y", "Z"], **given, schedule=schedule))
    torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-4)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entries", [1, 31, 33, 64, 149, 150, 1000])
def test_rows_that_are_as_long_as_the_limit_are_not_shared(entries: int) -> None:
    """Parts of one entry and of several, the last one cut or whole; rows of exactly the limit."""
    text = "Y[i,k] = A[i,j] * X[j,k]"
    given = operands(text)
    given["A"][5] = 1.0
    matrix = sparse(given)
    schedule = in_hubs(text, matrix, entries)
    with options.override(serial_threshold=0, threads=2):
        found = sparsify.evaluate(text, **matrix, schedule=schedule)
    torch.testing.assert_close(found, given["A"] @ given["X"], rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    text = "Y[i,k] = A[i,j] * X[j,k]" if dtype is not torch.bool else "Y[i,k] |= A[i,j] * X[j,k]"
    given = {name: (x * 3).to(dtype) for name, x in operands("A[ X[").items()}
    matrix = sparse(given)
    wanted = sparsify.evaluate(text, **matrix)
    schedule = in_hubs(text, matrix, 40)
    with options.override(serial_threshold=0, threads=2):
        found = sparsify.evaluate(text, **matrix, schedule=schedule)
    torch.testing.assert_close(found, wanted, rtol=1e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-2)


def test_empty_and_long_matrices() -> None:
    """No rows, no columns; heavy rows at both ends of skipped blocks of rows."""
    text = "Y[i,k] = A[i,j] * X[j,k]"
    schedule = in_hubs(text, sparse(operands(text)), 3)
    for rows, columns, hubs in ((0, 5, ()), (4, 0, ()), (300, 9, (0, 63, 64, 127, 299))):
        dense = torch.zeros(rows, columns)
        for row in hubs:
            dense[row] = torch.arange(columns) + row
        x = torch.randn(columns, 5, generator=torch.Generator().manual_seed(0))
        with options.override(serial_threshold=0, threads=2):
            found = sparsify.evaluate(text, A=sparsify.tensor(dense, "csr"), X=x, schedule=schedule)
        torch.testing.assert_close(found, dense @ x, rtol=1e-4, atol=1e-3)  # numbers of some thousands


def test_parts_are_loops_of_their_own() -> None:
    text = "Y[i,k] = relu(sum(j, A[i,j] * X[j,k]) - b[k])"
    given = sparse(operands(text))
    kernel = evaluate_kernel(text, **given, schedule=in_hubs(text, given, 40))
    (step,) = kernel.generated
    assert len(find(step.stages.loops, ParallelFor)) == 3  # parts of whole tiles and of the last one, rows
    assert "_parts" in step.stages.cpp


@pytest.mark.parametrize(
    ("text", "schedule", "message"),
    [
        ("Y[i,k] = A[i,j] * X[j,k]", "order i, j, k; parallel i dynamic A hubs 4", "in registers"),
        ("Y[k,i] = A[i,j] * X[j,k]", "order k, i, j; parallel k dynamic A hubs 4", "no rows"),
        ("Y[i,k] = A[i,j] * X[j,k]", "order i, j, k; parallel i dynamic hubs 4", "of which rows"),
        ("C[i,k] = A[i,j] * B[j,k]", "order i, j, k; precompute w = C at i in thread listed; "
         "parallel i dynamic A hubs 4", "no rows of a dense result"),
    ],
)  # fmt: skip
def test_refused(text: str, schedule: str, message: str) -> None:
    square = torch.eye(5)
    given = {name: square for name in "ABX" if f"{name}[" in text}
    with pytest.raises(ScheduleError, match=message):
        sparsify.evaluate(text, **sparse(given), schedule=schedule)
