"""What decides how close results of random programs must be."""

import numpy as np
import pytest

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.parse import parse
from sparsify.storage.format import Format

from .closeness import computed_dtypes, has_logic, in_range


def program(text: str) -> Program:
    """A program of dense vectors of float64."""
    vector = Operand(Format("dense"), "float64", 0.0, (("", ""),))
    return declare(parse(text), {"A": vector, "B": vector}, ("Y",))


@pytest.mark.parametrize(
    ("text", "dtypes", "is_logic"),
    [
        ("Y[i] = A[i] * B[i]", {"float64"}, False),
        ("Y[i] = exp(or(j, A[j])) * B[i]", {"float32", "float64"}, False),
        ("Y[i] = (or(j, A[j]) + and(j, B[j])) * A[i]", {"float64"}, True),
        ("Y[i] = or(j, A[j]) * A[i]", {"float64"}, False),
    ],
)
def test_what_is_computed_in_between(text, dtypes, is_logic):
    assert computed_dtypes(program(text)) == dtypes
    assert has_logic(program(text)) == is_logic


def test_what_a_dtype_does_not_hold_is_infinite():
    values = np.array([1.0, 1e39, -1e39, -np.inf, np.nan])
    np.testing.assert_equal(in_range(values, "float32"), [1.0, np.inf, -np.inf, -np.inf, np.nan])
    np.testing.assert_equal(in_range(values, "float64"), values)
