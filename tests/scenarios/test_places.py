"""Indices of extrema, `argmax(j, X[i,j])`, against dense tensors: formats, fills, ties, NaN, small extents."""

import numpy as np
import pytest
import torch

import sparsify
from sparsify import options
from sparsify.compiler.einsum.interpret import interpret
from sparsify.compiler.evaluate import evaluate_kernel
from sparsify.compiler.reference import evaluate_program
from sparsify.errors import DtypeError, EinsumError

# Built quickly: asked for right results only.
QUICK = {"serial_threshold": 0}
FORMATS = ("dense", "csr", "csc", "coo", "dcsr", "bcsr(2,2)", "ell")
SHAPES = ((9, 40), (40, 9), (1, 1), (5, 1), (1, 5), (0, 3), (33, 17))
BOTH = {"argmax": torch.argmax, "argmin": torch.argmin}


def values(*shape: int, dtype: torch.dtype = torch.float32, fill: float = 0, seed: int = 0) -> torch.Tensor:
    """Few distinct values, so that ties occur; rows around, above and below the fill, full and empty rows, and NaN."""
    made = torch.Generator().manual_seed(seed)
    kind = torch.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)) % 5
    found = torch.randint(1, 4, shape, generator=made)
    found = torch.where(kind == 1, found, torch.where(kind == 2, -found, found - 2)).to(dtype)
    if dtype.is_floating_point:
        found = torch.where(torch.rand(shape, generator=made) < 0.03, torch.nan, found)
    share = torch.where(kind == 3, 1.0, torch.where(kind == 4, 0.0, 0.6))
    return torch.where(torch.rand(shape, generator=made) < share, found, torch.tensor(fill).to(dtype))


def stored(dense: torch.Tensor, form: str, fill: float = 0) -> torch.Tensor:
    return dense if form == "dense" else sparsify.tensor(dense, form, fill=fill)


def check(text: str, expected: torch.Tensor, **given: torch.Tensor) -> None:
    """Compares results of the kernel, of torch's operators and of the interpreter."""
    with options.override(**QUICK):
        found = sparsify.evaluate(text, **given)
        program = evaluate_kernel(text, **given).program
    assert found.dtype == torch.int64
    assert torch.equal(found, expected), f"{text}: {found} is not {expected}"
    assert torch.equal(evaluate_program(program, given)[0], expected)
    inputs = {name: entries(given[name]) for name in program.inputs}
    assert interpret(program, inputs)[program.outputs[0]][0].tolist() == expected.tolist()


def entries(operand: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """All entries of a tensor, and the mask of stored ones."""
    mask = torch.ones(operand.shape, dtype=torch.bool)
    if not isinstance(operand, sparsify.SparseTensor):
        return operand.double().numpy(), mask.numpy()
    places = operand.coordinates()
    inside = (places < torch.tensor(operand.shape)[:, None]).all(0)
    mask = (~mask).index_put(tuple(places[:, inside]), torch.tensor(True))
    return operand.to_dense().double().numpy(), mask.numpy()


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("form", "shape"),
    [(form, shape) for form in FORMATS for shape in (SHAPES if form in ("dense", "csr") else SHAPES[-2:])],
    ids=str,
)
def test_places_in_rows_and_columns(form, shape):
    X = values(*shape, seed=shape[0])
    for name, place in BOTH.items():
        check(f"I[i] = {name}(j, X[i,j])", place(X, 1), X=stored(X, form))
        if shape[0]:
            check(f"I[j] = {name}(i, X[i,j])", place(X, 0), X=stored(X, form))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool], ids=str
)
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_places_in_all_dtypes(form, dtype):
    X = values(21, 37, dtype=dtype)
    for name, place in BOTH.items():
        check(
            f"I[i] = {name}(j, X[i,j])",
            place(X.to(torch.int8) if dtype == torch.bool else X, 1),
            X=stored(X, form),
        )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("fill", [-1.0, 2.0, torch.inf, -torch.inf, torch.nan], ids=str)
