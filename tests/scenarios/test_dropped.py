"""Results stored by value: entries equal to the fill are not stored, with and without vectors, rows and threads."""

import numpy as np
import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.nodes import Selection
from sparsify.compiler.loops.nodes import AllocateOutput, Compress, Declare, Literal, Type
from sparsify.errors import ScheduleError
from tests.compiler.cpp.running import compare
from tests.compiler.loops.build import kernel, lit, var

RELU = "Y[i,k] = relu(sum(j, X[i,j] * W[k,j]))"


def random(*shape, density=1.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw) * (torch.rand(shape, generator=draw) < density)


def check(found, want):
    """Checks the values, the absence of stored fills, and the validity of the pattern."""
    torch.testing.assert_close(found.to_dense(), want, equal_nan=True)
    assert found.nnz == int((want != found.fill).sum())
    pattern = found.pattern
    sparsify.Pattern(pattern.format, tuple(pattern.shape), pattern.pos, pattern.crd).validated()


@pytest.mark.parametrize("vector_bytes", [0, 32, 64])
@pytest.mark.parametrize("numbers", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_rows_are_compressed(dtype, numbers, vector_bytes):
    """The statement by itself, kernel against interpreter: counted, then written up to the end."""
    zero = Literal(0, Type(dtype))
    rest = ("A", lit(2), var("n"), lit(5), zero)
    function = kernel(
        "n",
        f"A:{dtype} *Y:{numbers} *Z:{dtype}",
        Declare(var("count"), lit(0), True),
        Declare(var("next"), lit(0), True),
        Compress(var("count"), None, "Z", *rest, lit(0)),
        AllocateOutput("Y", numbers, var("count")),
        AllocateOutput("Z", dtype, var("count")),
        Compress(var("next"), "Y", "Z", *rest, var("count")),
        vector_bytes=vector_bytes,
    )
    draw = np.random.default_rng(0)
    for count in (1, 15, 16, 17, 100):
        for density in (0.0, 0.3, 1.0):
            row = draw.integers(1, 9, count + 2) * (draw.random(count + 2) < density)
            left = compare(function, {"n": count}, {"A": row.astype(dtype)})
            if not row[2:].any():  # no memory is asked for
                continue
            assert left["Y"].tolist() == (5 + np.flatnonzero(row[2:])).tolist()
            assert left["Z"].tolist() == row[2:][row[2:] != 0].tolist()


@pytest.mark.parametrize(
    "selection", [Selection(2, 4), Selection(40), Selection(3, 0, is_signed=True)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16"])
def test_largest_entries_of_rows(dtype, selection):
    """The statement by itself, kernel against interpreter: counted, then written up to the end."""
    row = "float32" if dtype == "float16" else dtype
    rest = ("A", lit(2), var("n"), lit(5), Literal(0, Type(dtype)))
    function = kernel(
        "n",
        f"A:{row} *Y:int32 *Z:{dtype}",
        Declare(var("count"), lit(0), True),
        Declare(var("next"), lit(0), True),
        Compress(var("count"), None, "Z", *rest, lit(0), selection),
        AllocateOutput("Y", "int32", var("count")),
        AllocateOutput("Z", dtype, var("count")),
        Compress(var("next"), "Y", "Z", *rest, var("count"), selection),
    )
    draw = np.random.default_rng(0)
    for count in (1, 15, 34, 100):
        numbers = draw.integers(-4, 4, count + 2) * (draw.random(count + 2) < 0.9)
        if row.startswith("float"):
            numbers = numbers * 300.25
        left = compare(function, {"n": count}, {"A": numbers.astype(row)})
        size = selection.size or count
        assert len(left["Y"]) == sum(min(selection.kept, size, count - at) for at in range(0, count, size))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("vector_bytes", [0, 64])
@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
def test_entries_of_dense_operands(dtype, format, vector_bytes):
    with options.override(vector_bytes=vector_bytes, threads=2, serial_threshold=0):
        for n, k in ((7, 5), (33, 70), (1, 40), (5, 1), (3, 0), (0, 4)):
            T = (random(n, k, density=0.7, seed=n) * 3).to(dtype)
            T[2:3], T[1:2] = 0, 1
            check(sparsify.evaluate("Y[i,k] = relu(T[i,k])", T=T, format=format), T.relu())
        check(sparsify.evaluate("Y[i,k] = T[i,k]", T=T, format=format), T)


@pytest.mark.parametrize("format", ["csf", "coo", "dense, dense, compressed"])
def test_three_modes_and_values_that_are_not_numbers(format):
    T = random(4, 5, 6, density=0.5)
    T[0, 0, 0] = torch.nan
    check(sparsify.evaluate("Y[i,j,k] = relu(T[i,j,k])", T=T, format=format), T.relu())


@pytest.mark.parametrize("threads", [1, 3])
def test_a_product_and_its_gradients(threads):
    X, W = (random(*shape, seed=1).double().requires_grad_() for shape in ((90, 5), (70, 5)))
    R = random(90, 70, seed=2).double()
    with options.override(threads=threads, serial_threshold=0):
        for _ in range(2):
            found = sparsify.evaluate(RELU, X=X, W=W, format="csr")
            want = (X @ W.T).relu()
            check(found, want)
            have = torch.autograd.grad((found.to_dense() * R).sum(), (X, W))
            torch.testing.assert_close(have, torch.autograd.grad((want * R).sum(), (X, W)))


def test_values_decide_in_each_call():
    for seed in range(4):
        T = random(5, 60, seed=seed)
        check(sparsify.evaluate("Y[i,k] = relu(T[i,k])", T=T, format="csr"), T.relu())


@pytest.mark.parametrize("settings", [{}, {"compiler": "/nonexistent/c++"}], ids=["kernel", "reference"])
@pytest.mark.filterwarnings("ignore:.*torch's operators compute:RuntimeWarning")
@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_patterns_of_operands_are_thinned_by_value(format, settings):
    """Without `by value`, the pattern is that of the operands, independent of values."""
    a, b = random(30, 20, density=0.3), random(20, 25, density=0.3, seed=1)
    A, B = sparsify.tensor(a, "csr"), sparsify.tensor(b, "csr")
    kept = "Y[i,k] = where(abs(A[i,k]) > 0.5, A[i,k], 0)"
    product = "Y[i,k] = where(abs(sum(j, A[i,j] * B[j,k])) > 0.5, sum(j, A[i,j] * B[j,k]), 0)"
    with options.override(**settings):
        assert sparsify.evaluate(kept, A=A).nnz == A.nnz
        check(sparsify.evaluate(kept, A=A, format=f"{format} by value"), torch.where(a.abs() > 0.5, a, 0))
        found = sparsify.evaluate(product, A=A, B=B, format=f"{format} by value")
        check(found, torch.where((a @ b).abs() > 0.5, a @ b, 0))
        found = sparsify.einsum("ij,ij->ij", A, sparsify.tensor(a - 1, "csr"), format=f"{format} by value")
        check(found, a * (a - 1))
        check(sparsify.evaluate("Y[i,k] = relu(T[i,k])", T=b - 0.1, format=format), (b - 0.1).relu())


def test_a_temporary_by_value_and_its_gradient():
    a = random(30, 20, density=0.3).double()
    A = sparsify.tensor(a, "csr")
    values = A.values().clone().requires_grad_()
    text = "T[i,k] = where(abs(A[i,k]) > 0.5, square(A[i,k]), 0)\nY[i,k] = T[i,k] * 2"
    found = sparsify.evaluate(text, A=A.with_values(values), format={"T": "csr by value"})
    check(found, torch.where(a.abs() > 0.5, 2 * a.square(), 0))
    (have,) = torch.autograd.grad(found.values().sum(), values)
    torch.testing.assert_close(have, torch.where(values.abs() > 0.5, 4 * values, 0))


def test_large_results_are_counted_first(monkeypatch):
    monkeypatch.setattr("sparsify.compiler.loops.lower.assemble.dropped.MOST_ROOM", 100)
    T = random(40, 90, seed=9)
    with options.override(threads=2, serial_threshold=0):
        check(sparsify.evaluate("Y[i,k] = relu(T[i,k] - 0.5)", T=T, format="csr"), (T - 0.5).relu())


def test_one_kernel_with_a_schedule():
    X, W = random(20, 30), random(40, 30, seed=1)
    schedule = "order w: i, k, j; precompute w at i in thread; parallel i static"
    found = sparsify.evaluate(RELU, X=X, W=W, format="csr", schedule=schedule)
    torch.testing.assert_close(found.to_dense(), (X @ W.T).relu(), rtol=1e-4, atol=1e-4)
    assert not (found.values() == 0).any()
    marked = "order w: i, j, k; precompute w at i in thread marked"
    with pytest.raises(ScheduleError, match="values decide"):
        sparsify.evaluate(RELU, X=X, W=W, format="csr", schedule=marked)
