"""Bit-exact simplification.

In: `Y[i] = sum(i, sum(j, 1 * A[i,j]))`. Out: `Y[i] = sum(i, j, A[i,j])`.

The rules respect IEEE arithmetic: `x * 0` stays, because of NaN and infinity, and `x + 0` stays, because it turns -0
into 0.
"""

from math import copysign
from typing import TypeVar, cast

import numpy as np

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Call, Const, Expr, Index, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.compiler.ir.rewrite import fixpoint

N = TypeVar("N", bound=Node)


def simplify(node: N) -> N:
    """`node` rewritten by all rules of this module to a fixpoint."""
    return cast(N, fixpoint(node, *RULES))


def fold_constants(node: Node) -> Node | None:
    """`f(1, 2) -> Const(f(1, 2))`."""
    match node:
        case Call("neg", (Const(value),)) if not isinstance(value, bool):
            return Const(-value)
        case Call(name, args) if name in FUNCTIONS and all(isinstance(arg, Const) for arg in args):
            if FUNCTIONS[name].of_integers:
                return None
            values = [arg.value for arg in args if isinstance(arg, Const)]
            with np.errstate(all="ignore"):
                result = FUNCTIONS[name].evaluate(*_as_numbers(name, values))
            number = result.item() if isinstance(result, np.generic | np.ndarray) else result
            if all(type(value) is int for value in values) and FUNCTIONS[name].result == "promote":
                number = int(number) if float(number).is_integer() else number
            return Const(number)
    return None


def drop_one(node: Node) -> Node | None:
    """`x * 1 -> x`, `1 * x -> x`, `x / 1 -> x`, `x ** 1 -> x`."""
    match node:
        case Call("mul" | "div" | "pow", (x, Const(one))) if _is(one, 1):
            return x
        case Call("mul", (Const(one), x)) if _is(one, 1):
            return x
    return None


def drop_zero(node: Node) -> Node | None:
    """`x - 0 -> x`, `x + -0.0 -> x`, `-0.0 + x -> x`."""
    match node:
        case Call("sub", (x, Const(zero))) if _is_zero(zero, 1):
            return x
        case Call("add", (x, Const(zero))) | Call("add", (Const(zero), x)) if _is_zero(zero, -1):
            return x
    return None


def negate(node: Node) -> Node | None:
    """`--x -> x`, `x * -1 -> -x`, `x + -y -> x - y`, `x - -y -> x + y`, `-x * -y -> x * y`, also for `/`."""
    match node:
        case Call("neg", (Call("neg", (x,)),)):
            return x
        case Call("mul", (x, Const(one))) | Call("mul", (Const(one), x)) if _is(one, -1):
            return Call("neg", (x,))
        case Call("add", (x, Call("neg", (y,)))):
            return Call("sub", (x, y))
        case Call("sub", (x, Call("neg", (y,)))):
            return Call("add", (x, y))
        case Call("mul" | "div" as function, (Call("neg", (x,)), Call("neg", (y,)))):
            return Call(function, (x, y))
    return None


def drop_sign(node: Node) -> Node | None:
    """`square(-x) -> square(x)`, `abs(-x) -> abs(x)`, `square(abs(x)) -> square(x)`."""
    match node:
        case Call("square" | "abs" as function, (Call("neg", (x,)),)):
            return Call(function, (x,))
        case Call("square", (Call("abs", (x,)),)):
            return Call("square", (x,))
    return None


def repeat_once(node: Node) -> Node | None:
    """`f(f(x)) -> f(x)` for relu, abs and sign; `max(x, x) -> x` for min and max."""
    match node:
        case Call("relu" | "abs" | "sign" as outer, (Call(inner, _) as call,)) if outer == inner:
            return call
        case Call("min" | "max", (x, y)) if x == y:
            return x
    return None


def choose(node: Node) -> Node | None:
    """`where(True, x, y) -> x`, `where(False, x, y) -> y`, `where(c, x, x) -> x`."""
    match node:
        case Call("where", (Const(condition), x, y)):
            return x if condition else y
        case Call("where", (_, x, y)) if x == y:
            return x
    return None


def choose_once(node: Node) -> Node | None:
    """`where(c, f(where(c, x, y)), z) -> where(c, f(x), z)`, also for the other branch."""
    match node:
        case Call("where", (condition, yes, no)) if not isinstance(condition, Const):
            names = {index.name for index in find(condition, Index)}
            taken = _decided(yes, condition, 1, names), _decided(no, condition, 2, names)
            return None if taken == (yes, no) else Call("where", (condition, *taken))
    return None


def _decided(expr: Expr, condition: Expr, branch: int, names: set[str]) -> Expr:
    """`expr` under a known condition, given as the branch of `where` taken; `names` are its index variables."""

    def visit(node: Node) -> Node:
        if isinstance(node, Reduce) and names & set(node.indices):
            return node
        if isinstance(node, Call) and node.function == "where" and node.args[0] == condition:
            return visit(node.args[branch])
        return map_children(node, visit)

    return cast(Expr, visit(expr))


def square_power(node: Node) -> Node | None:
    """`x ** 2 -> square(x)`."""
    match node:
        case Call("pow", (x, Const(two))) if _is(two, 2):
            return Call("square", (x,))
    return None


def merge_reductions(node: Node) -> Node | None:
    """`sum(i, sum(j, x)) -> sum(i, j, x)`, for every monoid."""
    match node:
        case Reduce(outer, indices, Reduce(inner, more, body)) if outer == inner and outer in MONOIDS:
            return Reduce(outer, indices + more, body)
    return None


RULES = (
    fold_constants,
    drop_one,
    drop_zero,
    negate,
    drop_sign,
    repeat_once,
    choose,
    choose_once,
    square_power,
    merge_reductions,
)


def _as_numbers(name: str, values: list[float | int | bool]) -> list[float | int | bool]:
    """Constants as numpy arguments: integers as floats for a floating-point result."""
    if FUNCTIONS[name].result == "promote" and name != "pow":
        return values
    return [value if isinstance(value, bool) else float(value) for value in values]


def _is(value: float | bool, number: int) -> bool:
    """Whether a constant is a number, not a truth value, equal to `number`."""
    return not isinstance(value, bool) and value == number


def _is_zero(value: float | bool, sign: int) -> bool:
    """Whether a constant is the zero of this sign; the integer 0 is positive."""
    return _is(value, 0) and copysign(1.0, value) == sign
