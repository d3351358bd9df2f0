"""Formats, fills, patterns and dtypes of results."""

import pytest

from sparsify.compiler.einsum.declare import declare
from sparsify.compiler.einsum.text.parse import parse
from sparsify.errors import EinsumError
from sparsify.storage.format import Format
from tests.compiler.einsum.programs import COO, CSC, CSR, CUBE, DCSR, MATRIX, VECTOR, operand, program

MINUS_INF = operand("csr", fill=-float("inf"))
ROWS = operand("dense, dense, compressed")
CSF = operand("csf")
SAME = operand("csr", pattern_of="A")


@pytest.mark.parametrize(
    ("text", "operands", "format", "fill", "pattern_of"),
    [
        ("y[i] = A[i,j] * x[j]", {"A": CSR, "x": VECTOR}, "dense", 0, None),
        ("y[i] = A[i,j] * x[j]", {"A": DCSR, "x": VECTOR}, "dense", 0, None),
        ("Y[i,k] = A[i,j] * X[j,k]", {"A": CSR, "X": MATRIX}, "dense, dense", 0, None),
        ("Y[i,k] = A[i,j] * X[j,k]", {"A": COO, "X": MATRIX}, "dense, dense", 0, None),
        ("Y[i,k] = A[i,j] * X[j,k]", {"A": CSC, "X": MATRIX}, "dense, dense", 0, None),
        (
            "Y[i,r] = T[i,j,k] * B[j,r] * C[k,r]",
            {"T": CSF, "B": MATRIX, "C": MATRIX},
            "dense, dense",
            0,
            None,
        ),
        ("Y[i,j,r] = T[i,j,k] * B[k,r]", {"T": ROWS, "B": MATRIX}, "dense, dense, dense", 0, None),
        ("Y[i,j,r] = T[i,j,k] * B[k,r]", {"T": CSF, "B": MATRIX}, "csf", 0, None),
        ("S[i,j] = A[i,j] * sum(k, Q[i,k] * K[j,k])", {"A": CSR, "Q": MATRIX, "K": MATRIX}, "csr", 0, "A"),
        ("S[i,j] = A[i,j] * sum(k, Q[i,k] * K[j,k])", {"A": COO, "Q": MATRIX, "K": MATRIX}, "coo", 0, "A"),
        ("B[i,j] = A[i,j] * x[i]", {"A": CSC, "x": VECTOR}, "csc", 0, "A"),
        ("B[i,j] = 2 * relu(A[i,j])", {"A": CSR}, "csr", 0, "A"),
        ("B[i,j] = exp(A[i,j])", {"A": CSR}, "csr", 1, "A"),
        ("B[i,j] = exp(A[i,j] - x[i])", {"A": MINUS_INF, "x": VECTOR}, "csr", 0, "A"),
        ("C[i,j] = A[i,k] * B[k,j]", {"A": CSR, "B": CSR}, "csr", 0, None),
        ("C[i,j] = A[i,k] * B[k,j]", {"A": CSC, "B": CSC}, "csc", 0, None),
        ("C[i,j] = A[i,k] * B[k,j]", {"A": CSR, "B": CSC}, "csr", 0, None),
        ("C[i,j] = A[i,k] * B[j,k]", {"A": CSR, "B": CSR}, "csr", 0, None),
        ("C[i,j] = A[i,j] + B[i,j]", {"A": CSR, "B": CSC}, "csr", 0, None),
        ("C[i,j] = A[i,k] * B[j,k]", {"A": CSR, "B": MATRIX}, "dense, dense", 0, None),
        ("C[i,j] = A[i,j] + B[i,j]", {"A": CSR, "B": CSR}, "csr", 0, None),
        ("C[i,j] = A[i,j] + B[i,j]", {"A": CSR, "B": SAME}, "csr", 0, "A"),
        ("C[i,j] = A[i,j] + B[i,j]", {"A": CSR, "B": MATRIX}, "dense, dense", 0, None),
        ("C[i,j] = A[i,j] * B[i,j]", {"A": CSR, "B": DCSR}, "dcsr", 0, None),
        ("C[i,j] = A[i,j] + x[i]", {"A": CSR, "x": VECTOR}, "dense, dense", 0, None),
        ("B[j,i] = A[i,j]", {"A": CSR}, "csc", 0, None),
        ("s[i] = A[i,j]", {"A": CSR}, "dense", 0, None),
        ("S[i,j] = where(stored(M[i,j]), x[j], -inf)", {"M": CSR, "x": VECTOR}, "csr", -float("inf"), "M"),
        ("y[i] = A[i,j] + 1", {"A": CSR}, "dense", 0, None),
        ("D[i,j,k] = T[i,j,k] * X[i,j,k]", {"T": CSF, "X": CUBE}, "csf", 0, "T"),
    ],
)
def test_results(text, operands, format, fill, pattern_of):
    prog = program(text, **operands)
    declared = prog.declaration(prog.outputs[0])
    assert declared.format == Format(format)
    assert (declared.fill, declared.pattern_of) == (fill, pattern_of)


