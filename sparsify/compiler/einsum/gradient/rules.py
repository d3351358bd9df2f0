"""Gradient rules of single expressions.

In: `A[i,j] * T[j,k]` and the gradient `g[i,k]` of its value. Out: `g[i,k] * T[j,k]` for `A[i,j]`, and
`g[i,k] * A[i,j]` for `T[j,k]`.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Final, cast

from sparsify.compiler.einsum.affine import Affine, affine
from sparsify.compiler.einsum.functions import FUNCTIONS, argument_names
from sparsify.compiler.einsum.infer.dtype import kind_of
from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr, Index, Reduce
from sparsify.compiler.einsum.rename import substitute_scalars
from sparsify.compiler.einsum.text.parse import parse_expression
from sparsify.compiler.ir.dtypes import COMPLEX, FLOATING, Kind, category
from sparsify.compiler.ir.node import Node, find, map_children

ZERO = Const(0)
ONE = Const(1)
# Comparison of an entry with a bound under which `max` and `min` return the entry.
BOUNDS: Final = {"max": "ge", "min": "le"}


def pull_back(
    expr: Expr,
    gradient: Expr,
    active: Collection[str],
    kinds: Mapping[str, Kind],
    result: Expr | None = None,
) -> list[tuple[Access, Expr]]:
    """The gradient of the value with respect to each access in `expr` to a tensor of `active`.

    For complex numbers the gradient is the conjugate of the derivative, as in torch: the direction of steepest ascent.
    A
    gradient that passes a real number has a meaningless imaginary part, which the final cast drops.

    Args:
        gradient: gradient of the value of `expr`.
        result: access that holds the value of `expr`, for derivatives expressed in the result only.
    """
    match expr:
        case Access(tensor, _):
            return [(expr, gradient)] if tensor in active else []
        case Call(_, args):
            found = []
            for position, arg in enumerate(args):
                if not any(node.tensor in active for node in find(arg, Access)):
                    continue
                passed = _passed(expr, position, gradient, expr if result is None else result, kinds)
                if passed is not None:
                    # A selected argument equals the result, a rejected one has the gradient 0.
                    same = result if expr.function == "where" else None
                    found += pull_back(arg, passed, active, kinds, same)
            return found
        case Cast(dtype, value) if is_continuous(dtype) and is_continuous(kind_of(value, kinds).dtype):
            return pull_back(value, gradient, active, kinds)
    return []


def is_continuous(dtype: str) -> bool:
    """Whether values of a dtype are differentiable."""
    return category(dtype) in (FLOATING, COMPLEX)


def _passed(
    call: Call, position: int, gradient: Expr, result: Expr, kinds: Mapping[str, Kind]
) -> Expr | None:
    """The gradient of one argument of a call, `None` if zero."""
    arg = call.args[position]
    if call.function in ("conj", "real") and is_complex(arg, kinds):
        return Call(call.function, (gradient,))
    if call.function == "abs" and is_complex(arg, kinds):
        direction = Call("where", (equals(result, ZERO), ZERO, Call("div", (arg, result))))
        return times(Call("real", (gradient,)) if is_complex(gradient, kinds) else gradient, direction)
    slope = partial(call, position, result)
    return None if slope is None else times(gradient, conjugate(slope, kinds))


def conjugate(slope: Expr, kinds: Mapping[str, Kind]) -> Expr:
    """The conjugate of a derivative, itself if real."""
    return Call("conj", (slope,)) if is_complex(slope, kinds) else slope


def is_complex(expr: Expr, kinds: Mapping[str, Kind]) -> bool:
    """Whether the values of an expression are complex numbers."""
    return category(kind_of(expr, kinds).dtype) == COMPLEX


def partial(call: Call, position: int, result: Expr) -> Expr | None:
    """The derivative of a call with respect to one argument, `None` if zero.

    At a constant bound the derivative is that of torch's clamp, 1; two equal tensor arguments take a half each.

    >>> print(partial(Call("tanh", (Access("v"),)), 0, Access("t")))
    1 - square(t)
    >>> print(partial(Call("max", (Access("v"), Const(2))), 0, Access("t")))
    where(v >= 2, 1, 0)
    """
    if call.function in BOUNDS and isinstance(call.args[1 - position], Const):
        inside = Call(BOUNDS[call.function], (call.args[position], call.args[1 - position]))
        return Call("where", (inside, ONE, ZERO))
    text = FUNCTIONS[call.function].derivative[position]
    if text is None:
        return None
    names = argument_names(len(call.args))
    return substitute_scalars(_parsed(text), {**dict(zip(names, call.args, strict=True)), "f": result})


def needs_only_result(function: str) -> bool:
    """Whether the derivative of a function depends on its result only, like those of relu, exp and tanh.

    >>> needs_only_result("tanh"), needs_only_result("sin")
    (True, False)
    """
    texts = [text for text in FUNCTIONS[function].derivative if text is not None]
    names = {node.tensor for text in texts for node in find(_parsed(text), Access)}
    return names <= {"f"}


def times(gradient: Expr, slope: Expr) -> Expr:
    """`gradient * slope`, with `where` outermost, so that no infinity is multiplied with a zero."""
    match gradient:
        case Const(0):
            return ZERO
        case Call("where", (condition, yes, Const(0))):
            return Call("where", (condition, times(yes, slope), ZERO))
        case Call("where", (condition, Const(0), no)):
            return Call("where", (condition, ZERO, times(no, slope)))
    match slope:
        case Const(0):
            return ZERO
        case Const(1):
            return gradient
        case Const(-1):
            return Call("neg", (gradient,))
        case Call("neg", (inner,)):
            return Call("neg", (times(gradient, inner),))
        case Call("where", (condition, yes, no)):
            return Call("where", (condition, times(gradient, yes), times(gradient, no)))
        case Call("div", (numerator, denominator)):
            return Call("div", (times(gradient, numerator), denominator))
    return Call("mul", (gradient, slope))


def chosen(condition: Expr, value: Expr) -> Expr:
    """`where(condition, value, 0)`."""
    return Call("where", (condition, value, ZERO))


def equals(left: Expr, right: Expr) -> Expr:
    """`left == right`."""
    return Call("eq", (left, right))


def product_slope(body: Expr, product: Expr, zeros: Expr, others: Expr) -> Expr:
    """The derivative of a product of many factors with respect to one of them, `body`.

    Without a zero factor the derivative is `product / body`; with one it is the product of the `others` at the zero
    factor and 0 elsewhere; with more it is 0.
    """
    without_zero = Call("where", (equals(zeros, ZERO), Call("div", (product, body)), ZERO))
    at_zero = Call("where", (equals(zeros, ONE), others, ZERO))
    return Call("where", (equals(body, ZERO), at_zero, without_zero))


def vanishes(expr: Expr, name: str, fills: Mapping[str, float]) -> bool:
    """Whether `expr` is 0 at out-of-bounds values of the index variable `name`: all reads are out of bounds.

    Args:
        fills: fills of the tensors by name.
    """
    match expr:
        case Const(value):
            return value == 0
        case Access(tensor, indices):
            return Index(name) in indices and fills.get(tensor) == 0
        case Call("mul", (left, right)):
            return vanishes(left, name, fills) or vanishes(right, name, fills)
        case Call("div", (numerator, _)):
            return vanishes(numerator, name, fills)
        case Call("neg" | "add" | "sub", args):
            return all(vanishes(arg, name, fills) for arg in args)
        case Call("where", (_, yes, no)):
            return vanishes(yes, name, fills) and vanishes(no, name, fills)
    return False


def put(expr: Expr, name: str, form: Affine) -> Expr:
    """`expr` with an affine form substituted for an index variable, indices in lowest terms.

    >>> str(put(parse_expression("x[2*h+r-1] * g[h]"), "h", Affine((("p", 1), ("r", -1)), 1, 2)))
    'x[p] * g[(p - r + 1) / 2]'
    """

    def visit(node: Node) -> Node:
        match node:
            case Index(found) if found == name:
                return form.expression()
            case Access(tensor, indices):
                return Access(tensor, tuple(index_at(index) for index in indices))
        return map_children(node, visit)

    def index_at(index: Expr) -> Expr:
        found = affine(index)
        return (
            index if found is None or name not in found.names else found.substituted(name, form).expression()
        )

    return cast(Expr, visit(expr))


@cache
def _parsed(text: str) -> Expr:
    """The expression of a derivative."""
    return parse_expression(text)


def united(left: Expr, right: Expr) -> Expr | None:
    """`where(c, x, 0) + where(c, 0, y) -> where(c, x, y)`, also inside equal sums; `None` for other terms."""
    match left, right:
        case Const(0), other:
            return other
        case other, Const(0):
            return other
        case Call("where", (condition, *some)), Call("where", (same, *others)) if condition == same:
            both = [united(one, other) for one, other in zip(some, others, strict=True)]
            found = [part for part in both if part is not None]
            return Call("where", (condition, *found)) if len(found) == len(both) else None
        case Reduce("sum", over, body), Reduce("sum", same, other) if over == same:
            inner = united(body, other)
            return None if inner is None else Reduce("sum", over, inner)
    return None


def append(parts: list[Expr], part: Expr) -> None:
    """Adds a term to the terms of a sum, merged with the last one if their conditions are disjoint."""
    whole = united(parts[-1], part) if parts else None
    parts[-1:] = [*parts[-1:], part] if whole is None else [whole]
