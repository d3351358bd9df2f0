"""Shifts of exponents: those that cancel, and those that do not."""

import numpy as np
import pytest

from sparsify.compiler.einsum.gradient import adjoint
from sparsify.compiler.einsum.interpret import interpret
from sparsify.compiler.einsum.rewrite.factor import factor
from sparsify.compiler.einsum.rewrite.one_reduction import flatten
from sparsify.compiler.einsum.rewrite.softmax_shift import shifts
from tests.compiler.einsum.programs import CSR, MATRIX, program

SCORES = "S[i,j] = where(stored(M[i,j]), sum(k, Q[i,k] * K[j,k]), -inf)\n"
MOST = "m[i] max= S[i,j]\n"
P = "P[i,j] = exp(S[i,j] - where(m[i] == -inf, 0, m[i]))\n"
TOTAL = "d[i] += P[i,j]\n"
GUARDED = "Y[i,l] += P[i,j] * V[j,l] / where(d[i] == 0, 1, d[i])"
MOVED = """n[i] = max(m[i], V[i,0])
c[i] = exp(m[i] - n[i])
t[i] = d[i] * c[i] + exp(V[i,0] - n[i])
Y[i,l] = sum(j, P[i,j] * V[j,l]) * c[i] / t[i]"""
SOFTMAX = SCORES + MOST + P + TOTAL
OPERANDS = {"M": CSR, "Q": MATRIX, "K": MATRIX, "V": MATRIX}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SOFTMAX + GUARDED, {"m"}),
        (SOFTMAX + "Y[i,l] = sum(j, P[i,j] * V[j,l]) / d[i]", {"m"}),
        (SOFTMAX + "Y[i,j] = P[i,j] / d[i] * V[j,0]", {"m"}),
        (SOFTMAX + "Y[i,l] = -sum(j, square(P[i,j]) * V[j,l]) / d[i] / d[i]", set()),
        (SOFTMAX + "Y[i,l] = sum(j, P[i,j] * P[i,j] * V[j,l]) / (d[i] * d[i])", {"m"}),
        (SOFTMAX + "Y[i,l] = sum(j, P[i,j] * V[j,l])", set()),
        (SOFTMAX + "Y[i,l] = sum(j, P[i,j] * V[j,l]) / (1 + d[i])", set()),
        (SOFTMAX + "Y[j,l] = sum(i, P[i,j] * V[i,l]) / d[j]", set()),
        (SOFTMAX + "Y[i,l] = sum(j, P[i,j] * V[j,l]) / d[i] * m[i]", set()),
        (SOFTMAX + "Y[i,l] = sum(j, P[i,j] * V[j,l]) / d[i] + exp(V[i,l] - m[i])", set()),
        # A sum of what has signs may be 0 where its terms are not.
        (
            SCORES + MOST + P + "d[i] += P[i,j] * V[j,0]\n" + GUARDED,
            set(),
        ),
        (SCORES + MOST + P.replace("where(m[i] == -inf, 0, m[i])", "m[j]") + TOTAL + GUARDED, set()),
        (SCORES + MOST + P + "d[i] max= P[i,j]\nY[i,l] = sum(j, P[i,j] * V[j,l]) / d[i]", {"m"}),
        (SCORES + MOST + P + TOTAL + "Y[i] = log(d[i]) + m[i]", set()),
        # Sums that are moved to another shift, where they meet a sink.
        (SOFTMAX + MOVED, {"m", "n"}),
        (SOFTMAX + MOVED.replace("/ t[i]", "/ (1 + t[i])"), set()),
        (SOFTMAX + MOVED.replace("exp(m[i] - n[i])", "exp(2 * m[i] - n[i])"), {"n"}),
        (SOFTMAX.replace("0, m[i])", "0, 2 * m[i])") + MOVED, {"n"}),
    ],
)
def test_shifts(text, found):
    flats, _ = flatten(factor(program(text, **OPERANDS)))
    assert shifts(flats, ("Y",)) == found


def test_shifts_of_results_have_gradients():
    flats, _ = flatten(factor(program(SOFTMAX + GUARDED, **OPERANDS)))
    assert shifts(flats, ("Y", "m")) == set()


@pytest.mark.parametrize("ties", [False, True])
def test_gradients_are_those_with_the_shift(ties, monkeypatch):
    generator = np.random.default_rng(3)
    stored = generator.random((6, 6)) < 0.6
    stored[2] = False
    inputs = {"M": (np.ones((6, 6)) * stored, stored)}
    for name in ("Q", "K", "V"):
        values = generator.integers(-1, 2, (6, 3)) if ties else generator.standard_normal((6, 3))
        inputs[name] = (values.astype(float), np.ones((6, 3), bool))
    forward = program(SOFTMAX + GUARDED, **OPERANDS)
    results = interpret(forward, inputs)
    seed = (generator.standard_normal((6, 3)), np.ones((6, 3), bool))
    known = {**inputs, **results, "g": seed}

    def gradients() -> list[np.ndarray]:
        reverse = adjoint.adjoint(forward, ("Q", "K", "V"), {"Y": "g"})
        found = interpret(reverse, {name: known[name] for name in reverse.inputs})
        return [found[name][0] for name in reverse.outputs]

    without = gradients()
    monkeypatch.setattr(adjoint, "shifts", lambda *_: frozenset())
    for found, expected in zip(without, gradients(), strict=True):
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