@pytest.mark.parametrize(
    ("text", "form", "extent", "format", "fill"),
    [
        ("Y[i,j] = max(m, A[i,j] * x[m])", CSR, 0, "dense, dense", 0),
        ("Y[i,j] = max(m, A[i,j] * x[m])", CSR, 2, "csr", 0),
        ("Y[i,j] max= A[i,j] * x[m]", CSR, 0, "dense, dense", 0),
        ("Y[i,j] = sum(m, A[i,j] + x[m])", MINUS_INF, 0, "csr", 0),
        ("Y[i,j] = exp(sum(m, A[i,j] + x[m]))", MINUS_INF, 0, "csr", 1),
        ("Y[i,j] = sum(m, A[i,j] + x[m])", MINUS_INF, 2, "csr", -float("inf")),
    ],
)
def test_over_nothing_a_reduction_is_its_identity(text, form, extent, format, fill):
    made = declare(parse(text), {"A": form, "x": VECTOR}, shapes={"A": (2, 3), "x": (extent,)})
    declared = made.declaration("Y")
    assert (declared.format, declared.fill) == (Format(format), fill)


def test_fills_of_truth_values():
    prog = program("t[i,j] &= exp(A[i,j])", A=MINUS_INF)
    assert prog.declaration("t").fill is False
    prog = program("t[i,j] &= exp(A[i,j])", A=operand("csr", fill=float("inf")))
    assert prog.declaration("t").fill is True


def test_formats_are_fixed_by_the_caller():
    statements = parse("T[i,j] = A[i,j] + B[i,j]\nY[i,j] = 2 * T[i,j]")
    fixed = declare(statements, {"A": CSR, "B": CSR}, ("Y",), formats={"T": Format("dense, dense")})
    assert fixed.declaration("Y").format.is_dense
    with pytest.raises(EinsumError, match="format= names A, which is not a result"):
        declare(statements, {"A": CSR, "B": CSR}, ("Y",), formats={"A": Format("csr")})


def test_index_dtypes_follow_the_operands():
    narrow = operand("csr", index_dtypes=(("", ""), ("int32", "int32")))
    prog = program("C[i,j] = A[i,k] * B[k,j]", A=narrow, B=narrow)
    assert prog.declaration("C").index_dtypes == (("", ""), ("int32", "int32"))
    wide = operand("csr", index_dtypes=(("", ""), ("int64", "int64")))
    prog = program("C[i,j] = A[i,k] * B[k,j]", A=narrow, B=wide)
    assert prog.declaration("C").index_dtypes == (("", ""), ("int64", "int64"))


@pytest.mark.parametrize(
    ("text", "dtypes", "result"),
    [
        ("y[i] = x[i] + z[i]", ("float32", "float64"), "float64"),
        ("y[i] = x[i] * 2.5", ("float32",), "float32"),
        ("y[i] = x[i] * 2.5", ("int32",), "float32"),
        ("y[i] = x[i] * 2", ("int8",), "int8"),
        ("y[i] = x[i] / z[i]", ("int64", "int64"), "float32"),
        ("y[i] = exp(x[i])", ("int32",), "float32"),
        ("y[i] = x[i] < z[i]", ("float32", "float32"), "bool"),
        ("y = x[i]", ("int32",), "int64"),
        ("y = x[i] * z[i]", ("bool", "bool"), "bool"),
        ("y = sum(i, x[i] > 0)", ("float32",), "int64"),
        ("y[i] = where(x[i] > 0, x[i], 0)", ("bfloat16",), "bfloat16"),
        ("y[i] = x[i] * z[i]", ("float16", "bfloat16"), "float32"),
        ("y[i] = x[i] * z[i]", ("complex64", "float64"), "complex128"),
    ],
)
def test_dtypes(text, dtypes, result):
    names = [name for name in "xz" if f"{name}[" in text]
    operands = {name: operand("dense", dtype) for name, dtype in zip(names, dtypes, strict=True)}
    assert program(text, **operands).declaration("y").dtype == result
