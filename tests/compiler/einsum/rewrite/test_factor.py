"""Factors that move out of a sum, and factors that must stay."""

import pytest

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.rewrite.factor import factor
from sparsify.compiler.einsum.text.parse import parse
from sparsify.storage.format import Format

FORMATS = {"A": "csr", "B": "csr", "M": "csr", "s": "dense"}
SOFTMAX = """
S[i,j] = where(stored(M[i,j]), X[i,j], -inf)
m[i] max= S[i,j]
P[i,j] = exp(S[i,j] - where(m[i] == -inf, 0, m[i]))
d[i] += P[i,j]
"""


def factored(text: str) -> str:
    statements = parse(text)
    names = [name for name in "ABMPQVXsx" if any(f"{name}[" in str(s.value) for s in statements)]
    results = {s.target.tensor for s in statements}
    operands = {
        name: Operand(Format(FORMATS.get(name, "dense, dense")), "float32")
        for name in names
        if name not in results
    }
    return str(factor(declare(statements, operands)).statements[-1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("S[i,j] = sum(k, A[i,j] * P[i,k] * Q[j,k])", "S[i,j] = A[i,j] * sum(k, P[i,k] * Q[j,k])"),
        ("y[i] += A[i,j] * P[i,k] * Q[j,k]", None),
        ("Y[i,k] = sum(j, s[i] * A[i,j] * X[j,k])", None),  # an empty row must not meet a NaN of s
        ("Y[i,k] = sum(j, s[i] * P[i,j] * X[j,k])", None),  # nothing is saved where all is dense
        ("S[i,j] = sum(k, A[i,j] + P[i,k] * Q[j,k])", None),
        ("S[i,j] = max(k, A[i,j] * P[i,k])", None),
        (
            SOFTMAX + "Y[i,l] += P[i,j] * V[j,l] / where(d[i] == 0, 1, d[i])",
            "Y[i,l] = sum(j, P[i,j] * V[j,l]) / where(d[i] == 0, 1, d[i])",
        ),
        (
            SOFTMAX.replace("d[i] += P[i,j]", "d[i] = sum(j, P[i,j])")
            + "Y[i,l] = sum(j, P[i,j] * V[j,l] / where(d[i] == 0, 1, d[i]))",
            "Y[i,l] = sum(j, P[i,j] * V[j,l]) / where(d[i] == 0, 1, d[i])",
        ),
        (SOFTMAX + "Y[i,l] += P[i,j] * V[j,l] / d[i]", None),  # 0 / 0 in an empty row
        (SOFTMAX + "Y[j,l] += P[i,j] * V[i,l] / where(d[j] == 0, 1, d[j])", None),  # of other rows
    ],
)
def test_factors(text, expected):
    before = str(parse(text)[-1])
    assert factored(text) == (expected or before)
