"""User-registered functions and monoids."""

import numpy as np
import pytest

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.interpret import interpret
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.register import expand_functions, register_function, register_monoid
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.errors import EinsumError, ParseError
from tests.compiler.einsum.gradient.test_adjoint import check

from .programs import MATRIX, VECTOR, program, random_inputs


@pytest.fixture(autouse=True)
def forget():
    """Removes the registrations of a test."""
    functions, monoids = dict(FUNCTIONS), dict(MONOIDS)
    yield
    for table, before in ((FUNCTIONS, functions), (MONOIDS, monoids)):
        for name in set(table) - set(before):
            del table[name]


def test_a_function_is_its_body():
    register_function("huber", "where(abs(v) < 1, v*v/2, abs(v) - 0.5)", args=("v",))
    assert str(expand_functions(parse_expression("2 * huber(a + b)"))) == (
        "2 * where(abs(a + b) < 1, (a + b) * (a + b) / 2, abs(a + b) - 0.5)"
    )
    prog = program("y[i] = huber(x[i])", x=VECTOR)
    x = np.array([0.5, -3, 2])
    np.testing.assert_allclose(interpret(prog, {"x": x})["y"][0], [0.125, 2.5, 1.5])
    check(prog, ("x",), random_inputs(prog, 1))


def test_functions_of_functions_and_swapped_arguments():
    register_function("less", "y - x", args=("x", "y"))
    register_function("twice", "less(0, less(v, 0) * 2)", args=("v",))
    assert FUNCTIONS["less"].evaluate(1.0, 3.0) == 2
    assert FUNCTIONS["twice"].evaluate(1.5) == -3


def test_a_monoid_reduces_and_assigns():
    register_monoid("longest", "where(abs(x) < abs(y), y, x)", 0)
    prog = program("m[i] longest= A[i,j]\nn = longest(i, j, A[i,j])", A=MATRIX)
    a = np.array([[1.0, -4, 2], [0.5, 3, -1]])
    results = interpret(prog, {"A": a})
    np.testing.assert_array_equal(results["m"][0], [-4, 3])
    assert results["n"][0] == -4


@pytest.mark.parametrize(
    ("name", "body", "args", "error", "message"),
    [
        ("exp", "x", ("x",), EinsumError, "is taken"),
        ("2x", "x", ("x",), EinsumError, "not a name"),
        ("f", "x + w", ("x",), EinsumError, "f reads w"),
        ("f", "nope(x)", ("x",), EinsumError, "f calls nope"),
        ("f", "sum(k, x)", ("x",), EinsumError, "arguments, numbers and calls alone"),
        ("f", "x +", ("x",), ParseError, "expected"),
        ("f", "x", (), EinsumError, "0 arguments"),
    ],
)
def test_mistakes(name, body, args, error, message):
    with pytest.raises(error, match=message):
        register_function(name, body, args)


def test_an_identity_is_neutral():
    with pytest.raises(EinsumError, match="1 is not neutral in plus"):
        register_monoid("plus", "add", 1)
    with pytest.raises(EinsumError, match="exp takes 1 arguments"):
        register_monoid("one", "exp", 0)


def test_arguments_of_a_monoid_have_any_names():
    either = register_monoid("either", "a + b - a*b", 0.0)
    assert FUNCTIONS[either.combine].evaluate(np.float64(3), np.float64(4)) == -5
    with pytest.raises(EinsumError, match="three_combine reads a"):
        register_monoid("three", "a + b + c", 0)
