"""User-defined functions and monoids, as index notation.

In: `register_function("huber", "where(abs(x) < 1, x*x/2, abs(x) - 0.5)", args=("x",))`. Out: `huber` in
programs, with an evaluation and a derivative derived from its body.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any, Final, TypeVar, cast

import numpy as np

from sparsify.compiler.einsum.functions import FUNCTIONS, Function, argument_names
from sparsify.compiler.einsum.monoids import MONOIDS, Monoid
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Program, Reduce
from sparsify.compiler.einsum.rename import substitute_scalars
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.compiler.einsum.values import Tensor, evaluate
from sparsify.compiler.ir.node import Node, children, find, map_children, walk
from sparsify.errors import EinsumError

N = TypeVar("N", bound=Node)
RESERVED: Final = ("stored", "extent", "inf", "nan", "True", "False")
MAX_NODES: Final = 10_000
BUILT_IN: Final = dict(MONOIDS)


def register_function(name: str, body: str, args: Sequence[str] = ("x",)) -> Function:
    """Adds a function to index notation, with an expression over `args` as its body.

    Derivative, effect on fills and C++ derive from the body; no text of the body reaches C++.

    Args:
        name: unused identifier. Registering the same function again changes nothing.
        body: index notation over the arguments: numbers, operators and existing functions.
        args: names of one to three arguments.

    Raises:
        EinsumError: the name is taken or invalid, the body reads or calls something unknown, itself included, or is too
            long after inlining all functions.
        ParseError: the body is not an expression.

    >>> register_function("huber", "where(abs(x) < 1, x*x/2, abs(x) - 0.5)").name
    'huber'
    """
    _require_texts(name, body)
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise EinsumError(f"the arguments {args!r} of {name}", 'a list of names, ("x",)')
    _require_texts(*args)
    expr = parse_expression(body)
    if not 1 <= len(args) <= 3:
        raise EinsumError(f"{name} has {len(args)} arguments; a function has one to three")
    twice = next((arg for n, arg in enumerate(args) if arg in args[:n] or not arg.isidentifier()), None)
    if twice is not None:
        raise EinsumError(f"the argument {twice!r} of {name} is there twice or not a name; choose another")
    own = argument_names(len(args))
    expr = _checked(name, expr, dict(zip(args, own, strict=True)))
    text = str(expand_functions(expr))
    known = FUNCTIONS.get(name)
    if known is not None and known.body == text and known.arity == len(args):
        return known
    _require_free("a function", name)

    def compute(*values: Any) -> Any:
        arrays = [np.asarray(value) for value in values]
        tensors = {n: Tensor(a, np.ones(a.shape, dtype=bool)) for n, a in zip(own, arrays, strict=True)}
        return evaluate(expr, {}, tensors).values

    FUNCTIONS[name] = Function(name, len(args), compute, (None,) * len(args), body=text)
    return FUNCTIONS[name]


def register_monoid(name: str, combine: str, identity: float | bool) -> Monoid:
    """Adds a reduction `name(k, ...)` and the assignment `name=`.

    Args:
        name: unused identifier. Registering the same monoid again changes nothing.
        combine: function of two arguments, by name or as an expression over two names such as `x` and `y`; it has to be
            associative and commutative, and `identity` neutral.
        identity: value of an empty reduction.

    Gradients exist for a monoid whose `combine` is one of `add mul min max`; others raise.

    Raises:
        EinsumError: the name is taken, `combine` takes other arguments, or `identity` changes a value.
        ParseError: `combine` is not an expression.

    >>> register_monoid("longest", "where(abs(x) < abs(y), y, x)", 0).assign
    'longest='
    """
    _require_texts(name, combine)
    known = MONOIDS.get(name)
    if known is None:
        _require_free("a monoid", name)
    if combine not in FUNCTIONS:
        combine = register_function(f"{name}_combine", combine, args=_two_names(combine)).name
    if known is not None and (known.combine, known.neutral) == (combine, identity) and name not in BUILT_IN:
        return known
    _require_free("a monoid", name)
    function = FUNCTIONS[combine]
    if not isinstance(identity, int | float):
        raise EinsumError(f"the identity {identity!r} of {name}; a number")
    if function.arity != 2:
        raise EinsumError(f"{combine} takes {function.arity} arguments; a monoid combines two values")
    for value in (0.5, -2.0, 1.0):
        with np.errstate(all="ignore"):
            combined = function.evaluate(np.float64(value), np.float64(identity))
        if not np.isclose(combined, value, rtol=1e-12):
            raise EinsumError(
                f"{identity} is not neutral in {name}: {combine}({value}, {identity}) is not {value}"
            )
    MONOIDS[name] = Monoid(name, combine, identity, None, f"{name}=")
    return MONOIDS[name]


def expand_statements(statements: Sequence[Assign]) -> tuple[Assign, ...]:
    """Statements with registered functions inlined; registered equivalents of built-in monoids get their names.

    Raises:
        EinsumError: a statement is too long after inlining.
    """
    return tuple(_with_built_in(expand_functions(statement)) for statement in statements)


def _with_built_in(node: N) -> N:
    def visit(current: Node) -> Node:
        current = map_children(current, visit)
        if isinstance(current, Assign | Reduce) and current.monoid in MONOIDS:
            used = MONOIDS[current.monoid]
            same = [m for m in BUILT_IN.values() if (m.combine, m.neutral) == (used.combine, used.neutral)]
            return replace(current, monoid=same[0].name) if same else current
        return current

    return cast(N, visit(node))


def definitions(program: Program) -> str:
    """The definitions of a program's registered monoids, as text: part of cache keys, since names are ambiguous."""
    nodes = [n for n in find(program, Assign, Reduce) if n.monoid is not None]
    used = {n.monoid: MONOIDS[n.monoid] for n in nodes if n.monoid is not None}
    return "; ".join(
        f"{name}: {FUNCTIONS[monoid.combine].body or monoid.combine} from {monoid.neutral!r}"
        for name, monoid in sorted(used.items())
        if name not in BUILT_IN
    )


