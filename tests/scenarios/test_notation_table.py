"""Every operator and function of the notation once, on dense and sparse operands, by all interpreters and kernels."""

import numpy as np
import pytest
import torch

import sparsify
from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.errors import EinsumError, ParseError, ShapeError
from tests.compiler.random_programs.compare import compile_cases, prepare, run_compiled
from tests.compiler.random_programs.data import Case, fill_operands
from tests.compiler.random_programs.operands import operand

UNARY = (
    "exp",
    "log",
    "log10",
    "sqrt",
    "cbrt",
    "abs",
    "sign",
    "square",
    "reciprocal",
    "sin",
    "cos",
    "tan",
    "asin",
)
UNARY += (
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "relu",
    "sigmoid",
    "gelu",
    "gelu_tanh",
)
UNARY += ("silu", "erf", "logical_not", "round", "floor", "ceil", "trunc")
BINARY = ["min", "max", "atan2", "mod", "heaviside", "logical_and", "logical_or", "logical_xor"]
INFIX = ["+", "-", "*", "/", "**", "==", "!=", "<", "<=", ">", ">="]
STATEMENTS = [
    *(f"Y[i,j] = {name}(A[i,j])" for name in UNARY),
    *(f"Y[i,j] = {name}(A[i,j], B[i,j])" for name in BINARY),
    *(f"Y[i,j] = A[i,j] {symbol} B[i,j]" for symbol in INFIX),
    *(f"y[i] {assign} A[i,j]" for assign in ("+=", "*=", "min=", "max=", "|=", "&=")),
    *(f"y[i] = {monoid}(j, A[i,j])" for monoid in ("sum", "prod", "min", "max", "or", "and")),
    "Y[i,j] = -A[i,j]",
    "Y[i,j] = where(A[i,j] > 0, B[i,j], A[i,j])",
    "Y[i,j] = where(stored(A[i,j]), B[i,j], inf)",
    "Y[i,j] = A[i,j] * (3*i + j)",
    "Y[i,j] = A[i,j] * uniform(-7, i, 3*j)",
    "Y[i,j] = where(uniform(7, j, i) < 0.5, 0, A[i,j])",
    "Y[i,j] = A[i,j] ** 2 + 0.5",
    "y = A[i,i] * B[i,i]",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "forms", [("dense, dense", "dense, dense"), ("csr", "csr"), ("csr", "dense, dense")], ids=str
)
def test_statements(forms, tmp_path):
    done = []
    for seed, text in enumerate(STATEMENTS):
        names = [name for name in "AB" if f"{name}[" in text]
        operands = {name: operand(form) for name, form in zip("AB", forms, strict=True) if name in names}
        case = Case(seed, declare(parse(text), operands), 32, 2)
        fill_operands(case, np.random.default_rng(seed))
        try:
            done.append(prepare(case))
        except Exception as error:
            error.add_note(text)
            raise
    compile_cases(done, tmp_path, ("-O0",))
    for found in done:
        run_compiled(found)


A = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
CALLS = [
    ("Y[i,j] = s * A[i,j] + t", {"s": 2.0, "t": 1}, lambda a: 2 * a + 1),
    ("y[j] = A[i,j] * (i + 1)", {}, lambda a: (a * torch.tensor([[1.0], [2.0]])).sum(0)),
    ("  Y [ i , j ]=A[ i,j ]*2  ", {}, lambda a: a * 2),
    ("T[i,j] = A[i,j] * 2\ny[i] = T[i,j] + 1", {}, lambda a: 2 * a.sum(1) + 1),
]


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("text, scalars, expected", CALLS, ids=[row[0] for row in CALLS])
def test_calls(text, scalars, expected, form):
    value = A if form == "dense" else sparsify.tensor(A, form)
    found = sparsify.evaluate(text, A=value, **scalars)
    found = found.to_dense() if isinstance(found, sparsify.SparseTensor) else found
    torch.testing.assert_close(found, expected(A))


def test_sizes_and_outputs():
    assert sparsify.evaluate("Y[i] = 3 * i", sizes={"i": 4}).tolist() == [0, 3, 6, 9]
    y, z = sparsify.evaluate("y[i] = A[i,j]\nz[j] = A[i,j]", outputs=("y", "z"), A=A)
    assert y.tolist() == [3, 3] and z.tolist() == [1, 3, 2]


@pytest.mark.parametrize(
    "text, keywords, error, match",
    [
        ("y[i] = foo(A[i,j])", {}, EinsumError, "foo is not a function"),
        ("y[i] = C[i]", {}, EinsumError, "C has no value here"),
        ("y[i] = A[i]", {}, ShapeError, "1 indices and A has 2 modes"),
        ("y[i] = A[i,j]", {"outputs": "z"}, EinsumError, "z is never assigned"),
        ("y[i] = A[i,j]", {"sizes": {"i": 5}}, ShapeError, "i has extent 5 in sizes and 2 in A"),
        ("y[i] = A[i,j]", {"sizes": {"q": 5}}, EinsumError, "sizes= names q"),
        ("y[i] = A[i,j]", {"B": A}, EinsumError, "B is given and not read"),
        ("y[i] = A[i,j] +", {}, ParseError, "found the end of the statement"),
    ],
)
def test_names_that_nothing_has(text, keywords, error, match):
    with pytest.raises(error, match=match):
        sparsify.evaluate(text, A=A, **keywords)
