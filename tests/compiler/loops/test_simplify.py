"""Before and after of each rewrite rule, and rows that must not change."""

import numpy as np
import pytest

from sparsify.compiler.ir.rewrite import fixpoint
from sparsify.compiler.loops.interpret import interpret
from sparsify.compiler.loops.nodes import (
    BOOL,
    Allocate,
    Block,
    Broadcast,
    Convert,
    Declare,
    Horizontal,
    If,
    Literal,
    Op,
    Set,
    Store,
    Type,
)
from sparsify.compiler.loops.simplify import ANY_RULE, simplify
from tests.compiler.loops.build import F32, I32, add, block, kernel, lit, load, loop, mul, op, var

ROW, J, N = var("i"), var("j"), var("n")
X = var("x", F32)
VECTOR = Type("float32", 8)
TRUE, FALSE = Literal(True, BOOL), Literal(False, BOOL)
LESS = op("lt", ROW, J)
DOT = Op("dot_bfloat16", (var("u", I32), var("v", I32)), F32)
QUADS = Op("dot_uint8_int8", DOT.args, I32)


def sub(x, y):
    return op("sub", x, y)


def both(x, y):
    return Op("logical_and", (x, y), BOOL)


def either(x, y):
    return Op("logical_or", (x, y), BOOL)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (add(lit(2), mul(lit(3), lit(4))), lit(14)),
        (op("floordiv", lit(-7), lit(2)), lit(-4)),
        (op("mod", lit(-7), lit(4)), lit(1)),
        (op("min", lit(2), lit(3)), lit(2)),
        (op("lt", lit(2), lit(3)), TRUE),
        (op("floordiv", lit(1), lit(0)), op("floordiv", lit(1), lit(0))),  # unchanged
        (add(lit(2), ROW), add(ROW, lit(2))),
        (Op("add", (X, DOT), F32), Op("add_dot_bfloat16", (*DOT.args, X), F32)),
        (Op("add", (var("s", I32), QUADS), I32), Op("add_dot_uint8_int8", (*QUADS.args, var("s", I32)), I32)),
        (Op("add", (DOT, X), F32), Op("add", (DOT, X), F32)),  # unchanged: a sum is on the left
        (add(ROW, lit(0)), ROW),
        (sub(ROW, lit(0)), ROW),
        (mul(lit(1), ROW), ROW),
        (op("floordiv", ROW, lit(1)), ROW),
        (op("floordiv", add(mul(ROW, lit(8)), lit(4)), lit(4)), add(mul(ROW, lit(2)), lit(1))),
        (op("floordiv", mul(ROW, lit(4)), lit(4)), ROW),
        (op("floordiv", mul(ROW, lit(6)), lit(4)), op("floordiv", mul(ROW, lit(6)), lit(4))),  # unchanged
        (op("mod", add(mul(ROW, lit(8)), lit(5)), lit(4)), lit(1)),
        (op("mod", add(mul(ROW, lit(6)), lit(5)), lit(4)), op("mod", add(mul(ROW, lit(6)), lit(5)), lit(4))),
        (op("mod", ROW, lit(1)), lit(0)),
        (mul(ROW, lit(0)), lit(0)),
        (sub(ROW, ROW), lit(0)),
        (add(add(ROW, lit(1)), lit(2)), add(ROW, lit(3))),
        (add(add(ROW, lit(1)), J), add(add(ROW, J), lit(1))),
        (add(add(ROW, lit(1)), lit(-3)), sub(ROW, lit(2))),
        (sub(sub(ROW, lit(1)), lit(2)), sub(ROW, lit(3))),
        (add(sub(ROW, lit(1)), lit(1)), ROW),
        (mul(mul(ROW, lit(2)), lit(8)), mul(ROW, lit(16))),
        (op("max", ROW, ROW), ROW),
        (op("where", LESS, ROW, ROW), ROW),
        (both(TRUE, LESS), LESS),
        (both(LESS, FALSE), FALSE),
        (either(TRUE, LESS), TRUE),
        (either(LESS, FALSE), LESS),
        (Op("logical_not", (TRUE,), BOOL), FALSE),
        (op("where", FALSE, ROW, J), J),
        (Convert(ROW, ROW.type), ROW),
        (Convert(lit(3, I32), ROW.type), lit(3)),
        (Convert(load("A", ROW, I32), ROW.type), Convert(load("A", ROW, I32), ROW.type)),  # unchanged
        (load("A", ROW, VECTOR, lit(8)), load("A", ROW, VECTOR)),
        (load("A", ROW, VECTOR, lit(7)), load("A", ROW, VECTOR, lit(7))),  # unchanged
        (Broadcast(X, F32), X),
        (Horizontal("add", X, F32), X),
        # Adding zero turns -0.0 into 0.0, and NaN * 0 is NaN.
        (add(X, lit(0.0, F32)), add(X, lit(0.0, F32))),
        (mul(X, lit(0.0, F32)), mul(X, lit(0.0, F32))),
        (op("sub", X, X), op("sub", X, X)),
    ],
    ids=str,
)
def test_expressions(before, after):
    assert fixpoint(before, ANY_RULE) == after


