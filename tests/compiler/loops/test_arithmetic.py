"""Index arithmetic: constants fold, and the constant of a sum goes last."""

import pytest

from sparsify.compiler.loops import arithmetic as a
from sparsify.compiler.loops.nodes import BOOL, INT, Convert, Literal, Op, Type
from tests.compiler.loops.build import var

X, Y = var("x"), var("y")
ZERO, ONE, TWO, SIX = (a.integer(n) for n in (0, 1, 2, 6))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (a.plus(TWO, SIX), "8"),
        (a.plus(ZERO, X), "x"),
        (a.plus(a.plus(X, ONE), TWO), "x + 3"),
        (a.plus(a.plus(X, ONE), Y), "x + y + 1"),
        (a.plus(X, Y), "x + y"),  # unchanged
        (a.minus(SIX, TWO), "4"),
        (a.minus(X, X), "0"),
        (a.minus(a.plus(X, ONE), X), "1"),
        (a.minus(X, a.integer(-1)), "x + 1"),
        (a.minus(X, Y), "x - y"),
        (a.times(TWO, X), "x * 2"),
        (a.times(X, ONE), "x"),
        (a.times(ZERO, X), "0"),
        (a.quotient(SIX, a.integer(4)), "1"),
        (a.quotient(X, ONE), "x"),
        (a.quotient(X, TWO), "x // 2"),
        (a.remainder(SIX, a.integer(4)), "2"),
        (a.remainder(X, ONE), "0"),
        (a.smaller(SIX, TWO), "2"),
        (a.larger(SIX, TWO), "6"),
        (a.smaller(X, X), "x"),
        (a.larger(X, Y), "max(x, y)"),
        (a.product([TWO, X, SIX]), "x * 2 * 6"),
        (a.product([]), "1"),
    ],
    ids=str,
)
def test_folding(result, text):
    assert str(result) == text


def test_comparisons():
    assert a.compare("lt", X, Y) == Op("lt", (X, Y), BOOL)
    assert str(a.both(a.compare("lt", X, Y), a.compare("ge", X, ZERO))) == "x < y and x >= 0"


def test_conversions():
    half, single = Type("bfloat16"), Type("float32")
    value = var("v", Type("float64"))
    assert a.convert(X, "int64") is X
    assert a.convert(Literal(2, INT), "float32") == Literal(2, single)
    assert a.convert(value, "bfloat16") == Convert(Convert(value, single), half)
    assert a.convert(var("h", half), "float64") == Convert(Convert(var("h", half), single), Type("float64"))
