"""Vectors read by several sums are loaded once, if registers allow it."""

import numpy as np
import pytest

from sparsify.compiler.ir.node import find
from sparsify.compiler.loops.hoist_loads import hold
from sparsify.compiler.loops.nodes import Block, Declare, Load, Op, Set, Store, Type
from tests.compiler.cpp.running import compare
from tests.compiler.loops.build import kernel, lit, load, var


def tile(rows: int, vectors: int, dtype: str = "float32", lanes: int = 4):
    """`w_r_v = A[r] * B[v ..lanes] + w_r_v` for all rows and vectors, stored in Y."""
    vector = Type(dtype, lanes)
    sums = {(r, v): var(f"w_{r}_{v}", vector) for r in range(rows) for v in range(vectors)}
    body = [Declare(w, lit(0, vector), True) for w in sums.values()]
    for (_, v), w in sums.items():
        body.append(
            Set(w, Op("fma", (load("A", lit(0), vector), load("B", lit(lanes * v), vector), w), vector))
        )
    body += [Store("Y", lit(lanes * n), w) for n, w in enumerate(sums.values())]
    return kernel("", f"A:{dtype} B:{dtype} >Y:{dtype}", Block(tuple(body)))


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 4), ("float32", 8), ("float64", 4), ("float64", 8)])
def test_results_stay(dtype, lanes):
    function = hold(tile(3, 2, dtype, lanes))
    numbers = np.random.default_rng(0).integers(1, 5, 2 * lanes).astype(dtype)
    operands = {"A": numbers[:lanes], "B": numbers, "Y": np.zeros(6 * lanes, dtype)}
    found = compare(function, {}, operands)["Y"].reshape(3, 2, lanes)
    assert (found == numbers[:lanes] * numbers.reshape(2, lanes)).all()


@pytest.mark.parametrize(
    ("rows", "vectors", "loads"),
    [(4, 2, 3), (2, 1, 2), (6, 2, 3), (1, 1, 2), (7, 2, 28), (16, 1, 32)],
)
def test_loads(rows, vectors, loads):
    assert len(find(hold(tile(rows, vectors)).body, Load)) == loads


def test_what_changes_between_sums_is_not_held():
    vector, count = Type("float32", 4), var("n", Type("int64"))
    w, x = var("w", vector), var("x", vector)
    moving = load("A", count, vector)
    sums = [
        Set(w, Op("add", (w, moving), vector)),
        Set(count, lit(4)),
        Set(x, Op("add", (x, moving), vector)),
    ]
    start = [Declare(w, lit(0, vector), True), Declare(x, lit(0, vector), True), Declare(count, lit(0), True)]
    function = kernel("", "A:float32", Block((*start, *sums)))
    assert hold(function) is function
