"""Errors of invalid programs, in the user's own names."""

import pytest

from sparsify.compiler.einsum.infer.extents import bind_extents
from sparsify.compiler.einsum.text.parse import parse
from sparsify.compiler.einsum.verify import verify_statements
from sparsify.errors import EinsumError, ShapeError

from .programs import CSR, VECTOR, program

RANKS = {"A": 2, "B": 2, "x": 1, "s": 0}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("y[i] = A[i,j,k] * x[j] * x[k]", ShapeError, r"A\[i,j,k\] has 3 indices and A has 2 modes"),
        ("y[i] = C[i,j] * x[j]", EinsumError, "C has no value here"),
        ("y[i] = sigmoyd(x[i])", EinsumError, "sigmoyd is not a function; did you mean sigmoid"),
        ("y[i] = exp(x[i], 2)", EinsumError, "exp takes 1 arguments, 2 were given"),
        ("x[i] = 2 * A[i,i]", EinsumError, "x is an input"),
        ("y[2*i] = x[i]", EinsumError, r"the index 2 \* i on the left is not a plain index"),
        ("y[i,i] = x[i]", EinsumError, "i occurs twice on the left"),
        ("y[i] = x[i]\ny[i] = 2 * x[i]", EinsumError, "y is assigned before"),
        ("y[i] += x[i]\ny[i] max= x[i]", EinsumError, "y is reduced by sum before"),
        ("y[i] += y[i]", EinsumError, "reads what it assigns"),
        ("y[i] += x[i]\nz[i] = y[i]\ny[i] += x[i]", EinsumError, "y is read before"),
        ("y[i] = x[i*i]", EinsumError, "is not affine"),
        ("y[i] = sum(i, x[i])", EinsumError, "i is bound twice"),
        ("y[i] = x[i]\nz[i] = y[i,j]", ShapeError, "y has 1 modes"),
        ("y[i] = x[i]\nz[i] = w[i]", EinsumError, "w has no value here"),
    ],
)
def test_mistakes(text, error, message):
    with pytest.raises(error, match=message):
        verify_statements(parse(text), RANKS)


def test_outputs_are_assigned():
    with pytest.raises(EinsumError, match="the output z is never assigned; assigned are y"):
        verify_statements(parse("y[i] = x[i]"), RANKS, ("z",))


def test_good_programs_pass():
    verify_statements(parse("y[i] = A[i,j]*x[j]\ny[i] += B[i,j] * s\nz = y[i] * x[i]"), RANKS, ("z",))


@pytest.mark.parametrize(
    ("text", "shapes", "error", "message"),
    [
        (
            "y[i] = A[i,j] * x[j]",
            {"A": (2, 3), "x": (4,)},
            ShapeError,
            r"j has extent 3 in A\[i,j\] and 4 in x\[j\]",
        ),
        ("y[i] = A[i,5]", {"A": (2, 3)}, ShapeError, "index 5 is outside mode 1"),
        ("y[i] = A[i,-1]", {"A": (2, 3)}, ShapeError, "index -1 is outside mode 1"),
        ("y[h] = x[2*h]", {"x": (3,)}, EinsumError, r"pass sizes=\{'h': ...\}"),
        ("y[i] = A[i,i]", {"A": (2, 3)}, ShapeError, "i has extent 2"),
        ("y[i] = x[i,j]", {"x": (3,)}, ShapeError, "2 indices and x has 1 modes"),
    ],
)
def test_shapes(text, shapes, error, message):
    with pytest.raises(error, match=message):
        bind_extents(parse(text), shapes)


def test_extents_come_from_inputs_results_and_sizes():
    statements = parse("y[h] = x[2*h+r] * w[r]\nz[k] = 2 * y[k]")
    assert bind_extents(statements, {"x": (9,), "w": (2,)}, {"h": 4}) == {"h": 4, "r": 2, "k": 4}


def test_declared_extents_name_the_index_variables():
    prog = program("y[i] = A[i,j] * x[j]", A=CSR, x=VECTOR)
    assert prog.declaration("A").extents == ("i", "j")
    assert program("B[i,k] = A[i,j] * A[j,k]", A=CSR).declaration("A").extents == ("i", "i")
