"""Kernels over sliced levels: rows in vector lanes with lookups of X in registers, and one row after the other."""

import re
import shutil

import pytest
import torch

import sparsify
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.errors import ScheduleError
from sparsify.options import override
from tests.compiler.random_programs.compare import compile_cases, prepare, run_compiled
from tests.scenarios.test_bits import LAYER, case

FORM = "i/{rows}: dense, j/{columns}: dense, i%{rows}: dense, j%{columns}: sliced({rows}, crd=int8)"
WIDE = FORM.format(rows=16, columns=64)
NARROW = FORM.format(rows=4, columns=8)
# Outputs and columns of whole tiles, of cut ones, of one entry, of none; rows; format; bytes of vectors; dtypes.
FLOATS, DOUBLES = (torch.float32, torch.float32), (torch.float64, torch.float64)
CASES = (
    *((16, 64, 1, WIDE, 64, FLOATS), (18, 70, 1, WIDE, 64, FLOATS), (18, 70, 3, WIDE, 32, FLOATS)),
    *((18, 70, 1, WIDE, 16, FLOATS), (18, 70, 1, WIDE, 0, FLOATS), (1, 1, 1, WIDE, 64, FLOATS)),
    *((9, 21, 2, NARROW, 16, FLOATS), (8, 24, 1, NARROW, 32, FLOATS), (9, 21, 1, NARROW, 0, FLOATS)),
    *((18, 70, 1, WIDE, 64, DOUBLES), (18, 70, 1, WIDE, 32, DOUBLES), (0, 64, 1, WIDE, 64, FLOATS)),
    *(
        (18, 70, 1, WIDE, 64, (torch.float32, torch.bfloat16)),
        (16, 64, 1, WIDE, 64, (torch.float32, torch.int8)),
    ),
    *(
        (18, 70, 1, WIDE, 32, (torch.float32, torch.int8)),
        (18, 70, 2, WIDE, 32, (torch.float32, torch.float16)),
    ),
)


