"""The printed form and the C++ of whole kernels, read by people: golden files."""

import numpy as np
import pytest

from sparsify.compiler.cpp.codegen import emit
from sparsify.compiler.loops.nodes import (
    BOOL,
    AllocateOutput,
    Block,
    Broadcast,
    Comment,
    Convert,
    Declare,
    If,
    Op,
    ParallelFor,
    Set,
    Store,
    Transpose,
    Type,
    While,
)
from sparsify.compiler.loops.simplify import simplify
from tests.compiler.cpp.running import compare
from tests.compiler.loops.build import F32, I32, INT, add, block, kernel, lit, load, loop, mul, op, var

ROW, J, K, P = var("i"), var("j"), var("k"), var("p")


def coordinate(buffer, position):
    return Convert(load(buffer, position, I32), INT)


def spmm():
    """`Y[i,k] = relu(A[i,j] * T[j,k])` with two vectors of accumulators and a masked remainder."""
    vector = Type("float32", 8)
    k_extent = var("k_extent")

    def tile(vectors, count=None):
        sums = [var(f"w_{n}", vector) for n in range(vectors)]
        columns = [add(K, lit(8 * n)) for n in range(vectors)]
        steps = [
            Set(w, op("fma", Broadcast(load("A_vals", P, F32), vector), load("T_vals", at, vector, count), w))
            for w, at in zip(sums, [add(mul(J, k_extent), column) for column in columns], strict=True)
        ]
        return block(
            *(Declare(w, lit(0.0, vector), True) for w in sums),
            Comment("forall j in A2"),
            loop(
                "p",
                coordinate("A2_pos", ROW),
                coordinate("A2_pos", add(ROW, lit(1))),
                Declare(J, coordinate("A2_crd", P)),
                *steps,
            ),
            *(
                Store("Y_vals", add(mul(ROW, k_extent), column), op("relu", w), count)
                for w, column in zip(sums, columns, strict=True)
            ),
        )

    whole = mul(op("floordiv", k_extent, lit(16)), lit(16))
    rest = block(
        Declare(var("k_rest"), op("min", lit(8), op("sub", k_extent, K))),
        tile(1, var("k_rest")),
    )
    body = block(
        Comment("forall k in tiles of 16"),
        loop("k", lit(0), whole, tile(2), step=16),
        loop("k", whole, k_extent, rest, step=8),
    )
    region = ParallelFor(
        var("i_begin"),
        var("i_end"),
        var("i_extent"),
        Block(()),
        block(Comment("forall i in A1"), loop("i", var("i_begin"), var("i_end"), body)),
        mul(coordinate("A2_pos", var("i_extent")), k_extent),
        balance="A2_pos",
        chunks_per_thread=8,
        dynamic=True,
    )
    return kernel(
        "i_extent k_extent serial_threshold",
        "A2_pos:int32 A2_crd:int32 A_vals:float32 T_vals:float32 >Y_vals:float32",
        region,
        comment="Y[i,k] = relu(sum(j, A[i,j] * T[j,k]))",
    )


def merge():
    """Loops of `C[i] = A[i] + B[i]` of compressed vectors; the result is allocated at its largest size."""
    p, q, n = (var(name) for name in ("pA", "pB", "n"))
    a_end, b_end = var("pA_end"), var("pB_end")

    def emit_entry(crd, value, *steps):
        stores = (Store("C_crd", n, crd), Store("C_vals", n, value), Set(n, add(n, lit(1))))
        return block(*stores, *(Set(step, add(step, lit(1))) for step in steps))

    a, b = load("A_vals", p, F32), load("B_vals", q, F32)
    i, k = var("iA", I32), var("iB", I32)
    both = Op("logical_and", (op("lt", p, a_end), op("lt", q, b_end)), BOOL)
    return kernel(
        "",
        "A_pos:int32 A_crd:int32 A_vals:float32 B_pos:int32 B_crd:int32 B_vals:float32 "
        "*C_crd:int32 *C_vals:float32 >C_pos:int32",
        *(Declare(var(v), coordinate(b, lit(0)), True) for v, b in (("pA", "A_pos"), ("pB", "B_pos"))),
        *(Declare(var(v), coordinate(b, lit(1))) for v, b in (("pA_end", "A_pos"), ("pB_end", "B_pos"))),
        AllocateOutput("C_crd", "int32", add(a_end, b_end)),
        AllocateOutput("C_vals", "float32", add(a_end, b_end)),
        Declare(n, lit(0), True),
        Comment("A and B"),
        While(
            both,
            block(
                Declare(i, load("A_crd", p, I32)),
                Declare(k, load("B_crd", q, I32)),
                If(
                    op("eq", i, k),
                    emit_entry(i, add(a, b), p, q),
                    If(op("lt", i, k), emit_entry(i, a, p), emit_entry(k, b, q)),
                ),
            ),
        ),
        Comment("only A"),
        While(op("lt", p, a_end), emit_entry(load("A_crd", p, I32), a, p)),
        Comment("only B"),
        While(op("lt", q, b_end), emit_entry(load("B_crd", q, I32), b, q)),
        Store("C_pos", lit(1), Convert(n, I32)),
        comment="C[i] = A[i] + B[i]",
    )


