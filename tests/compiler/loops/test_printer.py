"""The textbook form of single expressions and statements; whole kernels are in tests/golden/loops."""

import pytest

from sparsify.compiler.loops.nodes import (
    BOOL,
    Allocate,
    Block,
    Broadcast,
    Comment,
    Convert,
    Fill,
    Gather,
    Horizontal,
    If,
    Lanes,
    Op,
    ParallelFor,
    Prefetch,
    Scatter,
    Store,
    Type,
    While,
)
from tests.compiler.loops.build import F32, INT, add, block, kernel, lit, load, loop, mul, op, var

J, N, P = var("j"), var("n"), var("p")
VECTOR = Type("float32", 8)
INDICES = load("I", P, Type("int32", 8))
STORE = Store("Y", P, load("A", P, VECTOR), N)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (mul(add(J, lit(1)), N), "(j + 1) * n"),
        (add(J, mul(lit(1), N)), "j + 1 * n"),
        (op("sub", J, op("sub", N, P)), "j - (n - p)"),
        (op("neg", add(J, N)), "-(j + n)"),
        (Op("logical_and", (op("lt", J, N), op("ne", P, N)), BOOL), "j < n and p != n"),
        (op("where", op("lt", J, N), J, N), "where(j < n, j, n)"),
        (Convert(load("A", P, Type("int32")), INT), "int64(A[p])"),
        (Broadcast(load("A", P, F32), VECTOR), "float32x8(A[p])"),
        (lit(0.5, VECTOR), "0.5x8"),
        (Lanes(P, Type("int64", 4)), "p..4"),
        (load("A", add(P, lit(1)), VECTOR), "A[p + 1 ..8]"),
        (load("A", P, VECTOR, N), "A[p ..8 if < n]"),
        (Gather("A", INDICES, VECTOR, N), "A[I[p ..8] if < n]"),
        (Horizontal("add", var("w", VECTOR), F32), "horizontal add(w)"),
        (STORE, "Y[p ..8 if < n] = A[p ..8]"),
        (Scatter("Y", INDICES, var("w", VECTOR)), "Y[I[p ..8]] = w"),
        (Allocate("w", "float32", N, 0.0), "scratch w: float32[n] = 0.0"),
        (Fill("w", lit(0), add(N, P), lit(1.0, F32)), "fill w[0 ..(n + p)] = 1.0"),
        (Prefetch("A", P), "prefetch A[p]"),
        (While(op("lt", P, N), block()), "while p < n:\n  pass"),
        (If(op("lt", P, N), STORE, Comment("x\ny")), f"if p < n:\n  {STORE}\nelse:\n  # x\n  # y"),
        (loop("p", lit(0), N, STORE, step=8), f"for p in 0..n step 8:\n  {STORE}"),
    ],
    ids=str,
)
def test_text(node, text):
    assert str(node) == text


def test_parallel():
    region = ParallelFor(
        var("b"), var("e"), N, Block((Prefetch("A", lit(0)),)), STORE, mul(N, N), "A2_pos", 4, 8, True
    )
    assert str(region).splitlines() == [
        "parallel b, e in chunks(0..n by A2_pos + 4 * rows), dynamic 8, work n * n:",
        "  setup:",
        "    prefetch A[0]",
        f"  {STORE}",
    ]


def test_kernel():
    function = kernel("n p", "A:float32 >Y:float32 *G:int32", STORE, comment="Y[i] = A[i]")
    assert str(function).splitlines()[:2] == [
        "# Y[i] = A[i]",
        "kernel(n, p, A: float32, out Y: float32, grown G: int32), vectors of 32 bytes:",
    ]
