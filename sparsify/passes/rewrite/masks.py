"""Attention masks computed from their sources, so that no mask is stored per query-key pair without need.

In: `s[h,i,j] = f + m[b,h,i,j]`, `m[b,h,i,j] = where(logical_and(c[i,j], p[b,j]), t[h,i,j], -3.4e38)`, `c[i,j] = j<=i`,
t of distances alone. Out: `s[h,i,j] = f + where(logical_and(j <= i, p[b,j]), v[h, j - i + extent(i) - 1], -3.4e38)`.
"""

from collections.abc import Callable, Collection

import torch

from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr, Index, Reduce
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.graph.constant_values import constant, counted_mode
from sparsify.passes.graph.operators import overwritten
from sparsify.passes.program.model import ModelProgram, sizes_of
from sparsify.passes.rewrite.inline import placed
from sparsify.passes.rewrite.simplify import simplify

# Dtypes of masks readable by kernels; masks of positions are compared by torch.
READ = ("bool", "float16", "bfloat16", "float32", "float64")
MOST = 1


def from_factors(
    program: ModelProgram,
    value: Expr,
    unchanged: Collection[Access],
    pair: tuple[Expr, Expr],
    along: Callable[[Access], Expr | None],
    true: Collection[Expr] = (),
    patterns: Collection[str] = (),
) -> Expr:
    """Scores with masks computed from their sources, if these are smaller.

    Args:
        unchanged: accesses left unchanged.
        pair: index variables of queries and keys.
        along: function from a mask of distances alone to its access by distance; None for other masks.
        true: conditions that always hold.
        patterns: sparse tensors, whose conversions are read unchanged.
    """

    written = {node.name for node in overwritten(program.graph)}

    def visit(node: Node) -> Node:
        if isinstance(node, Access):
            return node if node in unchanged or not is_of(pair, node) else smaller(node) or node
        return map_children(node, visit)

    def smaller(access: Access) -> Expr | None:
        by_distance = along(access)
        if by_distance is not None:
            return by_distance
        if access.tensor in written:
            return None
        expression = known_values(program, access) or inlined(access)
        if expression is None:
            return None
        parts = {part: smaller(part) for part in find(expression, Access) if is_of(pair, part)}
        smaller_parts = {part: other for part, other in parts.items() if other is not None}
        left = [part for part in parts if part not in smaller_parts]
        is_all = len(left) == len(find(expression, Access))
        if len(left) > MOST or (left and is_all and not any(part.tensor in patterns for part in left)):
            return None
        return simplified(exchanged_all(expression, smaller_parts))

    def inlined(access: Access) -> Expr | None:
        statement = program.statements.get(access.tensor)
        if statement is None or find(statement.value, Reduce):
            return None
        expression = simplified(counted(program, placed(program, access, statement), written))
        read = [
            part for part in find(expression, Access) if program.dtypes.get(part.tensor, "bool") not in READ
        ]
        return None if read else expression

    result = visit(value)
    assert isinstance(result, Expr)
    return simplified(result, true)


def is_of(pair: tuple[Expr, Expr], access: Access) -> bool:
    """Whether a tensor has an entry for each query and key."""
    return set(pair) <= set(access.indices)


def counted(program: ModelProgram, value: Expr, written: Collection[str]) -> Expr:
    """`arange[j] -> j`, `ones[i,j] -> 1`: counted tensors and constants become expressions."""

    def visit(node: Node) -> Node:
        if not isinstance(node, Access) or node.tensor in written:
            return node if isinstance(node, Access) else map_children(node, visit)
        constant = known_values(program, node)
        statement = program.statements.get(node.tensor)
        if constant is not None or statement is None or find(statement.value, Reduce):
            return constant or node
        expression = visit(placed(program, node, statement))
        return node if find(expression, Access) else expression

    result = visit(value)
    assert isinstance(result, Expr)
    return result


def known_values(program: ModelProgram, access: Access) -> Expr | None:
    """The constant value of a tensor, or the coordinate counted by it; None for other tensors."""
    node = program.nodes.get(access.tensor)
    if node is None:
        return None
    if (number := constant(node)) is not None:
        dtype = node.meta["val"].dtype
        return Const(
            bool(number) if dtype == torch.bool else float(number) if dtype.is_floating_point else number
        )
    if (mode := counted_mode(node)) is None:
        return None
    modes = [at - node.meta["val"].dim() for at, size in enumerate(sizes_of(node.meta["val"])) if size != 1]
    return access.indices[modes.index(mode)] if mode in modes else None


def simplified(value: Expr, true: Collection[Expr] = ()) -> Expr:
    """Conditions without parts that always hold: `logical_and(c, True) -> c`, `i >= 0 -> True`."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        if node in true:
            return Const(True)
        match node:
            case Cast("bool", Const(c)):
                return Const(bool(c))
            case Cast(
                _, Call("le" | "lt" | "ge" | "gt" | "eq" | "ne" | "logical_and" | "logical_not") as c
            ) if node.dtype == "bool":
                return c
            case Call("ge", (Index(), Const(0))) | Call("le", (Const(0), Index())):
                return Const(True)
            case Call("add", (Index() as i, Const(0))):
                return i
            case Call("add", (x, Const(0.0))) | Call("add", (Const(0.0), x)):
                return x
            case Call("logical_not", (Const(c),)):
                return Const(not c)
            case Call("logical_and", (Const(c), other)) | Call("logical_and", (other, Const(c))):
                return other if c else Const(False)
        return node

    result = visit(value)
    assert isinstance(result, Expr)
    return simplify(result)


def in_order(pair: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
    """The conditions of keys up to the query: `j <= i`, `i >= j`."""
    i, j = pair
    return Call("le", (j, i)), Call("ge", (i, j))


def exchanged_all(value: Expr, parts: dict[Access, Expr]) -> Expr:
    """An expression with others in the places of some accesses."""

    def visit(node: Node) -> Node:
        if isinstance(node, Access):
            return parts.get(node, node)
        return map_children(node, visit)

    result = visit(value)
    assert isinstance(result, Expr)
    return result
