"""Parallel loops: every row is run once, for all policies, numbers of threads and shapes of work."""

import numpy as np
import pytest

from sparsify.compiler.loops.nodes import Allocate, Block, Convert, Declare, ParallelFor, Store, Type
from tests.compiler.cpp.running import compare, run_compiled
from tests.compiler.loops.build import F32, INT, add, kernel, lit, load, loop, op, var

ROW, J, N = var("i"), var("j"), var("n")
POLICIES = {
    "static": {},
    "pieces": {"chunks_per_thread": 3},
    "balanced": {"balance": "pos"},
    "by positions": {"balance": "pos", "row_cost": 0},
    "dynamic": {"balance": "pos", "chunks_per_thread": 8, "dynamic": True},
}


def sum_rows(scratch=16, pos="int32", **policy):
    """Row sums through a scratch row per thread."""
    row = loop(
        "j",
        Convert(load("pos", ROW, Type(pos)), INT) if pos != "int64" else load("pos", ROW, INT),
        Convert(load("pos", add(ROW, lit(1)), Type(pos)), INT)
        if pos != "int64"
        else load("pos", add(ROW, lit(1)), INT),
        Store("w", lit(0), add(load("w", lit(0), F32), load("A", J, F32))),
    )
    body = loop(
        "i",
        var("i_begin"),
        var("i_end"),
        Store("w", lit(0), lit(0.0, F32)),
        row,
        Store("Y", ROW, add(load("Y", ROW, F32), load("w", lit(0), F32))),
    )
    setup = Block((Allocate("w", "float32", lit(scratch)),))
    region = ParallelFor(var("i_begin"), var("i_end"), N, setup, body, N, **policy)
    return kernel("n serial_threshold", f"pos:{pos} A:float32 >Y:float32", region)


def rows(lengths, pos="int32"):
    positions = np.concatenate([[0], np.cumsum(lengths)]).astype(pos)
    values = np.arange(positions[-1], dtype=np.float32)
    return {"pos": positions, "A": values, "Y": np.ones(len(lengths), np.float32)}


@pytest.mark.parametrize("scratch", [16, 100_000], ids=["stack", "heap"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_row_once(policy, scratch):
    function = sum_rows(scratch, **POLICIES[policy])
    for lengths in ([3, 0, 5, 1, 0, 2, 9], [0, 0, 0, 40, 0, 0], [1], [], [0, 0, 0]):
        for threads in (1, 2, 3):
            compare(function, {"n": len(lengths)}, rows(lengths), threads)


def test_wide_positions():
    compare(sum_rows(pos="int64", balance="pos"), {"n": 3}, rows([2, 0, 4], "int64"))


def test_small_work_is_serial():
    """Below the threshold one thread makes all chunks, so each runs the set-up once."""
    setup = Block((Declare(var("t"), load("Y", lit(0), INT)), Store("Y", lit(0), add(var("t"), lit(1)))))
    region = ParallelFor(var("i_begin"), var("i_end"), N, setup, Block(()), N)
    function = kernel("n serial_threshold", ">Y:int64", region)
    counted = {"Y": np.zeros(1, np.int64)}
    assert run_compiled(function, {"n": 9, "serial_threshold": 10}, counted, threads=2).status == 0
    assert counted["Y"].tolist() == [1]


@pytest.mark.parametrize("threads", [1, 2])
def test_no_memory_in_a_thread(threads):
    # Filled and read at an unknown place, so that no compiler drops the memory.
    setup = Block((Allocate("w", "float32", lit(2**58), 2.0),))
    body = loop("i", var("i_begin"), var("i_end"), Store("Y", ROW, load("w", load("pos", ROW, INT), F32)))
    region = ParallelFor(var("i_begin"), var("i_end"), N, setup, body, N)
    function = kernel("n serial_threshold", "pos:int64 >Y:float32", region)
    arrays = {"pos": np.array([5]), "Y": np.zeros(1, np.float32)}
    assert run_compiled(function, {"n": 1, "serial_threshold": 0}, arrays, threads).status == 1


def test_captured_variables():
    """A parallel region captures outer scalars, vectors and masks, and scratch memory allocated before it."""
    vector, mask = Type("float32", 4), Type("bool", 4)
    at = op("mul", ROW, lit(4))
    chosen = op("where", var("m", mask), var("v", vector), load("w", lit(0), vector))
    body = loop("i", var("i_begin"), var("i_end"), Store("Y", at, chosen))
    function = kernel(
        "n serial_threshold",
        "A:float32 >Y:float32",
        Allocate("w", "float32", N, 5.0),
        Declare(var("v", vector), load("A", lit(0), vector), True),
        Declare(var("m", mask), op("gt", var("v", vector), lit(0.0, vector))),
        ParallelFor(var("i_begin"), var("i_end"), N, Block(()), body, N),
    )
    arrays = {"A": np.array([1, -1, 2, -2], np.float32), "Y": np.zeros(20, np.float32)}
    left = compare(function, {"n": 5}, arrays)
    assert left["Y"].tolist() == [1, 5, 2, 5] * 5
