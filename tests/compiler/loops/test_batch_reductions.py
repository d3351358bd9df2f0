"""Horizontal reductions that are neighbours become one tree."""

import numpy as np
import pytest

from sparsify.compiler.ir.node import walk
from sparsify.compiler.loops.batch_reductions import together
from sparsify.compiler.loops.interpret import interpret
from sparsify.compiler.loops.nodes import Block, Declare, Horizontal, HorizontalTogether, Op, Set, Store, Type
from tests.compiler.cpp.running import compare
from tests.compiler.loops.build import kernel, lit, load, var


def sums(function: str, dtype: str, lanes: int, count: int, targets: int):
    """`w_n = w_n + horizontal add(A[lanes * n ..lanes])`, `count` of them into `targets` variables."""
    scalar, vector = Type(dtype), Type(dtype, lanes)
    accumulators = [var(f"w_{n}", scalar) for n in range(targets)]
    start = {"add": 0, "mul": 1, "max": -9, "min": 9}[function]
    body = [Declare(w, lit(start, scalar), True) for w in accumulators]
    for n in range(count):
        w = accumulators[n % targets]
        part = Horizontal(function, load("A", lit(lanes * n), vector), scalar)
        body.append(Set(w, Op(function, (w, part), scalar)))
    body += [Store("Y", lit(n), w) for n, w in enumerate(accumulators)]
    return kernel("", f"A:{dtype} >Y:{dtype}", Block(tuple(body)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("function", ["add", "mul", "min", "max"])
@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 4), ("float32", 8), ("float64", 4)])
@pytest.mark.parametrize(("count", "targets"), [(7, 7), (8, 4), (8, 8), (3, 1)])
def test_results_stay(function, dtype, lanes, count, targets):
    before = sums(function, dtype, lanes, count, targets)
    numbers = np.random.default_rng(0).integers(1, 3, lanes * count).astype(dtype)
    expected = {"A": numbers, "Y": np.zeros(targets, dtype)}
    found = compare(together(before), {}, expected)["Y"]
    interpret(before, {}, expected)
    np.testing.assert_array_equal(found, expected["Y"])


@pytest.mark.parametrize(
    ("count", "targets", "groups"), [(4, 4, [4]), (7, 7, [4, 2]), (8, 4, [4]), (1, 1, [])]
)
def test_groups(count, targets, groups):
    function = together(sums("add", "float32", 8, count, targets))
    found = [len(n.outputs) for n in walk(function.body) if isinstance(n, HorizontalTogether)]
    assert found == groups


def test_a_sum_that_reads_another_waits():
    scalar, vector = Type("float32"), Type("float32", 8)
    w, x = var("w", scalar), var("x", scalar)
    spread = Op(
        "mul", (load("A", lit(0), vector), Op("add", (load("A", lit(8), vector),) * 2, vector)), vector
    )
    first = Set(w, Op("add", (w, Horizontal("add", spread, scalar)), scalar))
    second = Set(x, Op("add", (x, Horizontal("max", spread, scalar)), scalar))
    body = Block((Declare(w, lit(0, scalar), True), Declare(x, lit(0, scalar), True), first, second))
    function = kernel("", "A:float32", body)
    assert together(function) is function
