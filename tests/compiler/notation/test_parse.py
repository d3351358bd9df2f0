"""Concrete index notation as text and back."""

import pytest

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Index
from sparsify.compiler.notation import printer
from sparsify.compiler.notation.nodes import (
    Forall,
    Fuse,
    If,
    Let,
    Parallel,
    Position,
    Prefetch,
    Sequence,
    Split,
    Temporary,
    Unrolled,
    Vector,
)
from sparsify.compiler.notation.parse import parse_notation
from sparsify.errors import ParseError

TEXTS = [
    "forall i: forall j: y[i] += A[i,j] * x[j]",
    "forall i: let w[k]: float32 in register: (forall j: forall k: w[k] += A[i,j] * T[j,k]); "
    "forall k: Y[i,k] = relu(w[k] + b[k])",
    "parallel forall i by positions of A: vector forall k: Y[i,k] = 2 * X[i,k]",
    "parallel forall i dynamic by positions of A chunks 4: unrolled forall k: Y[i,k] = 0",
    "(forall i: y[i] = 0); forall i: if i < 3: y[i] += x[i]",
    "let a: float64 in thread, P[ko,ki,j]: float32 in kernel layout (2,0,1): forall i: y[i] = a",
    "let v[i,j]: float32 in memory pattern of A[i,j]: forall i: forall j: v[i,j] = exp(A[i,j])",
    "forall i: let w[k]: float32 in thread listed: (forall k: w[k] += B[i,k]); forall k: Y[i,k] = w[k]",
    "forall i: (forall j: (forall k: C[i,k] += A[i,j]); y[i] += x[j]); z[i] = y[i]",
    "forall i: m[i] max= where(stored(A[i,j]), A[i,j], -inf)",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_reads_back(text):
    tree = parse_notation(text)
    assert str(tree) == text
    assert parse_notation(str(tree)) == tree


def test_structure():
    y, x = Access("y", (Index("i"),)), Access("x", (Index("i"),))
    zero, add = Assign(y, None, Const(0)), Assign(y, "sum", x)
    assert parse_notation("(forall i: y[i] = 0); forall i: if i < 3: y[i] += x[i]") == Sequence(
        (Forall("i", zero), Forall("i", If(Call("lt", (Index("i"), Const(3))), add)))
    )
    assert parse_notation("forall i: y[i] = 0; y[i] += x[i]") == Forall("i", Sequence((zero, add)))
    assert parse_notation("parallel forall i dynamic chunks 4: vector forall j: y[i] = 0") == Forall(
        "i", Forall("j", zero, Vector()), Parallel("dynamic", "", 4)
    )
    text = "parallel forall i dynamic by positions of A hubs 64: y[i] = 0"
    assert parse_notation(text) == Forall("i", zero, Parallel("dynamic", "A", hubs=64))
    assert str(parse_notation(text)) == text
    assert parse_notation("let w[k]: float32 in register: unrolled forall i: y[i] = 0") == Let(
        (Temporary("w", ("k",), "float32", "register"),), Forall("i", zero, Unrolled())
    )


def test_indented_text():
    tree = parse_notation(TEXTS[1])
    assert printer.indented(tree) == (
        "forall i:\n"
        "  let w[k]: float32 in register:\n"
        "    forall j:\n"
        "      forall k:\n"
        "        w[k] += A[i,j] * T[j,k]\n"
        "    forall k:\n"
        "      Y[i,k] = relu(w[k] + b[k])"
    )


@pytest.mark.parametrize(
    ("relation", "text"),
    [
        (Split("k", "ko", "ki", 64), "split k ko ki 64"),
        (Split("k", "ko", "ki", 64, (32, 16, 8)), "split k ko ki 64 tail 32 16 8"),
        (Fuse("i", "j", "f"), "fuse i j f"),
        (Position("j", "p", "A"), "pos j p A"),
        (Prefetch("T", 16), "prefetch T 16"),
    ],
)
def test_relations(relation, text):
    assert str(relation) == text


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("forall i: y[i] = ", 17, "expected"),
        ("forall i: (y[i] = 0", 19, r"'\)' expected"),
        ("forall i: y[i] = 0)", 18, "no bracket is open"),
        ("let w[k] in register: y = 0", 4, "a temporary expected"),
        ("forall i: y[i] = 1 $ 2", 19, "not part of index notation"),
    ],
)
def test_mistakes_show_their_place(text, position, message):
    with pytest.raises(ParseError, match=message) as caught:
        parse_notation(text)
    assert caught.value.position == position
