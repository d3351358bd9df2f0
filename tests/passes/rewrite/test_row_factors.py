"""Factors and summands of rows: values before and after are equal, and vectors are computed once."""

import pytest

from sparsify.compiler.einsum.nodes import Index
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.passes.rewrite.row_factors import RowFactors

ROWS = frozenset(("a", "c", "d", "v", "z"))


@pytest.mark.parametrize(
    ("before", "after", "vectors"),
    [
        ("P[n,o] * a[o] + c[o]", "s[o] * P[n,o] + b[o]", {"s": "a[o]", "b": "c[o]"}),
        (
            "(P[n,o] + d[o] - c[o]) / sqrt(v[o] + 0.1) * a[o]",
            "s[o] * P[n,o] + b[o]",
            {"s": "1 / sqrt(v[o] + 0.1) * a[o]", "b": "(d[o] - c[o]) * (1 / sqrt(v[o] + 0.1) * a[o])"},
        ),
        ("2 * (P[n,o] / 4 + 3)", "0.5 * P[n,o] + 6", {}),
        ("c[o] - P[n,o]", "-P[n,o] + b[o]", {"b": "c[o]"}),
        ("Q[n,o] - sqrt(P[n,o]) * a[o]", "s[o] * sqrt(P[n,o]) + Q[n,o]", {"s": "-a[o]"}),
        ("a[o] * P[n,o] + a[o] * Q[n,o]", "s[o] * (P[n,o] + Q[n,o])", {"s": "a[o]"}),
        ("relu(P[n,o] * a[o]) * z", "s1[o] * relu(s[o] * P[n,o])", {"s": "a[o]", "s1": "z"}),
        ("max(P[n,o], a[o])", "max(P[n,o], b[o])", {"b": "a[o]"}),
        ("P[n,o] * Q[n,o] + 0.5", "P[n,o] * Q[n,o] + 0.5", {}),
        ("where(a[o] > 0, P[n,o], c[o])", "where(b[o] > 0, P[n,o], b1[o])", {"b": "a[o]", "b1": "c[o]"}),
        ("P[n,o] / 0", "P[n,o] / 0", {}),
        ("sum(k, W[o,k] * F[n,k])", "sum(k, W[o,k] * F[n,k])", {}),
    ],
    ids=str,
)
def test_row_factors(before, after, vectors):
    law = RowFactors(ROWS, (Index("o"),))
    indices = ("n", "o", "k")
    found = law(parse_expression(before, indices=indices))
    assert str(found) == str(parse_expression(after, indices=indices))
    assert {name: str(expr) for expr, name in law.vectors.items()} == vectors