def weight(
    outputs: int, columns: int, density: float = 0.3, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Small integers; the second row is empty, and so are whole slices if there are several."""
    seeded = torch.Generator().manual_seed(columns)
    W = torch.randint(1, 5, (outputs, columns), generator=seeded)
    W *= torch.rand(outputs, columns, generator=seeded) < density
    W[1:2], W[16:32, :64] = 0, 0
    return W.to(dtype)


def given(
    outputs: int,
    columns: int,
    rows: int,
    format: str,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
    density: float = 0.3,
) -> dict[str, torch.Tensor]:
    """Operands of a layer, small integers."""
    seeded = torch.Generator().manual_seed(rows)
    X = torch.randint(-4, 5, (rows, columns), generator=seeded).to(dtypes[0])
    b = torch.randint(-4, 5, (outputs,), generator=seeded).to(dtypes[0])
    return {"X": X, "W": sparsify.tensor(weight(outputs, columns, density, dtypes[1]), format), "b": b}


@pytest.mark.sampled(3)
def test_right_at_every_width(tmp_path):
    cases = []
    for number, (outputs, columns, rows, format, width, dtypes) in enumerate(CASES):
        operands = given(outputs, columns, rows, format, dtypes, density=0.1)
        cases.append(prepare(case(number, width, 1 + number % 2, operands)))
    for compiler in filter(shutil.which, ("g++", "clang++")):
        folder = tmp_path / compiler
        folder.mkdir()
        compile_cases(cases, folder, ("-O0",), compiler)
        for prepared in cases:
            run_compiled(prepared)


@pytest.mark.parametrize("density", [0.0, 0.05, 1.0])
def test_empty_and_full_weights(density):
    operands = given(37, 150, 2, WIDE, density=density)
    dense = operands["W"].to_dense()
    expected = torch.relu(operands["X"] @ dense.T + operands["b"])
    for width in (64, 32, 0):
        with override(vector_bytes=width, compiler_flags=("-O0",)):
            assert torch.equal(sparsify.evaluate(LAYER, **operands), expected)


LISTS, COLUMNS = "i: dense, j: compressed", "j: dense, i: compressed"


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("format", "stored"),
    [
        (format, stored)
        for format in (WIDE, LISTS, COLUMNS, "i: dense, j/64: dense, j%64: bitmap")
        for stored in (torch.float32, torch.bool)
    ],
)
def test_rows_of_bool_are_neither_tables_nor_turned_as_masks(format, stored):
    W = weight(37, 150, dtype=stored)
    packed = sparsify.tensor(W, format)
    for rows, width in ((1, 64), (2, 16), (20, 64)):
        X = torch.rand(rows, 150, generator=torch.Generator().manual_seed(rows)) < 0.1
        with override(vector_bytes=width, compiler_flags=("-O0",)):
            Y = sparsify.einsum("tk,nk->tn", X, packed)
        assert torch.equal(Y, (X.float() @ W.float().T).to(Y.dtype))


def test_lanes_look_up_what_lies_in_registers():
    for width, helper in ((64, "lookup_4_float32x16"), (32, "lookup_8_float32x8")):
        with override(vector_bytes=width):
            kernel = evaluate_kernel(LAYER, **given(37, 150, 1, WIDE))
        (generated,) = kernel.generated
        assert helper in generated.stages.cpp
        assert not re.search(r"int64x\d+ ki", generated.stages.cpp)  # read where they lie, not in a variable
        assert "step 16" in str(generated.stages.loops)
    with override(vector_bytes=16):  # sixteen vectors of four columns are no table
        (generated,) = evaluate_kernel(LAYER, **given(37, 150, 1, WIDE)).generated
    assert "lookup" not in generated.stages.cpp


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rows", "columns"), [(21, 150), (70, 150), (9, 2**16 + 1)])
def test_many_rows_of_x_are_tiles_that_are_turned(rows, columns):
    """X is transposed in tiles if a tile of all columns fits the near cache; otherwise rows are computed one by one."""
    operands = given(37, columns, rows, WIDE, density=0.01)
    expected = torch.relu(operands["X"] @ operands["W"].to_dense().T + operands["b"])
    for width in (64, 0):
        with override(vector_bytes=width, compiler_flags=("-O0",)):
            assert torch.equal(sparsify.evaluate(LAYER, **operands), expected)
            kernel = evaluate_kernel(LAYER, **operands)
        (generated,) = kernel.generated
        assert ("turned_X" in str(generated.stages.schedule)) == (columns == 150)


@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_are_shared_by_threads(threads):
    operands = given(300, 130, 1, WIDE)
    with override(threads=threads, serial_threshold=0):
        Y = sparsify.evaluate(LAYER, **operands)
    assert torch.equal(Y, torch.relu(operands["X"] @ operands["W"].to_dense().T + operands["b"]))


def test_padding_reads_columns_of_the_tensor_alone():
    """Memory behind the last column of X is not read, though lookup tables have room for more."""
    operands = given(5, 70, 1, WIDE)
    whole = torch.full((1, 200), torch.nan)
    whole[:, :70] = operands["X"]
    operands["X"] = whole[:, :70]
    for width in (64, 32, 0):
        with override(vector_bytes=width, compiler_flags=("-O0",)):
            assert sparsify.evaluate(LAYER, **operands).isfinite().all()


@pytest.mark.parametrize(
    "format", [NARROW, "i/4: dense, i%4: dense, j: sliced(4)", "i/4: compressed, i%4: dense, j: sliced(2)"]
)
def test_other_programs_read_lists(format):
    dense = weight(9, 21)
    A, B = (sparsify.tensor(dense, format) for _ in range(2))
    with override(compiler_flags=("-O0",)):
        assert torch.equal((A + B).to_dense(), 2 * dense)
        assert torch.equal(sparsify.einsum("ij,kj->ik", A, B).to_dense(), dense @ dense.T)
        assert torch.equal(sparsify.einsum("ij,i->j", A, torch.ones(9)), dense.sum(0))
        assert torch.equal(sparsify.einsum("ij,j->i", A, torch.ones(21)), dense.sum(1))
        assert torch.equal(A @ torch.ones(21, 3), dense @ torch.ones(21, 3))
        S = sparsify.evaluate("S[i,j] = A[i,j] * D[i,j]", A=A, D=dense, format=format)
    assert str(S.format) == format
    assert torch.equal(S.to_dense(), dense * dense)


def test_gradients():
    operands = given(9, 21, 2, NARROW, DOUBLES)
    X, W = operands["X"].requires_grad_(), operands["W"]
    values = W.values().clone().requires_grad_()
    sparsify.einsum("tk,nk->tn", X, sparsify.SparseTensor(W.pattern, values, 0)).square().sum().backward()
    dense = W.to_dense().requires_grad_()
    plain = X.detach().clone().requires_grad_()
    (plain @ dense.T).square().sum().backward()
    assert torch.equal(X.grad, plain.grad)
    inside = W.pattern.inside()
    rows, columns = W.pattern.coordinates()[:, inside]
    assert torch.equal(values.grad[inside], dense.grad[rows, columns])


UNPACKED = "order t, no, ko, ni, ki; precompute sums = Y at no in register; vector ni in sums; vector ni in Y"


@pytest.mark.parametrize(
    ("schedule", "message"),
    [(UNPACKED, "pack it at ko in register"), ("pos ki p W; order t, no, ko, ni, p", "take turns")],
)
def test_refused_schedules(schedule, message):
    operands = given(9, 70, 1, WIDE)
    with override(vector_bytes=64), pytest.raises(ScheduleError, match=message):
        evaluate_kernel("Y[t,n] = X[t,k] * W[n,k]", schedule=schedule, X=operands["X"], W=operands["W"])


def test_a_table_has_a_bound():
    format = (
        FORM.format(rows=16, columns=128)
        .replace("j/128", "j/4096")
        .replace("j%128", "j%4096")
        .replace(", crd=int8", "")
    )
    operands = {"X": torch.ones(1, 4096), "W": sparsify.tensor(torch.eye(16, 4096), format)}
    schedule = (
        "order t, no, ko, ni, ki; precompute sums = Y at no in register; pack table_X = X[ki] at ko in register; "
        "vector ni in sums; vector ni in Y; vector ki in table_X"
    )
    with override(vector_bytes=64):
        with pytest.raises(ScheduleError, match="a table of 256 vectors"):
            evaluate_kernel("Y[t,n] = X[t,k] * W[n,k]", schedule=schedule, **operands)
        assert torch.equal(sparsify.evaluate("Y[t,n] = X[t,k] * W[n,k]", **operands), torch.ones(1, 16))
