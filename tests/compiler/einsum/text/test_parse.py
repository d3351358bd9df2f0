"""Parsing of index notation, its sums and its errors."""

import numpy as np
import pytest

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Index
from sparsify.compiler.einsum.text.parse import parse, parse_expression, read
from sparsify.errors import EinsumError, ParseError
from tests.compiler.einsum.programs import random_expression

NAMES = ("i", "j", "k2", "k3", "k4", "k5")
SUMS = [
    ("y[i] = A[i,j] * x[j] + z[i]", "y[i] = sum(j, A[i,j] * x[j]) + z[i]"),
    ("Y[i,k] = relu(A[i,j]*T[j,k] + b[k])", "Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])"),
    ("A[i,j] = B[i,k,l]*D[l,j]*C[k,j]", "A[i,j] = sum(k, l, B[i,k,l] * D[l,j] * C[k,j])"),
    ("y[i] = A[i,j] - B[i,j] - 2", "y[i] = sum(j, A[i,j]) - sum(j, B[i,j]) - 2"),
    ("y[i] = A[i,j] * x[j] / d[i]", "y[i] = sum(j, A[i,j] * x[j] / d[i])"),
    ("y[i] = c[i]*(A[i,j]*x[j] + b[i])", "y[i] = c[i] * (sum(j, A[i,j] * x[j]) + b[i])"),
    ("y[i] = (A[i,j] + B[i,j])*x[j]", "y[i] = sum(j, (A[i,j] + B[i,j]) * x[j])"),
    ("y[i] = relu(A[i,j])*x[j]", "y[i] = sum(j, relu(A[i,j]) * x[j])"),
    ("y[i] = 1/(A[i,j]*x[j])", "y[i] = 1 / sum(j, A[i,j] * x[j])"),
    ("Y[i,j] = E[i,j]/E[i,k]", "Y[i,j] = sum(k, E[i,j] / E[i,k])"),
    ("y = x[j]**2", "y = sum(j, x[j] ** 2)"),
    ("y = (x[j]*z[j])**2", "y = sum(j, x[j] * z[j]) ** 2"),
    ("y[i] = max(A[i,k], 3)", "y[i] = max(sum(k, A[i,k]), 3)"),
    ("y[i] = max(k, A[i,k])", "y[i] = max(k, A[i,k])"),
    ("y[i] = min(a[i], b[i], 3)", "y[i] = min(min(a[i], b[i]), 3)"),
    ("y[i] = A[i,j] * (3*i + j)", "y[i] = sum(j, A[i,j] * (3 * i + j))"),
    ("d[i] += exp(S[i,j] - m[i])", "d[i] += exp(S[i,j] - m[i])"),
    ("m[i] max= S[i,j]", "m[i] max= S[i,j]"),
    ("y[h] = x[2*h+r-1] * w[r]", "y[h] = sum(r, x[2*h+r-1] * w[r])"),
    ("y[j] = A[2:10:2, j]", "y[j] = sum(A_slice, A[2*A_slice+2,j])"),
    ("s = sum(i, j, A[i,j])", "s = sum(i, j, A[i,j])"),
    ("y[i] = alpha * x[i]", "y[i] = alpha * x[i]"),
]


@pytest.mark.parametrize(("text", "explicit"), SUMS, ids=[text for text, _ in SUMS])
def test_sums_become_explicit(text, explicit):
    assert [str(assign) for assign in parse(text)] == [explicit]


@pytest.mark.parametrize(("_", "explicit"), SUMS, ids=[text for text, _ in SUMS])
def test_explicit_sums_stay(_, explicit):
    assert str(parse(explicit)[0]) == explicit


def test_a_call_is_never_crossed():
    with pytest.raises(EinsumError, match=r"j is missing on the left and lies in 2 arguments of min"):
        parse("y[i] = min(A[i,j], B[i,j])")


def test_statements_lines_and_comments():
    text = """
        S[i,j] = where(stored(M[i,j]), sum(k, Q[i,k] * K[j,k]),
                       -inf)      # outside M
        m[i] max= S[i,j]; d[i] += exp(S[i,j] - m[i])
    """
    assert [str(s) for s in parse(text)] == [
        "S[i,j] = where(stored(M[i,j]), sum(k, Q[i,k] * K[j,k]), -inf)",
        "m[i] max= S[i,j]",
        "d[i] += exp(S[i,j] - m[i])",
    ]


def test_slices_fix_extents():
    assert read("y[j] = A[2:10:2, j] * B[:5, j]").sizes == (("A_slice", 4), ("B_slice", 5))
    assert read("y[j] = A[:, j]").sizes == ()


