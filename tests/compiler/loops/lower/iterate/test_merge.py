"""Co-iteration of operands: two by cases, more by flags; counting needs no cases."""

import pytest
import torch

import sparsify
from tests.compiler.loops.lower.test_lowering import code


def random(shape, seed, density):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw) * (torch.rand(shape, generator=draw) < density)


def test_two_operands_hold_their_coordinates():
    text = code("Y[i,j] = A[i,j] + B[i,j]", "order i, j", A="csr", B="csr")
    assert "while j_left" in text and "if jA < jB" in text
    assert "has_A" not in text


def test_three_operands_are_told_apart_by_flags():
    text = code("Y[i,j] = A[i,j] + B[i,j] + C[i,j]", "order i, j", A="csr", B="csr", C="csr")
    assert text.count("has_C") > 0
    for held in ("jv1A < jv1B", "jv2A < jv2C", "jv3B < jv3C"):  # then two of them are left
        assert f"if {held}" in text


def test_where_all_cases_are_alike_there_are_none():
    """Counting entries needs no case distinction between operands."""
    text = code("Y[i,j] = A[i,j] + B[i,j]", "order i, j", "csr", A="csr", B="dcsr")
    counted = text[: text.index("allocate, then fill")]
    assert "has_A" in counted and "if jA" not in counted


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["csr", "dcsr", "coo"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Y[i,j] = A[i,j] - B[i,j]", lambda a, b: a - b),
        ("Y[i,j] = A[i,j] + A[i,j] * B[i,j]", lambda a, b: a + a * b),
        ("Y[i,j] = max(A[i,j], B[i,j])", torch.maximum),
        ("Y[i,j] = where(stored(A[i,j]), B[i,j], 0)", lambda a, b: torch.where(a != 0, b, 0)),
        ("Y[i,j] = A[i,j] * (B[i,j] + A[j,i])", lambda a, b: a * (b + a.T)),
        ("Y[i,j] = A[i,j] + A[i,j] * B[i,j] * B[j,i]", lambda a, b: a + a * b * b.T),
    ],
)
def test_merges_are_right(text, expected, form):
    """Rows in which one operand, both or none are empty, and operands of different lengths."""
    a, b = random((40, 40), 0, 0.3), random((40, 40), 1, 0.3)
    a[3:9], b[6:12], a[20, 15:], b[21, :15] = 0, 0, 0, 0
    found = sparsify.evaluate(text, A=sparsify.tensor(a, form), B=sparsify.tensor(b, form), format=form)
    torch.testing.assert_close(found.to_dense(), expected(a, b))
