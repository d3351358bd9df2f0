"""Tolerances for results of random programs."""

from dataclasses import replace

import numpy as np
import pytest

from sparsify.compiler.einsum.declare import Operand, declare
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.einsum.text.parse import parse
from sparsify.storage.format import Format
from tests.compiler.random_programs.closeness import (
    assert_close,
    computed_dtypes,
    decided_by_order,
    has_comparisons,
    has_logic,
    in_range,
    sums_nothing,
)
from tests.compiler.random_programs.data import SPECIAL, Case
from tests.compiler.random_programs.dense import compute


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


@pytest.mark.parametrize(("size", "is_nothing"), [(0, True), (2, False)])
def test_infinity_times_a_sum_of_nothing_is_open(size, is_nothing):
    given = {"A": np.array([np.inf, 1.0]), "B": np.zeros(size)}
    case = Case(0, program("Y[i] = sum(j, A[i] * B[j])"), 16, 1, SPECIAL, given)
    assert sums_nothing(case) == is_nothing
    if is_nothing:
        assert_close("", case, "Y", np.array([np.nan, 0.0]), np.zeros(2))
    for wrong in ([np.nan, 1.0], [1.0, 0.0]):
        with pytest.raises(AssertionError):
            assert_close("", case, "Y", np.array(wrong), np.zeros(2))


def test_signs_of_nan_are_seen():
    signs = program("Y[i] = sign(A[i]) + B[i]")
    found = compute(signs, {"A": np.array([np.nan, -2.0]), "B": np.ones(2)}, {})["Y"]
    np.testing.assert_equal(found, [np.nan, 0.0])
    assert has_comparisons(signs) and not has_comparisons(program("Y[i] = A[i] + B[i]"))


def test_comparisons_of_what_is_not_finite_are_open():
    signs = program("Y[i] = sign(A[i]) + where(B[i] < 1, 1, A[i])")
    given = {"A": np.array([np.inf, 2.0, np.nan, np.inf]), "B": np.array([0.0, 3.0, 0.0, np.nan])}
    assert np.isnan(compute(signs, given, {}, is_open=True)["Y"]).tolist() == [True, False, True, True]
    np.testing.assert_equal(compute(signs, given, {})["Y"], [2.0, 3.0, np.nan, np.inf])
    case = Case(0, signs, 16, 1, SPECIAL, given, compared={"Y": np.array([True, False])})
    assert_close("", case, "Y", np.array([1.0, 2.0]), np.array([0.0, 2.0]))
    with pytest.raises(AssertionError):
        assert_close("", case, "Y", np.array([1.0, 2.0]), np.array([1.0, 3.0]))


def test_extremes_of_sums_that_are_not_finite_are_open():
    text = program("Y[i] max= exp(A[i]); Y[i] max= sum(j, B[j] * A[i])")
    given = {"A": np.array([-np.inf, 1.0]), "B": np.array([1.0, -1.0])}
    case = Case(0, text, 16, 1, SPECIAL, given)
    wanted = compute(text, given, {})["Y"]
    np.testing.assert_equal(wanted, [np.nan, np.e])
    case.compared |= decided_by_order(case, {}, {"Y": wanted})
    assert_close(
        "", case, "Y", np.array([0.0, np.e]), wanted
    )  # -inf * 0, or -inf + inf: NaN; of -inf, exp(-inf)
    with pytest.raises(AssertionError):
        assert_close("", case, "Y", np.array([0.0, np.nan]), wanted)
    assert not decided_by_order(replace(case, program=program("Y[i] max= A[i]")), {}, {"Y": wanted})


def test_infinite_fills_beside_nan_are_open():
    case = Case(0, program("Y[i] = A[i] - B[i]"), 16, 1, doubtful={"Y": np.array([True, False])})
    for found, wanted in ((np.inf, np.nan), (np.nan, np.inf)):
        assert_close("", case, "Y", np.array([found, 1.0]), np.array([wanted, 1.0]))
        with pytest.raises(AssertionError):
            assert_close("", case, "Y", np.array([1.0, found]), np.array([1.0, wanted]))
    with pytest.raises(AssertionError):
        assert_close("", case, "Y", np.array([2.0, 1.0]), np.array([np.nan, 1.0]))