OPEN = [
    ("y[j] = A[2:, j]", "y[j] = sum(A_slice, A[A_slice+2,j])", 7),
    ("y[j] = A[::4, j]", "y[j] = sum(A_slice, A[4*A_slice,j])", 3),
    ("y[j] = A[-3:, j]", "y[j] = sum(A_slice, A[A_slice+6,j])", 3),
    ("y[j] = A[1:-2:2, j]", "y[j] = sum(A_slice, A[2*A_slice+1,j])", 3),
    ("y[j] = A[9:, j]", "y[j] = sum(A_slice, A[A_slice+9,j])", 0),
    ("y[j] = A[::-1, j]", "y[j] = sum(A_slice, A[8-A_slice,j])", 9),
    ("y[j] = A[7:2:-2, j]", "y[j] = sum(A_slice, A[7-2*A_slice,j])", 3),
    ("y[j] = A[-2::-3, j]", "y[j] = sum(A_slice, A[7-3*A_slice,j])", 3),
    ("B[k,j] = A[k,j] * c[k]; y[j] = B[-3:, j]", "y[j] = sum(B_slice, B[B_slice+6,j])", 3),
]


@pytest.mark.parametrize(("text", "explicit", "size"), OPEN, ids=[text for text, _, _ in OPEN])
def test_bounds_that_count_from_the_end(text, explicit, size):
    source = read(text, shapes={"A": (9, 4), "c": (9,), "unread": (2,)})
    assert str(source.statements[-1]) == explicit
    assert [n for _, n in source.sizes] == [size]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("y[j] = A[-10:, j]", "begins before mode 0 of A, which has 9 entries"),
        ("y[j] = B[2:, j]", "needs an operand's shape"),
        ("y[j] = A[::0, j]", "a step other than 0"),
        ("y[j] = B[::-1, j]", "needs an operand's shape"),
        ("y[j] = A[i:3, j]", "whole numbers"),
    ],
)
def test_slices_that_are_none(text, match):
    with pytest.raises(ParseError, match=match):
        read(text, shapes={"A": (9, 4)})


def test_sizes_name_index_variables():
    assert parse("y[i] = 3 * i + n", indices=("i",))[0].value == Call(
        "add", (Call("mul", (Const(3), Index("i"))), Access("n"))
    )


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("-a ** b", "-a ** b"),
        ("(-a) ** b", "(-a) ** b"),
        ("a ** b ** c", "a ** b ** c"),
        ("(a ** b) ** c", "(a ** b) ** c"),
        ("a - (b - c)", "a - (b - c)"),
        ("(a - b) - c", "a - b - c"),
        ("a / (b * c)", "a / (b * c)"),
        ("-(a * b)", "-(a * b)"),
        ("(a + b) * -c", "(a + b) * -c"),
        ("(a == b) == c", "(a == b) == c"),
        ("a + b < c * 2", "a + b < c * 2"),
        ("-2 ** 2", "-2 ** 2"),
        ("(-2) ** 2", "(-2) ** 2"),
        ("-(1)", "-(1)"),
        ("1e-3 + .5 - inf", "0.001 + 0.5 - inf"),
    ],
)
def test_precedence(text, canonical):
    expr = parse_expression(text)
    assert str(expr) == canonical
    assert parse_expression(canonical) == expr


@pytest.mark.parametrize("seed", range(60))
def test_printed_expressions_read_back(seed):
    expr = random_expression(np.random.default_rng(seed), depth=4)
    target = Access("Y", (Index("i"), Index("j")))
    assert parse_expression(str(expr), indices=NAMES) == expr, f"random_expression(default_rng({seed}), 4)"
    statement = Assign(target, "sum", expr)
    assert parse(str(statement), indices=NAMES) == (statement,)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("y[i] = A[i,j", 8, "never closed"),
        ("y[i] = x[i] $ 2", 12, "not part of index notation"),
        ("y[i] = ", 7, "expected, found the end of the statement"),
        ("y[i] = x[i](3)", 11, "operator or the end of the line"),
        ("sum(j, a)", 0, "starts with the tensor"),
        ("y[i] = sum(j)", 7, "needs the index variables"),
        ("y = a == b == c", 11, "do not chain"),
        ("y[i] x[i]", 5, "'=' or an assignment"),
        ("y = stored(2)", 4, "stored takes one access"),
        ("y[i] = i[j]", 7, "an index variable and a tensor"),
        ("y[j] = A[2:, j]", 10, "needs an operand.s shape"),
        ("y[j] = A[2:8:0, j]", 10, "step other than 0"),
        ("y = a)", 5, "no bracket is open"),
        ("", 0, "no statement"),
        ("y = " + "(" * 200 + "a" + ")" * 200, 104, "levels of brackets"),
        ("y = a" + "+a" * 300, 404, "more than 200 terms in a row"),
        ("y = a" + "*a" * 300, 404, "more than 200 terms in a row"),
        ("y = a\n" * 300, 1536, "more than 256 statements"),
    ],
)
def test_mistakes_show_their_place(text, position, message):
    with pytest.raises(ParseError, match=message) as caught:
        parse(text)
    assert caught.value.position == position
    assert "^" in str(caught.value)
