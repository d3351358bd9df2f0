"""The entrywise statements after a tensor, as one expression of its entries if each is read once.

In:  `s[i4,i5] = sigmoid(y[i4,i5]); m[i6,i7] = y[i6,i7] * s[i6,i7] + b[i7]` after y.
Out: `m = silu(y[n,o]) + b[o]`.

The statements have the shape of the tensor, are read only by each other except for the last, and read nothing else that
depends on the tensor.
"""

from collections import Counter
from collections.abc import Callable, Collection

import torch
from torch import fx

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Cast, Const, Expr
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.graph.operators import tensor_value
from sparsify.passes.program.model import ModelProgram, Refusal, sizes_of
from sparsify.passes.rewrite.inline import DEEPEST
from sparsify.passes.rewrite.simplify import depth, exchanged, simplify

# Function to the replacement of an access to another tensor; raises a `Refusal` without one.
Read = Callable[[Access, Assign], Access]


def epilogue(
    program: ModelProgram,
    node: fx.Node,
    at: tuple[Expr, ...],
    read: Read,
    unfused: Collection[str],
    taken: Collection[fx.Node],
) -> dict[fx.Node, Expr]:
    """The nodes fused after a node, in order, and the value of each; the last one is the result.

    Args:
        at: indices of an entry.
        read: function that replaces accesses to other tensors.
        unfused: tensors that must not be fused with their readers.
        taken: nodes of other regions.
    """
    inside: dict[fx.Node, Expr] = {}
    closed: dict[fx.Node, Expr] = {}
    behind, levels = set[fx.Node](), 1
    following = node.next
    while following.op != "output" and levels < DEEPEST:
        reads = set(following.all_input_nodes)
        fused_reads = reads & {node, *inside}
        if fused_reads or reads & behind:
            value = None
            if (
                following not in taken
                and not reads & behind
                and not any(n.name in unfused for n in fused_reads)
            ):
                value = entrywise(program, following, node, {n.name for n in fused_reads}, at, read)
            if value is None:
                behind.add(following)
                if fused_reads:
                    break  # reads a fused node, whose value later nodes would lack
            else:
                inside[following] = value
                levels += depth(value)
                within = {node, *inside}
                is_last = all(n is following or within.issuperset(n.users) for n in within)
                is_same = following.meta["val"].dtype == node.meta["val"].dtype
                closed = dict(inside) if is_last and is_same else closed
        following = following.next
    return closed


def entrywise(
    program: ModelProgram,
    node: fx.Node,
    like: fx.Node,
    fused: Collection[str],
    at: tuple[Expr, ...],
    read: Read,
) -> Expr | None:
    """The value of an entrywise node over a tensor; `None` for other nodes.

    Args:
        like: node of the same shape.
        fused: tensors accessed at the entry itself.
        at: indices of the entry.
        read: function that replaces accesses to other tensors.
    """
    statement, value = program.statements.get(node.name), tensor_value(node)
    if statement is None or value is None or sizes_of(value) != sizes_of(like.meta["val"]):
        return None
    if value.dtype not in (like.meta["val"].dtype, torch.bool):
        return None

    def visit(part: Node) -> Node:
        match part:
            case Access(tensor, indices) if tensor in fused:
                if indices != statement.target.indices:
                    raise Refusal(f"{part} is another entry")
                return Access(tensor, at)
            case Access():
                return read(part, statement)
            case Call() | Cast():
                return map_children(part, visit)
            case Const():
                return part
        raise Refusal(f"{part} is no function of one entry")

    try:
        result = visit(statement.value)
    except Refusal:
        return None
    assert isinstance(result, Expr)
    return result


def joined(values: dict[str, Expr], last: str) -> dict[str, Expr]:
    """`t = f(y); z = g(t) -> z = g(f(y))` for all tensors read once, in the order of the tensors.

    Args:
        values: value of each tensor; accesses among the tensors are entrywise.
        last: the result.
    """
    result = dict(values)
    while True:
        counts = Counter(a.tensor for value in result.values() for a in find(value, Access))
        name = next((n for n in result if n != last and counts[n] < 2), None)
        if name is None:
            return result
        value = result.pop(name)
        for reader, other in result.items():
            for access in find(other, Access):
                if access.tensor == name:
                    result[reader] = simplify(exchanged(other, access, value))
