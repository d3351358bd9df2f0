"""Loop nests as chains: the loops at the top of a statement, and rewriting by loop.

In: `forall i: forall j: body`. Out: `([forall i, forall j], body)`.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import replace

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node, children, find, holds, map_children, walk
from sparsify.compiler.notation.nodes import (
    Forall,
    Fuse,
    Kind,
    Let,
    Notation,
    Position,
    Sequence,
    Split,
    Statement,
)
from sparsify.errors import ScheduleError

Body = Statement | Assign


def rewrite_loops(body: Body, index: str, change: Callable[[Forall], Statement]) -> Statement:
    """`body` with every loop over `index` replaced."""

    def visit(node: Node) -> Node:
        if not holds(node, Forall):
            return node
        node = map_children(node, visit)
        return change(node) if isinstance(node, Forall) and node.index == index else node

    result = visit(body)
    assert isinstance(result, Statement)
    return result


def with_kind(program: Notation, index: str, kind: Kind, nest: str = "") -> Notation:
    """`forall index -> kind forall index`, everywhere or around the assignments to `nest` only."""

    def change(loop: Forall) -> Forall:
        return replace(loop, kind=kind) if not nest or assigns(loop, nest) else loop

    return replace(program, body=rewrite_loops(program.body, index, change))


def assigns(node: Node, tensor: str) -> bool:
    """Whether `node` holds an assignment to `tensor`."""
    return any(inner.target.tensor == tensor for inner in find(node, Assign))


def loop_chain(node: Body) -> tuple[list[Forall], Body]:
    """The perfectly nested loops at the top of `node`, and the innermost body."""
    chain = []
    while isinstance(node, Forall):
        chain.append(node)
        node = node.body
    return chain, node


def loops_around(body: Body, inner: Node) -> list[Forall]:
    """The loops around the node `inner` (by identity), outermost first."""
    if body is inner or isinstance(body, Assign):
        return []
    parts = body.statements if isinstance(body, Sequence) else (body.body,)  # type: ignore[attr-defined]
    found = next((part for part in parts if any(node is inner for node in walk(part))), None)
    if found is None:
        return []
    return [*([body] if isinstance(body, Forall) else []), *loops_around(found, inner)]


def close_chain(chain: list[Forall], body: Body) -> Body:
    """`body` inside the loops of `chain`, the first one outermost."""
    for loop in reversed(chain):
        body = loop if body is loop.body else replace(loop, body=body)
    return body


def loops_to_assignment(node: Node, tensor: str) -> list[Forall] | None:
    """The loops in `node` around the first assignment to `tensor`, outermost first; `None` without one."""
    if isinstance(node, Assign):
        return [] if node.target.tensor == tensor else None
    for child in children(node):
        found = loops_to_assignment(child, tensor)
        if found is not None:
            return [node, *found] if isinstance(node, Forall) else found
    return None


def sequence(statements: list[Body]) -> Body:
    """The statements in order, with nested sequences flattened; a single statement as it is."""
    flat: list[Body] = []
    for statement in statements:
        flat += statement.statements if isinstance(statement, Sequence) else (statement,)
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def downward(names: Iterable[str], edges: Iterable[tuple[str, str]]) -> list[str]:
    """The loops in topological order of the levels of every operand, stable in the given order.

    `edges` are pairs of loops of which the first must enclose the second; a cycle has no legal order.

    >>> downward("bcde", [("b", "c"), ("c", "d"), ("e", "d")])
    ['b', 'c', 'e', 'd']
    """
    rest, inside = list(names), list(edges)
    order: list[str] = []
    while rest:
        free = [n for n in rest if not any(b == n and a in rest and a != n for a, b in inside)]
        order.append((free or rest)[0])
        rest.remove(order[-1])
    return order


def many_first(order: Listed[str], names: Listed[str], extents: Mapping[str, int]) -> list[str]:
    """The loops with single-iteration loops of `names` innermost among `names`: threads cannot share one iteration.

    >>> many_first(["n", "o", "k", "p"], ["n", "o"], {"n": 1, "o": 64})
    ['o', 'n', 'k', 'p']
    """
    moved = iter(sorted(names, key=lambda name: extents.get(name) == 1))
    return [next(moved) if name in names else name for name in order]


def around(leading: Listed[str], tile: str, is_outside: bool) -> list[str]:
    """The loops around sums: tiles inside of rows, or around the last row loop if rows read the same tile.

    >>> around(["n", "o"], "po", True), around(["n", "o"], "po", False)
    (['n', 'po', 'o'], ['n', 'o', 'po'])
    """
    return [*leading[:-1], tile, leading[-1]] if is_outside else [*leading, tile]


def loop_names(program: Notation) -> set[str]:
    """The names of all loops, and of the origins of derived loops."""
    found = {node.index for node in find(program.body, Forall)}
    for relation in program.relations:
        match relation:
            case Split(index, outer, inner):
                found |= {index, outer, inner}
            case Fuse(first, second, fused):
                found |= {first, second, fused}
            case Position(index, position):
                found |= {index, position}
    return found


def accesses(node: Node, tensor: str) -> list[Access]:
    """The accesses to `tensor` in `node`."""
    return [inner for inner in find(node, Access) if inner.tensor == tensor]


def accesses_by_tensor(node: Node) -> dict[str, list[Access]]:
    """The accesses in `node` by tensor, in one walk."""
    found: dict[str, list[Access]] = {}
    for access in find(node, Access):
        found.setdefault(access.tensor, []).append(access)
    return found


def replace_accesses(body: Body, tensor: str, access: Access, reader: str = "") -> Body:
    """`body` with every access to `tensor` replaced by `access`, optionally only in assignments to `reader`."""

    def visit(node: Node) -> Node:
        if reader and isinstance(node, Assign):
            return map_children(node, replaced) if node.target.tensor == reader else node
        return map_children(node, visit) if reader else replaced(node)

    def replaced(node: Node) -> Node:
        return access if isinstance(node, Access) and node.tensor == tensor else map_children(node, replaced)

    result = visit(body)
    assert isinstance(result, Statement | Assign)
    return result


def replace_body(body: Body, old: Node, new: Body) -> Body:
    """`body` with the node `old` (by identity) replaced."""

    def visit(node: Node) -> Node:
        return new if node is old else map_children(node, visit)

    result = visit(body)
    assert isinstance(result, Statement | Assign)
    return result


def let_of(program: Notation, name: str, directive: Node) -> Let:
    """The `let` that declares the temporary `name` of a directive.

    Raises:
        ScheduleError: no such temporary.
    """
    lets = find(program.body, Let)
    for let in lets:
        if any(temporary.name == name for temporary in let.temporaries):
            return let
    names = [temporary.name for let in lets for temporary in let.temporaries]
    raise ScheduleError(f"`{directive}`: there is no temporary {name}", f"one of {names}")