@pytest.mark.parametrize("form", ["csr", "csc", "bcsr(2,2)"])
def test_entries_that_are_not_stored_have_the_fill(form, fill):
    X = values(25, 30, fill=fill)
    for name, place in BOTH.items():
        check(f"I[i] = {name}(j, X[i,j])", place(X, 1), X=stored(X, form, fill))


@pytest.mark.sampled(3)
def test_places_along_any_mode():
    X = values(5, 6, 7)
    for form in ("dense", "csf", "dense, compressed, compressed"):
        given = {"X": X if form == "dense" else sparsify.tensor(X, form)}
        check("I[i,k] = argmax(j, X[i,j,k])", X.argmax(1), **given)
        check("I[i,j] = argmin(k, X[i,j,k])", X.argmin(2), **given)


@pytest.mark.sampled(2)
def test_places_of_expressions_and_in_expressions():
    """Compared values are computed once: recomputation with fused multiply-add could differ in the last place."""
    made = torch.Generator().manual_seed(0)
    A, x = torch.rand(70, 33, generator=made), torch.rand(33, generator=made)
    A[A < 0.5] = 0
    with options.override(serial_threshold=0):
        for operand in (A, sparsify.tensor(A, "csr")):
            found = sparsify.evaluate("I[i] = argmax(j, A[i,j] * x[j])", A=operand, x=x)
            assert torch.equal(found, (A * x).argmax(1))
            found = sparsify.evaluate("I[i] = argmax(j, A[i,j] * x[j] + x[j])", A=operand, x=x)
            entries = sparsify.evaluate("T[i,j] = A[i,j] * x[j] + x[j]", A=operand, x=x)
            assert torch.equal(found, entries.argmax(1))
            found = sparsify.evaluate(
                "H[i,k] = where(argmax(j, A[i,j]) == k, 1.0, 0.0) * x[k]", A=operand, x=x
            )
            assert torch.equal(found, torch.nn.functional.one_hot(A.argmax(1), 33) * x)
    total = sparsify.evaluate("s = sum(i, argmax(j, A[i,j]))", A=sparsify.tensor(A, "csr"))
    assert total == A.argmax(1).sum()


def test_the_extremum_is_computed_once():
    X = values(6, 7)
    kernel = evaluate_kernel("b[i] = max(k, X[i,k])\nI[r] = argmax(c, X[r,c])", outputs=("b", "I"), X=X)
    assert len(kernel.program.statements) == 2


def test_places_have_no_gradient():
    X = values(6, 7).nan_to_num().requires_grad_()
    text = "y[i] = sum(j, where(argmax(k, X[i,k]) == j, X[i,j], 0))"
    (found,) = torch.autograd.grad(sparsify.evaluate(text, X=X).sum(), X)
    (expected,) = torch.autograd.grad(X.max(1).values.sum(), X)
    assert torch.equal(found, expected)


def test_many_rows_cost_no_more_than_stored_entries():
    """A scan of all coordinates would take minutes."""
    n = 300_000
    rows, columns = torch.arange(n), torch.arange(n).flip(0)
    X = sparsify.tensor(torch.sparse_coo_tensor(torch.stack([rows, columns]), -torch.ones(n), (n, n)), "csr")
    assert torch.equal(sparsify.evaluate("I[i] = argmax(j, X[i,j])", X=X), (columns == 0).long())
    assert torch.equal(sparsify.evaluate("I[i] = argmin(j, X[i,j])", X=X), columns)


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("I = argmax(i, j, X[i,j])", EinsumError, "it takes one index variable that its body has"),
        ("I[i] = argmin(k, X[i,i])", EinsumError, "it takes one index variable that its body has"),
        ("I[i] = argmax(j, X[i,j] * z)", DtypeError, "complex numbers"),
    ],
)
def test_what_has_no_place(text, error, match):
    given = {"z": 1j} if "z" in text else {}
    with pytest.raises(error, match=match):
        sparsify.evaluate(text, X=torch.ones(3, 3), **given)
