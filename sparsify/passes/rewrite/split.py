"""Joined modes of views, split into the modes of the base tensor.

In: `s[h,i,j] = sum(d, q[h,i,d] * k[h,j,d])`, k a view of `e[g,r,j,d] = x[g,j,d]` with g and r joined. Out: `s[g,r,i,j]
= sum(d, q[g,r,i,d] * x[g,j,d])`, with a corresponding view of q: heads with shared keys read the same entries.

Source: Ainslie, Lee-Thorp, de Jong, Zemlyanskiy, Lebron and Sanghai, GQA, 2023.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from torch import fx

from sparsify.compiler.einsum.nodes import Access, Expr, Index
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.graph.operators import COPIES, argument, operator_name
from sparsify.passes.program.model import ModelProgram, Size, sizes_of

Pair = tuple[Expr, Expr]


@dataclass(frozen=True)
class Joined:
    """A tensor that joins two modes of a base tensor.

    Attributes:
        base: base tensor.
        mode: joined mode of the tensor.
        sizes: extents of the two modes.
        is_repeated: whether the base has only the first of the two modes: entries are repeated along the second.
    """

    base: fx.Node
    mode: int
    sizes: tuple[Size, Size]
    is_repeated: bool

    def read(self, access: Access, pair: Pair) -> Access:
        """The access to the base equivalent to an access to the tensor."""
        indices = access.indices
        base_pair = pair[:1] if self.is_repeated else pair
        return Access(self.base.name, (*indices[: self.mode], *base_pair, *indices[self.mode + 1 :]))


def joined(node: fx.Node) -> Joined | None:
    """The base of a node that joins two modes, or repeats entries along one; None for other nodes."""
    node = copied(node)
    if operator_name(node) not in ("view", "flatten", "repeat_interleave"):
        return None
    base = copied(node.all_input_nodes[0])
    node_sizes, parts = (tuple(size for size in sizes_of(n.meta["val"]) if size != 1) for n in (node, base))
    if operator_name(node) == "repeat_interleave":
        count = argument(node, 1, "repeats")
        modes = [mode for mode, pair in enumerate(zip(node_sizes, parts, strict=False)) if pair[0] != pair[1]]
        if len(node_sizes) != len(parts) or len(modes) != 1 or not isinstance(count, int):
            return None
        return Joined(base, modes[0], (parts[modes[0]], count), is_repeated=True)
    if len(parts) != len(node_sizes) + 1:
        return None
    mode = next(
        (mode for mode, (a, b) in enumerate(zip(node_sizes, parts, strict=False)) if a != b),
        len(node_sizes) - 1,
    )
    is_joined = (
        parts[mode] * parts[mode + 1] == node_sizes[mode] and parts[mode + 2 :] == node_sizes[mode + 1 :]
    )
    return Joined(base, mode, (parts[mode], parts[mode + 1]), is_repeated=False) if is_joined else None


def copied(node: fx.Node) -> fx.Node:
    """The source of a copy into other memory or another dtype; the node itself if no copy."""
    while operator_name(node) in COPIES:
        node = node.all_input_nodes[0]
    return node


def split(
    program: ModelProgram,
    names: Collection[str],
    first: tuple[str, int],
    sizes: tuple[Size, Size],
    leaf: Callable[[Access, int, Pair], Access],
) -> dict[str, int]:
    """Replaces one mode by two in statements, in place.

    Args:
        names: the statements.
        first: one of their tensors and its mode.
        sizes: extents of the two modes.
        leaf: function from an access to another tensor, the mode's position and two index variables to a new access.

    Returns:
        the former position of the mode, by tensor.
    """
    modes = spread_mode(program, names, first)
    for name in names:
        statement = program.statements[name]
        read = [
            access for access in (statement.target, *find(statement.value, Access)) if access.tensor in modes
        ]
        indices = {access.indices[modes[access.tensor]] for access in read}
        if not indices:
            continue
        (index,) = indices
        pair = Index(program.index(sizes[0])), Index(program.index(sizes[1]))

        def visit(node: Node, index: Expr = index, pair: Pair = pair) -> Node:
            if not isinstance(node, Access) or index not in node.indices:
                return map_children(node, visit)
            position = node.indices.index(index)
            if node.tensor not in names:
                return leaf(node, position, pair)
            return Access(node.tensor, (*node.indices[:position], *pair, *node.indices[position + 1 :]))

        target, value = visit(statement.target), visit(statement.value)
        assert isinstance(target, Access) and isinstance(value, Expr)
        program.statements[name] = replace(statement, target=target, value=value)
        program.sizes[name] = tuple(program.extents[str(index)] for index in target.indices)
    return modes


def spread_mode(program: ModelProgram, names: Collection[str], first: tuple[str, int]) -> dict[str, int]:
    """The mode of each tensor that equals a mode of the first one, by tensor, as read by statements."""
    modes, count = dict([first]), 0
    while count < len(modes):
        count = len(modes)
        for name in names:
            statement = program.statements[name]
            every = [a for a in (statement.target, *find(statement.value, Access)) if a.tensor in names]
            indices = {access.indices[modes[access.tensor]] for access in every if access.tensor in modes}
            for access in every:
                for index in indices & set(access.indices):
                    modes.setdefault(access.tensor, access.indices.index(index))
    return modes