def expand_functions(node: N) -> N:
    """`node` with calls of registered functions replaced by their bodies.

    Raises:
        EinsumError: expression too long after inlining.
    """
    _require_short(node)

    def visit(current: Node) -> Node:
        current = map_children(current, visit)
        if isinstance(current, Call) and current.function in FUNCTIONS and FUNCTIONS[current.function].body:
            function = FUNCTIONS[current.function]
            names = argument_names(function.arity)
            body = parse_expression(function.body)
            return visit(substitute_scalars(body, dict(zip(names, current.args, strict=True))))
        return current

    return cast(N, visit(node))


def _require_short(node: Node) -> None:
    """Raises if inlining nested functions would exceed the compilable length."""

    def size(current: Node, arguments: Mapping[str, int]) -> int:
        if isinstance(current, Access) and not current.indices and current.tensor in arguments:
            return arguments[current.tensor]
        below = [size(child, arguments) for child in children(current)]
        if isinstance(current, Call) and FUNCTIONS[current.function].body:
            names = argument_names(FUNCTIONS[current.function].arity)
            return size(
                parse_expression(FUNCTIONS[current.function].body), dict(zip(names, below, strict=True))
            )
        return 1 + sum(below)

    length = size(node, {})
    if length > MAX_NODES:
        raise EinsumError(
            f"`{str(node)[:60]}` has {length} parts with its functions written out, {MAX_NODES} at most; "
            "name a part by a statement of its own"
        )


def _two_names(combine: str) -> tuple[str, ...]:
    """The two names in an expression; `x` and `y` for any other number of names."""
    read = tuple(dict.fromkeys(n.tensor for n in find(parse_expression(combine), Access)))
    return read if len(read) == 2 else ("x", "y")


def _require_texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise EinsumError(f"{value!r} is a {type(value).__name__}; names and bodies are texts")


def _require_free(what: str, name: str) -> None:
    """Raises for an invalid name, and for names that index notation uses already."""
    if name in FUNCTIONS or name in MONOIDS or name in RESERVED or not name.isidentifier() or iskeyword(name):
        raise EinsumError(
            f"{what} cannot be called {name!r}: the name is taken or not a name; choose another"
        )


def _checked(name: str, expr: Expr, names: dict[str, str]) -> Expr:
    """The body of a function with canonical argument names."""
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