STORE = Store("Y", ROW, lit(1.0, F32))
OTHER = Store("Y", J, lit(2.0, F32))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (block(block(STORE, block(OTHER)), STORE), block(STORE, OTHER, STORE)),
        (block(block(STORE)), STORE),
        (Store("Y", ROW, lit(1.0, VECTOR), lit(9)), Store("Y", ROW, lit(1.0, VECTOR))),
        (loop("i", lit(3), lit(3), STORE), block()),
        (loop("i", lit(0), N), block()),
        (If(LESS, block()), block()),
        (If(LESS, STORE, block()), If(LESS, STORE)),
    ],
    ids=str,
)
def test_statements(before, after):
    assert fixpoint(before, ANY_RULE) == after


def simplified(*body):
    return simplify(kernel("n i j", "A:float32 >Y:float32", *body)).body


def test_single_trip():
    body = loop("k", lit(2), lit(4), Store("Y", var("k"), lit(1.0, F32)), step=2)
    assert simplified(body) == Store("Y", lit(2), lit(1.0, F32))
    twice = loop("k", lit(2), lit(4), Store("Y", var("k"), lit(1.0, F32)))
    assert simplified(twice) == fixpoint(twice, ANY_RULE)


def test_branches():
    assert simplified(If(op("lt", lit(1), lit(2)), STORE, OTHER)) == STORE
    assert simplified(If(op("lt", lit(2), lit(1)), STORE, OTHER)) == OTHER
    assert simplified(STORE, If(FALSE, OTHER)) == STORE


def test_definitions_do_not_meet():
    """Two single-iteration loops with the same local name are not unrolled, since their bodies would share a scope."""
    x = Declare(var("x", F32), load("A", ROW, F32), True)
    body = [x, Set(X, add(X, X)), Store("Y", ROW, X)]
    kept = simplified(loop("k", lit(0), lit(1), *body), loop("k", lit(0), lit(1), *body))
    assert isinstance(kept, Block) and len(kept.statements) == 2
    scratch = loop("k", lit(0), lit(1), Allocate("w", "float32", N), Store("w", lit(0), lit(1.0, F32)))
    assert simplified(scratch) == scratch


def test_copies_and_unused():
    body = [
        Declare(var("k"), lit(3)),
        Declare(var("m"), var("k")),
        Declare(var("c"), N),
        Declare(var("unused"), load("A", ROW, F32).index),
        Store("Y", add(mul(var("m"), N), var("c")), lit(1.0, F32)),
    ]
    assert simplified(*body) == Store("Y", add(mul(N, lit(3)), N), lit(1.0, F32))
    mutable = [Declare(var("k"), lit(3), True), Set(var("k"), N), Store("Y", var("k"), lit(1.0, F32))]
    assert simplified(*mutable) == block(*mutable)


def test_nothing_to_do_keeps_the_object():
    function = kernel("i", ">Y:float32", STORE, STORE)
    assert simplify(function) is function


def test_meaning_stays():
    """A kernel with something for every rule writes the same before and after."""
    inner = [
        Declare(var("k"), add(mul(ROW, lit(1)), lit(0))),
        Declare(var("t"), add(add(var("k"), lit(1)), lit(-1))),
        If(both(TRUE, op("ge", var("t"), lit(2))), Store("Y", var("t"), load("A", var("k"), F32))),
        loop("u", lit(1), lit(2), Store("Y", op("mod", add(var("t"), var("u")), lit(6)), lit(4.0, F32))),
    ]
    function = kernel("", "A:float32 >Y:float32", loop("i", lit(0), lit(6), *inner))
    outputs = []
    for version in (function, simplify(function)):
        given = {"A": np.arange(6, dtype=np.float32), "Y": np.zeros(6, np.float32)}
        interpret(version, {}, given)
        outputs.append(given["Y"].tolist())
    assert outputs[0] == outputs[1] and any(outputs[0])
    assert len(str(simplify(function)).splitlines()) < len(str(function).splitlines())