def pack():
    """Tiles of 4 by 4 of `X[j,k]` transposed into panels."""
    vector = Type("float32", 4)
    rows = tuple(load("X", add(mul(add(J, lit(n)), var("k_extent")), K), vector) for n in range(4))
    columns = tuple(var(f"x_{n}", vector) for n in range(4))
    stores = [
        Store("P", add(mul(add(K, lit(n)), var("j_extent")), J), column) for n, column in enumerate(columns)
    ]
    tile = block(Transpose(columns, rows), *stores)
    loops = loop("j", lit(0), var("j_extent"), loop("k", lit(0), var("k_extent"), tile, step=4), step=4)
    return kernel(
        "j_extent k_extent", "X:float32 >P:float32", loops, comment="P[k,j] = X[j,k]", vector_bytes=16
    )


KERNELS = {"spmm": spmm, "merge": merge, "pack": pack}


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name, golden):
    function = simplify(KERNELS[name]())
    golden(f"loops/{name}.txt", str(function))
    golden(f"cpp/{name}.cpp", emit(function))


@pytest.mark.parametrize("name", KERNELS)
def test_text_is_the_same_each_time(name):
    assert emit(KERNELS[name]()) == emit(KERNELS[name]())


@pytest.mark.parametrize("columns", [1, 7, 8, 16, 21, 40])
def test_spmm(columns):
    random = np.random.default_rng(1)
    dense = (random.random((9, 6)) < 0.4) * random.integers(-3, 4, (9, 6)).astype(np.float32)
    dense = dense.astype(np.float32)
    row, column = np.nonzero(dense)
    table = random.integers(-4, 5, (6, columns)).astype(np.float32)
    arrays = {
        "A2_pos": np.searchsorted(row, np.arange(10)).astype(np.int32),
        "A2_crd": column.astype(np.int32),
        "A_vals": dense[row, column],
        "T_vals": table.ravel(),
        "Y_vals": np.full(9 * columns, 5, np.float32),
    }
    left = compare(simplify(spmm()), {"i_extent": 9, "k_extent": columns}, arrays)
    np.testing.assert_array_equal(left["Y_vals"].reshape(9, columns), np.maximum(dense @ table, 0))


def test_merge():
    arrays = {"A_pos": [0, 3], "A_crd": [1, 4, 6], "A_vals": [1, 2, 3], "B_pos": [0, 4]}
    arrays |= {"B_crd": [0, 4, 7, 9], "B_vals": [5, 6, 7, 8], "C_pos": [0, 0]}
    typed = {n: np.array(v, np.float32 if n.endswith("vals") else np.int32) for n, v in arrays.items()}
    left = compare(simplify(merge()), {}, typed)
    assert left["C_pos"].tolist() == [0, 6]
    assert left["C_crd"][:6].tolist() == [0, 1, 4, 6, 7, 9]
    assert left["C_vals"][:6].tolist() == [5, 1, 8, 3, 7, 8]


def test_pack():
    table = np.arange(8 * 12, dtype=np.float32)
    left = compare(simplify(pack()), {"j_extent": 8, "k_extent": 12}, {"X": table, "P": np.zeros_like(table)})
    np.testing.assert_array_equal(left["P"].reshape(12, 8), table.reshape(8, 12).T)
