"""Functions and monoids that users add, as index notation.

In: `register_function("huber", "where(abs(x) < 1, x*x/2, abs(x) - 0.5)", args=("x",))`. Out: `huber` in
programs, with an evaluation and a derivative that follow from its body.
"""

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np

from sparsify.compiler.einsum.functions import FUNCTIONS, Function, argument_names
from sparsify.compiler.einsum.monoids import MONOIDS, Monoid
from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr, Index
from sparsify.compiler.einsum.parse import parse_expression
from sparsify.compiler.einsum.rename import substitute_scalars
from sparsify.compiler.einsum.values import Tensor, evaluate
from sparsify.compiler.node import Node, map_children, walk
from sparsify.errors import EinsumError

N = TypeVar("N", bound=Node)


def register_function(name: str, body: str, args: Sequence[str] = ("x",)) -> Function:
    """Adds a function to index notation, its body being an expression over `args` alone.

    Raises:
        EinsumError: the name is taken or not a name, or the body reads something else than its arguments.
        ParseError: the body is not an expression.
    """
    if name in FUNCTIONS or name in MONOIDS or name in ("stored", "inf", "nan") or not name.isidentifier():
        raise EinsumError(
            f"a function cannot be called {name!r}: the name is taken or not a name; choose another"
        )
    if not 1 <= len(args) <= 3:
        raise EinsumError(f"{name} has {len(args)} arguments; a function has one to three")
    own = argument_names(len(args))
    expr = _body(name, body, dict(zip(args, own, strict=True)))

    def compute(*values: Any) -> Any:
        arrays = [np.asarray(value) for value in values]
        tensors = {n: Tensor(a, np.ones(a.shape, dtype=bool)) for n, a in zip(own, arrays, strict=True)}
        return evaluate(expr, {}, tensors).values

    FUNCTIONS[name] = Function(name, len(args), compute, (None,) * len(args), body=str(expr))
    return FUNCTIONS[name]


def register_monoid(name: str, combine: str, identity: float | bool) -> Monoid:
    """Adds a reduction `name(k, ...)` and the assignment `name=`.

    Args:
        combine: a function of two arguments, by name or as an expression over `x` and `y`; it has to be
            associative and commutative, and `identity` neutral.

    Raises:
        EinsumError: the name is taken, `combine` takes other arguments, or `identity` changes a value.
    """
    if name in MONOIDS or name in FUNCTIONS or not name.isidentifier():
        raise EinsumError(
            f"a monoid cannot be called {name!r}: the name is taken or not a name; choose another"
        )
    if combine not in FUNCTIONS:
        combine = register_function(f"{name}_combine", combine, args=("x", "y")).name
    function = FUNCTIONS[combine]
    if function.arity != 2:
        raise EinsumError(f"{combine} takes {function.arity} arguments; a monoid combines two values")
    for value in (0.5, -2.0, 1.0):
        if function.evaluate(np.float64(value), np.float64(identity)) != value:
            raise EinsumError(
                f"{identity} is not neutral in {name}: {combine}({value}, {identity}) is not {value}"
            )
    MONOIDS[name] = Monoid(name, combine, identity, None, f"{name}=")
    return MONOIDS[name]


def expand_functions(node: N) -> N:
    """`node` with calls of registered functions replaced by their bodies."""

    def visit(current: Node) -> Node:
        current = map_children(current, visit)
        if isinstance(current, Call) and current.function in FUNCTIONS and FUNCTIONS[current.function].body:
            function = FUNCTIONS[current.function]
            names = argument_names(function.arity)
            body = parse_expression(function.body)
            return visit(substitute_scalars(body, dict(zip(names, current.args, strict=True))))
        return current

    return cast(N, visit(node))


def _body(name: str, text: str, names: dict[str, str]) -> Expr:
    """The body of a function with its arguments under their own names."""
    expr = parse_expression(text)
    for node in walk(expr):
        if isinstance(node, Access) and (node.indices or node.tensor not in names):
            raise EinsumError(f"{name} reads {node}, which is not one of its arguments {', '.join(names)}")
        if isinstance(node, Call) and (
            node.function not in FUNCTIONS or FUNCTIONS[node.function].arity != len(node.args)
        ):
            raise EinsumError(
                f"{name} calls {node}, which is not a known function of {len(node.args)} arguments"
            )
        if not isinstance(node, (Access, Call, Const)) or isinstance(node, Index):
            raise EinsumError(
                f"{name} contains {node}; the body of a function has arguments, numbers and calls alone"
            )
    return substitute_scalars(expr, {arg: Access(own) for arg, own in names.items()})
