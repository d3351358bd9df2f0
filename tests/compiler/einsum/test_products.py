"""Factors of products, and products of factors."""

import pytest

from sparsify.compiler.einsum.nodes import Expr
from sparsify.compiler.einsum.products import factors, product, product_factors
from sparsify.compiler.einsum.text.parse import parse


def value(text: str) -> Expr:
    return parse(f"y[i] = {text}")[0].value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a[i] * (b[i] * c[i])", ["a[i]", "b[i]", "c[i]"]),
        ("a[i] * a[i]", ["a[i]", "a[i]"]),
        ("a[i] * (b[i] + c[i])", ["a[i]", "b[i] + c[i]"]),
        ("a[i] + b[i]", ["a[i] + b[i]"]),  # the only factor
    ],
)
def test_factors(text, found):
    assert [str(factor) for factor in factors(value(text))] == found


def test_products():
    assert product(factors(value("a[i] * (b[i] * c[i])"))) == value("a[i] * b[i] * c[i]")
    assert product_factors(value("2 * a[i]")) == factors(value("2 * a[i]"))
    assert product_factors(value("a[i] * exp(b[i])")) is None
