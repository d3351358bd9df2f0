"""Arithmetic rules used by translation and inlining.

In: `0 + x[i]`, `sum(e, g[e] * sum(h, v[e,h] * w[h]))`. Out: `x[i]`, `sum(e, h, g[e] * v[e,h] * w[h])`.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr, Extent, Reduce, Stored
from sparsify.compiler.einsum.rename import rename_indices
from sparsify.compiler.ir.node import Node, children, find, map_children

N = TypeVar("N", bound=Node)


def simplify(expr: Expr) -> Expr:
    """An expression without redundant parts.

    `0 + x -> x`, `1 * x -> x`, `where(True, x, y) -> x`, `A * where(stored(A), x, 0) -> A * x`, and nested `where` with
    the same pattern; `x * sigmoid(a * x) -> silu(a * x) / a`, which reads x once.
    """
    result = _simplified(expr, frozenset())
    assert isinstance(result, Expr)
    return result


def _simplified(node: Node, assumed: frozenset[Node]) -> Node:
    match node:
        case Access():
            return node
        case Call("where", (Const(value), yes, no)):
            return _simplified(yes if value else no, assumed)
        case Call("where", (Stored() as pattern, yes, _)) if pattern in assumed:
            return _simplified(yes, assumed)
        case Call("where", (Stored() as pattern, yes, no)):
            return Call("where", (pattern, _expr(yes, assumed | {pattern}), _expr(no, assumed)))
    node = map_children(node, lambda child: _simplified(child, assumed))
    match node:
        case Call("add", (Const(value), other)) | Call("add", (other, Const(value))) if is_number(value, 0):
            return other
        case Call("mul", (Const(value), other)) | Call("mul", (other, Const(value))) if is_number(value, 1):
            return other
        case Call("mul", (Access() as factor, Call("where", (Stored(access), other, Const(0))))) if (
            factor == access
        ):
            return Call("mul", (factor, other))
        case Call("mul", (Call("where", (Stored(access), other, Const(0))), Access() as factor)) if (
            factor == access
        ):
            return Call("mul", (other, factor))
        case Call("mul", (factor, Call("sigmoid", (inside,)))) | Call(
            "mul", (Call("sigmoid", (inside,)), factor)
        ):
            return swish(factor, inside) or node
    return node


def swish(x: Expr, inside: Expr) -> Expr | None:
    """`x * sigmoid(x) -> silu(x)`, `x * sigmoid(a * x) -> silu(a * x) / a`; `None` for other products."""
    if x == inside:
        return Call("silu", (x,))
    match inside:
        case Call("mul", (base, Const(value) as a)) | Call("mul", (Const(value) as a, base)) if base == x:
            return Call("div", (Call("silu", (inside,)), a)) if value else None
    return None


def _expr(node: Node, assumed: frozenset[Node]) -> Expr:
    result = _simplified(node, assumed)
    assert isinstance(result, Expr)
    return result


def without_detach(expr: Expr) -> Expr:
    """`detach(x) -> x`, without differentiation."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        return node.args[0] if isinstance(node, Call) and node.function == "detach" else node

    result = visit(expr)
    assert isinstance(result, Expr)
    return result


def is_number(value: object, expected: int) -> bool:
    """Whether a constant is a given integer, which promotes no dtype."""
    return type(value) is int and value == expected


def factors(expr: Expr) -> Iterator[Expr]:
    """The factors of a product."""
    match expr:
        case Call("mul", (left, right)):
            yield from factors(left)
            yield from factors(right)
        case _:
            yield expr


def is_multilinear(expr: Expr) -> bool:
    """Whether an expression is a sum of products of tensors."""
    match expr:
        case Reduce("sum", _, body):
            return all(isinstance(factor, Access | Const) for factor in factors(body))
    return False


def join_sums(expr: N) -> N | Reduce:
    """`sum(e, G * sum(h, H * V)) -> sum(e, h, G * H * V)`."""
    match expr:
        case Reduce("sum", indices, body):
            names = list(indices)
            parts: list[Expr] = []
            for factor in factors(body):
                if isinstance(factor, Reduce) and is_multilinear(factor):
                    names += factor.indices
                    parts += factors(factor.body)
                else:
                    parts.append(factor)
            product = parts[0]
            for part in parts[1:]:
                product = Call("mul", (product, part))
            return Reduce("sum", tuple(names), product)
    return expr


def renamed(node: N, names: Mapping[str, str]) -> N:
    """A node with renamed index variables, extents included."""

    def visit(part: Node) -> Node:
        part = map_children(part, visit)
        return Extent(names[part.name]) if isinstance(part, Extent) and part.name in names else part

    return visit(rename_indices(node, names))  # type: ignore[return-value]


def enclosing(expr: Expr, tensor: str) -> frozenset[str]:
    """The variables of the reductions around the first access to a tensor."""

    def visit(node: Node, around: frozenset[str]) -> frozenset[str] | None:
        if isinstance(node, Access):
            return around if node.tensor == tensor else None
        inside = around | frozenset(node.indices) if isinstance(node, Reduce) else around
        parts: tuple[Node, ...] = ()
        match node:
            case Reduce(_, _, body):
                parts = (body,)
            case Call(_, args):
                parts = args
            case Stored(access):
                parts = (access,)
        return next((bound for part in parts if (bound := visit(part, inside)) is not None), None)

    return visit(expr, frozenset()) or frozenset()


def depth(expr: Node) -> int:
    """Depth of an expression."""
    return 1 + max((depth(child) for child in children(expr)), default=0)


def functions_of(expr: Expr) -> set[str]:
    """The names of the functions called in an expression."""
    return {call.function for call in find(expr, Call)}


def exchanged(value: Expr, part: Node, other: Expr) -> Expr:
    """An expression with another one in the place of a part."""

    def visit(node: Node) -> Node:
        return other if node == part else map_children(node, visit)

    result = visit(value)
    assert isinstance(result, Expr)
    return result
