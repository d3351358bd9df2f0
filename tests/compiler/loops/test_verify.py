"""One ill-formed kernel per rule."""

import pytest

from sparsify.compiler.loops.nodes import (
    Allocate,
    AllocateOutput,
    Block,
    Broadcast,
    Convert,
    Declare,
    Fill,
    Gather,
    Horizontal,
    If,
    Lanes,
    Op,
    ParallelFor,
    Return,
    Scatter,
    Set,
    Store,
    Transpose,
    Type,
    While,
)
from sparsify.compiler.loops.verify import verify
from tests.compiler.loops.build import F32, F64, I32, INT, add, kernel, lit, load, loop, op, var

P, N = var("p"), var("n")
VECTOR = Type("float32", 4)
ONE = lit(1.0, F32)
PAIR = lit(1, I32)
SIZES = "n serial_threshold"
BUFFERS = "A:float32 I:int32 >Y:float32 *G:float32"


def parallel(*body, setup=(), **changes):
    return ParallelFor(var("b"), var("e"), N, Block(setup), Block(body), N, **changes)


ILL_FORMED = [
    ([Set(var("x", F32), ONE)], "x is used before it is defined"),
    ([Declare(var("x", F32), ONE), Set(var("x", F32), ONE)], "not mutable"),
    ([Declare(var("x", F32), ONE), Declare(var("x", F32), ONE)], "x is defined twice"),
    ([Declare(var("x", F64), ONE)], "value of type float32"),
    (
        [loop("p", lit(0), N, Declare(var("x", F32), ONE)), Store("Y", N, var("x", F32))],
        "before it is defined",
    ),
    ([Store("Y", var("n", I32), ONE)], "n is int64, used as int32"),
    ([Store("Y", lit(0.0, F32), ONE)], "not a scalar integer"),
    ([Store("Y", lit(0), lit(1.0, F64))], "writes float64"),
    ([Store("A", lit(0), ONE)], "writes to the input A"),
    ([Store("Q", lit(0), ONE)], "no buffer Q"),
    ([Store("Y", lit(0), load("A", lit(0), F64))], "reads float32 as float64"),
    ([Store("Y", lit(0), lit(1.0, VECTOR), lit(0.5, F32))], "not a scalar integer"),
    ([Store("Y", lit(0), Gather("A", load("I", lit(0), Type("int32", 2)), VECTOR))], "for 4 lanes"),
    ([Scatter("Y", lit(0.0, VECTOR), lit(1.0, VECTOR))], "for 4 lanes"),
    ([Fill("Y", lit(0), N, lit(0))], "writes int64 to float32"),
    ([Store("Y", lit(0), Op("add", (ONE, lit(1)), F32))], "operands of types float32, int64"),
    ([Store("Y", lit(0), Op("add", (ONE,), F32))], "add takes 2 operands"),
    ([Store("Y", lit(0), Op("frobnicate", (ONE,), F32))], "unknown function frobnicate"),
    ([Store("Y", lit(0), Op("lookup", (N, lit(1.0, VECTOR)), VECTOR))], "needs a number for each lane"),
    (
        [
            Declare(
                var("x", Type("bool", 4)),
                Op("lookup", (Lanes(lit(0), Type("int64", 4)), lit(True, Type("bool", 4))), Type("bool", 4)),
            )
        ],
        "no masks",
    ),
    ([Store("Y", lit(0), Op("dot_bfloat16", (ONE, ONE), F32))], "operands of types float32, float32"),
    (
        [Store("Y", lit(0), Op("add_dot_bfloat16", (PAIR, PAIR, N), F32))],
        "operands of types int32, int32, int64",
    ),
    ([Store("Y", lit(0), Op("dot_uint8_int8", (PAIR, PAIR), F32))], "of type float32"),
    ([Store("Y", lit(0), Op("where", (N, ONE, ONE), F32))], "operands of types int64"),
    ([Declare(var("x"), op("div", N, N))], "operands of types int64, int64"),
    ([Declare(var("x"), op("exp", N))], "operands of types int64"),
    ([Declare(var("x", F32), Op("lt", (ONE, ONE), F32))], "of type float32"),
    ([Declare(var("x"), lit(0.5))], "0.5 is no int64"),
    ([Store("Y", lit(0), Convert(lit(1, Type("int32", 2)), VECTOR))], "number of lanes"),
    ([Store("Y", lit(0), Broadcast(N, VECTOR))], "needs a scalar float32"),
    ([Declare(var("x", Type("int32", 4)), Lanes(N, Type("int32", 4)))], "needs a scalar int32"),
    ([Store("Y", lit(0), Horizontal("sub", lit(1.0, VECTOR), F32))], "combines lanes by sub"),
    ([Store("Y", lit(0), Horizontal("add", lit(1.0, VECTOR), F64))], "makes float64"),
    ([Transpose((var("a", VECTOR),), (lit(1.0, VECTOR),))], "as many rows as lanes"),
    ([Transpose((var("a", F64),), (ONE,))], "mixes types"),
    ([While(N, Block(()))], "no scalar bool"),
    ([If(N, Block(()))], "no scalar bool"),
    ([loop("p", lit(0), N, step=0)], "positive step"),
    ([Allocate("A", "float32", N)], "takes a name in use"),
    ([AllocateOutput("Y", "float32", N)], "no grown output"),
    ([AllocateOutput("G", "float64", N)], "differs from the declared float32"),
    ([parallel(Return(1))], "a parallel loop returns"),
    ([parallel(parallel())], "lies in another"),
    ([parallel(AllocateOutput("G", "float32", N))], "lies in a parallel loop"),
    ([Declare(var("x"), N, True), parallel(Set(var("x"), N))], "not mutable here"),
    ([parallel(balance="A")], "balances a loop but is float32"),
    ([parallel(setup=(Store("Y", var("b"), ONE),))], "b is used before it is defined"),
]


@pytest.mark.parametrize(("body", "message"), ILL_FORMED, ids=[message for _, message in ILL_FORMED])
def test_refused(body, message):
    with pytest.raises(AssertionError, match=message.replace("(", r"\(")):
        verify(kernel(SIZES, BUFFERS, *body))


def test_parallel_needs_a_threshold():
    with pytest.raises(AssertionError, match="serial_threshold"):
        verify(kernel("n", BUFFERS, parallel()))


def test_arguments_are_distinct():
    with pytest.raises(AssertionError, match="two arguments are called A"):
        verify(kernel("A", "A:float32"))
    with pytest.raises(AssertionError, match="unknown dtype quint8"):
        verify(kernel("", "A:quint8"))


def test_accepted():
    """Inner definitions end with their block; a region sees outer definitions and its own set-up."""
    inner = [Declare(var("x"), N, True), Set(var("x"), add(var("x"), INT_ONE)), Store("Y", var("x"), ONE)]
    region = parallel(
        loop("p", var("b"), var("e"), Store("Y", P, load("w", lit(0), F32))),
        setup=(Allocate("w", "float32", N, 0.0),),
        balance="I",
    )
    verify(
        kernel(SIZES, BUFFERS, loop("p", lit(0), N, *inner), loop("p", lit(0), N, *inner), region, Return(0))
    )


INT_ONE = lit(1, INT)
