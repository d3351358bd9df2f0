"""The fill rules."""

from math import inf

import numpy as np
import pytest

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.storage.fill import SCALARS, annihilated, is_identity, reduced_fill, result_fill


@pytest.mark.parametrize(
    "function, fills, fill",
    [
        ("mul", (0.0, None), 0.0),
        ("mul", (None, 0.0), 0.0),
        ("mul", (0.0, inf), 0.0),
        ("mul", (2.0, None), None),
        ("mul", (2.0, 3.0), 6.0),
        ("div", (0.0, None), 0.0),
        ("div", (0.0, 0.0), 0.0),
        ("div", (None, 0.0), None),
        ("div", (1.0, 0.0), inf),
        ("add", (-inf, None), -inf),
        ("add", (0.0, None), None),
        ("add", (0.0, 0.0), 0.0),
        ("sub", (None, inf), -inf),
        ("sub", (None, 0.0), None),
        ("min", (-inf, None), -inf),
        ("max", (-inf, None), None),
        ("max", (inf, None), inf),
        ("where", (False, None, 2.0), 2.0),
        ("where", (True, None, 2.0), None),
        ("where", (None, 2.0, 2.0), 2.0),
        ("logical_and", (False, None), False),
        ("logical_or", (True, None), True),
        ("exp", (0.0,), 1.0),
        ("log", (0.0,), -inf),
        ("log", (-1.0,), None),
        ("relu", (-3.0,), 0),
        ("sigmoid", (-inf,), 0.0),
        ("pow", (None, 0), 1.0),
    ],
)
def test_result_fill(function, fills, fill):
    assert result_fill(function, fills) == fill


def test_a_given_function_is_used():
    assert result_fill("huber", (2.0,), lambda x: x * 10) == 20.0


@pytest.mark.parametrize("name", sorted(SCALARS))
def test_scalars_agree_with_the_functions_of_index_notation(name):
    function = FUNCTIONS[name]
    samples = (-inf, -2.5, -1.0, 0.0, 0.5, 1.0, 3.0, inf)
    for x in samples:
        for y in samples if function.arity == 2 else (1.0,):
            args = {1: (x,), 2: (x, y), 3: (x > 0, x, y)}[function.arity]
            if (name, args) == ("pow", (-inf, 0.5)):
                continue  # C gives inf, numpy takes the square root
            with np.errstate(all="ignore"):
                expected = float(function.evaluate(*(np.float64(a) for a in args)))
            assert float(SCALARS[name](*args)) == pytest.approx(expected, nan_ok=True, rel=1e-9), (name, args)


def test_reductions():
    assert reduced_fill("sum", 0.0) == 0.0 and reduced_fill("sum", 1.0) is None
    assert reduced_fill("max", -1.0) == -1.0 and reduced_fill("prod", 1.0) == 1.0
    assert reduced_fill("sum", None) is None and reduced_fill("prod", 2.0) is None
    assert is_identity("max", -inf) and is_identity("prod", 1) and not is_identity("sum", None)
    assert annihilated("add", (None, 0.0)) is None
