"""The interpreter of loops rejects undefined behaviour that C++ would accept silently."""

import numpy as np
import pytest

from sparsify.compiler.loops.interpret import interpret
from sparsify.compiler.loops.nodes import (
    Allocate,
    AllocateOutput,
    Block,
    Gather,
    Horizontal,
    ParallelFor,
    Return,
    Scatter,
    Store,
    Type,
)
from tests.compiler.loops.build import F32, kernel, lit, load, loop, var

P, N = var("p"), var("n")
VECTOR = Type("float32", 4)
INDICES = load("I", lit(0), Type("int64", 4))


def arrays():
    return {"A": np.arange(6, dtype=np.float32), "I": np.array([0, 5, 6, 1]), "Y": np.zeros(6, np.float32)}


@pytest.mark.parametrize(
    ("stmt", "message"),
    [
        (Store("Y", lit(0), load("A", lit(6), F32)), r"index 6 of A\[6\] lies outside 0..6"),
        (Store("Y", lit(0), load("A", lit(-1), F32)), "index -1"),
        (Store("Y", lit(0), load("A", lit(3), VECTOR)), "index 6"),
        (Store("Y", lit(4), load("A", lit(0), VECTOR), lit(3)), "index 6"),
        (Store("Y", lit(0), Gather("A", INDICES, VECTOR)), "index 6"),
        (Scatter("Y", INDICES, load("A", lit(0), VECTOR)), "index 6"),
        (Store("A", lit(0), lit(1.0, F32)), "writes to an input"),
        (Store("Y", lit(0), load("w", lit(0), F32)), "w is not allocated"),
        (Store("Y", lit(0), load("G", lit(0), F32)), "G is not allocated"),
        (Store("Y", lit(0), var("x", F32)), "x is used before it is defined"),
        (Store("Y", lit(0), lit(1)), "writes int64 to float32"),
        (Store("Y", lit(0), lit(1.0, VECTOR), lit(-1)), "the count -1 is -1"),
    ],
    ids=str,
)
def test_refused(stmt, message):
    function = kernel("n", "A:float32 I:int64 >Y:float32 *G:float32", stmt)
    with pytest.raises(AssertionError, match=message):
        interpret(function, {"n": 6}, arrays())


def test_masked_lanes_touch_nothing():
    stores = [
        Store("Y", lit(4), load("A", lit(4), VECTOR, lit(2)), lit(2)),
        Store("Y", lit(0), Gather("A", INDICES, VECTOR, lit(2)), lit(4)),
    ]
    given = arrays()
    interpret(kernel("", "A:float32 I:int64 >Y:float32", *stores), {}, given)
    assert given["Y"].tolist() == [0, 5, 0, 0, 4, 5]


def test_status_and_grown_outputs():
    body = [AllocateOutput("Y", "float32", N), loop("p", lit(0), N, Store("Y", P, lit(2.0, F32))), Return(3)]
    result = interpret(kernel("n", "*Y:float32", *body), {"n": 2}, {})
    assert result.status == 3
    assert result.grown["Y"].tolist() == [2, 2]


def test_undefined_scratch_is_poison():
    body = [Allocate("w", "float32", lit(1)), Store("Y", lit(0), load("w", lit(0), F32))]
    given = {"Y": np.zeros(1, np.float32)}
    interpret(kernel("", ">Y:float32", *body), {}, given)
    assert np.isnan(given["Y"][0])


def test_a_wrong_array_is_named():
    with pytest.raises(AssertionError, match="A is float32, its array is float64"):
        interpret(kernel("", "A:float32"), {}, {"A": np.zeros(1)})


def test_types_wrap_as_in_memory():
    small = Type("int8", 4)
    horizontal = Horizontal("mul", load("A", lit(0), small), Type("int8"))
    given = {"A": np.array([100, 2, 1, 1], np.int8), "Y": np.zeros(1, np.int8)}
    interpret(kernel("", "A:int8 >Y:int8", Store("Y", lit(0), horizontal)), {}, given)
    assert given["Y"].tolist() == [-56]


@pytest.mark.parametrize(
    ("stmt", "is_right"),
    [
        (Store("Y", var("b"), load("A", var("b"), F32)), True),
        (Store("Y", lit(0), load("A", var("b"), F32)), False),  # all chunks write one element
        (Store("Y", var("b"), load("Y", lit(0), F32)), False),  # one chunk writes what all read
    ],
    ids=str,
)
def test_chunks_that_meet(stmt, is_right):
    body = ParallelFor(var("b"), var("e"), lit(2), Block(()), stmt, lit(0))
    function = kernel("", "A:float32 >Y:float32", body)
    given = {"A": np.arange(6, dtype=np.float32), "Y": np.zeros(6, np.float32)}
    if is_right:
        interpret(function, {}, given, threads=2)
        assert given["Y"].tolist() == [0, 1, 0, 0, 0, 0]
        return
    with pytest.raises(AssertionError, match="two chunks of a parallel loop meet"):
        interpret(function, {}, given, threads=2)
