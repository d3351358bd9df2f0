"""Kernels over bitmap levels: in vector lanes, entry by entry, and read as lists in other programs."""

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.errors import ScheduleError
from sparsify.options import override
from tests.compiler.random_programs.compare import compile_cases, prepare, run_compiled
from tests.compiler.random_programs.data import Case, array_of, dense_of

PANELS = "i: dense, j/64: dense, j%64: bitmap"
LAYER = "Y[t,n] = relu(sum(k, X[t,k] * W[n,k]) + b[n])"
# Columns of whole panels, of a panel that is cut within a vector, and of less than a byte; rows; bytes of vectors.
CASES = ((128, 1, 32), (85, 1, 64), (85, 1, 32), (5, 1, 16), (85, 1, 0), (85, 3, 32), (128, 3, 0))
# The same with dtypes of W, which are converted on the way to their lanes.
NARROW = (
    *((128, 1, 32, torch.bfloat16), (85, 1, 32, torch.float16), (85, 1, 32, torch.int8)),
    *((85, 1, 64, torch.bfloat16), (128, 1, 64, torch.int8), (85, 1, 16, torch.bfloat16)),
)


def given(
    rows: int,
    columns: int,
    format: str,
    dtype: torch.dtype = torch.float32,
    stored: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Operands of a layer with small integers; the last rows of W are full and empty."""
    seeded = torch.Generator().manual_seed(columns)
    W = torch.randint(1, 5, (7, columns), generator=seeded) * (torch.rand(7, columns, generator=seeded) < 0.5)
    W[-2], W[-1] = 3, 0
    X = torch.randint(-4, 5, (rows, columns), generator=seeded)
    b = torch.randint(-4, 5, (7,), generator=seeded)
    return {"X": X.to(dtype), "W": sparsify.tensor(W.to(stored or dtype), format), "b": b.to(dtype)}


def case(number: int, vector_bytes: int, threads: int, operands: dict[str, torch.Tensor]) -> Case:
    """A case of the layer."""
    made = Case(number, evaluate_kernel(LAYER, **operands).program, vector_bytes, threads)
    for name, operand in operands.items():
        if isinstance(operand, sparsify.SparseTensor):
            made.tensors[name] = operand
            made.values[name], made.stored[name] = dense_of(operand)
        else:
            made.values[name] = array_of(operand)
            made.stored[name] = made.values[name] == made.values[name]
    return made


@pytest.mark.sampled(3)
def test_right_at_every_width(tmp_path):
    cases = []
    for number, (columns, rows, width) in enumerate(CASES):
        dtype = torch.float64 if width == 16 else torch.float32
        prepared = prepare(case(number, width, 1 + number % 2, given(rows, columns, PANELS, dtype)))
        assert any("lowest_bit" in stages.cpp or "expand" in stages.cpp for _, stages in prepared.plan)
        cases.append(prepared)
    compile_cases(cases, tmp_path, ("-O0",))
    for prepared in cases:
        run_compiled(prepared)


@pytest.mark.sampled(3)
def test_narrow_entries_are_right_at_every_width(tmp_path):
    cases = []
    for number, (columns, rows, width, stored) in enumerate(NARROW):
        operands = given(rows, columns, PANELS, stored=stored)
        prepared = prepare(case(number, width, 1 + number % 2, operands))
        name = str(stored).removeprefix("torch.")
        is_wide = any(f"expand_{name}_float32x8" in stages.cpp for _, stages in prepared.plan)
        assert is_wide == (width >= 32)
        cases.append(prepared)
    compile_cases(cases, tmp_path, ("-O0",))
    for prepared in cases:
        run_compiled(prepared)


@pytest.mark.parametrize("width", [32, 0])
def test_what_is_not_stored_is_not_multiplied(width):
    operands = given(1, 128, PANELS)
    operands["X"][0, 70] = torch.inf
    operands["W"] = sparsify.tensor(torch.eye(7, 128), PANELS)
    with override(vector_bytes=width):
        Y = sparsify.evaluate(LAYER, **operands)
    assert torch.equal(Y, torch.relu(operands["X"][:, :7] + operands["b"]))


def test_lanes_take_one_row_and_words_several():
    assert "vector ki" in str(sparsify.explain(LAYER, **given(1, 128, PANELS)))
    text = str(sparsify.explain(LAYER, **given(9, 128, PANELS)))
    assert "lowest_bit" in text
    assert "expand" not in text


@pytest.mark.parametrize("format", [PANELS, "dense, bitmap", "bitmap, compressed"])
def test_other_programs_read_lists(format):
    A, B = (given(1, 85, format)["W"] for _ in range(2))
    dense = A.to_dense()
    with override(compiler_flags=("-O0",)):
        assert torch.equal((A + B).to_dense(), 2 * dense)
        assert torch.equal(sparsify.einsum("ij,kj->ik", A, B).to_dense(), dense @ dense.T)
        assert torch.equal(sparsify.einsum("ij,i->j", A, torch.ones(7)), dense.sum(0))
        S = sparsify.evaluate("S[i,j] = A[i,j] * D[i,j]", A=A, D=dense, format=format)
    assert str(S.format) == format
    assert torch.equal(S.to_dense(), dense * dense)


def test_gradients():
    operands = given(2, 70, PANELS, torch.float64)
    X, W = operands["X"].requires_grad_(), operands["W"]
    values = W.values().clone().requires_grad_()
    weight = sparsify.SparseTensor(W.pattern, values, 0)
    sparsify.einsum("tk,nk->tn", X, weight).square().sum().backward()
    dense = W.to_dense().requires_grad_()
    plain = X.detach().clone().requires_grad_()
    (plain @ dense.T).square().sum().backward()
    assert torch.equal(X.grad, plain.grad)
    rows, columns = W.coordinates()
    assert torch.equal(values.grad, dense.grad[rows, columns])


@pytest.mark.parametrize("format", ["i: dense, j: bitmap", "i: coordinate, j: bitmap", "bitmap, bitmap"])
def test_bits_of_whole_rows(format):
    """A bitmap of a whole row has no list of coordinates, so loops over its positions are refused."""
    for rows in (1, 3):
        operands = given(rows, 85, format)
        expected = torch.relu(operands["X"] @ operands["W"].to_dense().T + operands["b"])
        with override(compiler_flags=("-O0",)):
            assert torch.equal(sparsify.evaluate(LAYER, **operands), expected)
            with pytest.raises(ScheduleError, match="whose coordinates are bits, not a list; a loop over"):
                evaluate_kernel(LAYER, schedule="pos k p W; order t, n, p", **operands)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [64, 16, 0])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int8], ids=str)
def test_rows_times_bits_with_values_of_bool(dtype, width):
    operands = given(1, 85, PANELS)
    W, X = operands["W"].to_dense() > 2, (operands["X"] > 0).to(dtype)
    with override(vector_bytes=width, compiler_flags=("-O0",)):
        Y = sparsify.einsum("tk,nk->tn", X, sparsify.tensor(W, PANELS))
    assert torch.equal(Y, (X.float() @ W.float().T).to(dtype))
