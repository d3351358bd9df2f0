"""Masks of attention from what they are made of, so that none is kept for each pair of query and key without need.

In: `s[h,i,j] = f + m[b,h,i,j]`, `m[b,h,i,j] = where(logical_and(c[i,j], p[b,j]), t[h,i,j], -3.4e38)`, `c[i,j] = j<=i`,
t of distances alone. Out: `s[h,i,j] = f + where(logical_and(j <= i, p[b,j]), v[h, j - i + extent(i) - 1], -3.4e38)`.
"""

from collections.abc import Callable, Collection

from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr, Index, Reduce
from sparsify.compiler.node import Node, find, map_children
from sparsify.passes.program.model import ModelProgram
from sparsify.passes.rewrite.inline import placed
from sparsify.passes.rewrite.simplify import simplify

# The dtypes of masks that kernels read; others are of places, which torch compares.
READ = ("bool", "float16", "bfloat16", "float32", "float64")
MOST = 1


def from_factors(
    program: ModelProgram,
    value: Expr,
    kept: Collection[Access],
    pair: tuple[Expr, Expr],
    along: Callable[[Access], Expr | None],
) -> Expr:
    """Scores that compute masks of queries and keys, where what these are made of is smaller.

    Args:
        kept: accesses that stay.
        pair: the index variables of queries and keys.
        along: a mask that is of distances alone, read by these; None for others.
    """

    def visit(node: Node) -> Node:
        if isinstance(node, Access):
            return node if node in kept or not is_of(pair, node) else smaller(node) or node
        return map_children(node, visit)

    def smaller(access: Access) -> Expr | None:
        by_distance = along(access)
        if by_distance is not None:
            return by_distance
        made = inlined(access)
        if made is None:
            return None
        parts = {part: smaller(part) for part in find(made, Access) if is_of(pair, part)}
        left = [part for part, found in parts.items() if found is None]
        if len(left) > MOST or (left and len(left) == len(find(made, Access))):
            return None
        return simplified(
            exchanged_all(made, {part: found for part, found in parts.items() if found is not None})
        )

    def inlined(access: Access) -> Expr | None:
        statement = program.statements.get(access.tensor)
        if statement is None or find(statement.value, Reduce):
            return None
        made = simplified(counted(program, placed(program, access, statement)))
        read = [part for part in find(made, Access) if program.dtypes.get(part.tensor, "bool") not in READ]
        return None if read else made

    found = visit(value)
    assert isinstance(found, Expr)
    return simplified(found)


def is_of(pair: tuple[Expr, Expr], access: Access) -> bool:
    """Whether a tensor has an entry for each query and key."""
    return set(pair) <= set(access.indices)


def counted(program: ModelProgram, value: Expr) -> Expr:
    """`arange[j] -> j`, `ones[i,j] -> 1`: tensors of coordinates and numbers as what they are."""

    def visit(node: Node) -> Node:
        statement = program.statements.get(node.tensor) if isinstance(node, Access) else None
        if statement is None:
            return map_children(node, visit)
        if find(statement.value, Reduce):
            return node
        assert isinstance(node, Access)
        made = visit(placed(program, node, statement))
        return node if find(made, Access) else made

    found = visit(value)
    assert isinstance(found, Expr)
    return found


def simplified(value: Expr) -> Expr:
    """Truth values without those that always hold: `logical_and(c, True) -> c`, `i >= 0 -> True`."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
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

    found = visit(value)
    assert isinstance(found, Expr)
    return simplify(found)


def exchanged_all(value: Expr, parts: dict[Access, Expr]) -> Expr:
    """An expression with others in the places of some accesses."""

    def visit(node: Node) -> Node:
        if isinstance(node, Access):
            return parts.get(node, node)
        return map_children(node, visit)

    found = visit(value)
    assert isinstance(found, Expr)
    return found
