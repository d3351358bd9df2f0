"""Tensors with a row for each edge, as expressions over the nodes that the edge joins.

In: `%e = leaky_relu(add(index_select(%a, 0, %columns), index_select(%b, 0, %rows)), 0.2)`, index variables `(*, h)`.
Out: `where(a[j,h] + b[i,h] > 0, a[j,h] + b[i,h], 0.2 * (a[j,h] + b[i,h]))`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.operators import argument, is_inactive_dropout, operator_name, tensor_value
from sparsify.passes.lift.message_passing.gather_scatter import gathered_index, is_one

EDGE: Final = "*"
# The index variable of each mode, `EDGE` for that of the edges, `None` where the mode is broadcast.
Modes = tuple[str | None, ...]
INFIX: Final = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
FUNCTIONS: Final = {
    "relu": "relu({x})",
    "sigmoid": "sigmoid({x})",
    "tanh": "tanh({x})",
    "exp": "exp({x})",
    "abs": "abs({x})",
    "square": "square({x})",
    "silu": "silu({x})",
    "neg": "(-{x})",
}
# Letters for operands by the number of their modes.
NAMES: Final = {1: "uvw", 2: "abc"}
SAME: Final = ("detach", "contiguous", "clone", "alias")


@dataclass
class Edges:
    """The edges of a graph, and what was read of tensors over them.

    Attributes:
        rows, columns: the receiving and the sending node of each edge, [edges].
        user: what is computed of them, for its dtype.
        is_numbered: whether `columns` are the numbers of the edges: tensors over edges are then read as they are.
        names: of the tensors of nodes and the parameters that were read.
        covered: the nodes whose values were written as expressions.
        sums: the extents of what is summed for each edge, by index variable.
        given: tensors over numbered edges that are read as they are; what is computed of those alone is an expression.
    """

    rows: fx.Node
    columns: fx.Node
    user: fx.Node
    is_numbered: bool = False
    names: dict[fx.Node, str] = field(default_factory=dict)
    covered: list[fx.Node] = field(default_factory=list)
    sums: dict[str, Any] = field(default_factory=dict)
    given: frozenset[fx.Node] = frozenset()

    def read(self, node: Any, modes: Modes) -> str | None:
        """A tensor over edges in index notation, its modes at these index variables; `None` where it has none."""
        if isinstance(node, int | float) and not isinstance(node, bool):
            return repr(float(node)) if abs(node) != torch.inf else None
        value, wanted = tensor_value(node), tensor_value(self.user)
        if not isinstance(node, fx.Node) or value is None or wanted is None or value.dtype != wanted.dtype:
            return None
        if EDGE not in modes:
            return self.access(node, modes)
        found = self.of_nodes(node, modes)
        if found is None and self.is_numbered and not self.is_derived(node):
            return self.access(node, ("j", *modes[1:])) if modes[0] == EDGE else None
        found = found or self.computed(node, modes)
        if found is not None:
            self.covered.append(node)
        return found

    def of_nodes(self, node: fx.Node, modes: Modes) -> str | None:
        """`index_select(x, 0, columns) -> x[j,..]`, of rows `x[i,..]`."""
        index = gathered_index(node)
        if index not in (self.rows, self.columns) or modes[0] != EDGE:
            return None
        base = node.args[0]
        assert isinstance(base, fx.Node), "what is gathered is a tensor"
        return self.access(base, ("i" if index is self.rows else "j", *modes[1:]))

    def is_derived(self, node: fx.Node) -> bool:
        """Whether a tensor is computed, entry by entry, of tensors alone that are read as they are."""
        if operator_name(node) not in (*INFIX, *FUNCTIONS):
            return False
        return all(read in self.given or self.is_derived(read) for read in node.all_input_nodes)

    def access(self, node: fx.Node, modes: Modes) -> str | None:
        """`x[j,h]`; a mode that is broadcast has one coordinate, `x[0,h]`."""
        value = tensor_value(node)
        assert value is not None, "operands are tensors"
        if any(name is None and not is_one(extent) for name, extent in zip(modes, value.shape, strict=True)):
            return None
        return f"{self.named(node, value.dim())}[{','.join(name or '0' for name in modes)}]"

    def named(self, node: fx.Node, rank: int) -> str:
        """The name of an operand: `a` and `b` for numbers of nodes, `X` for vectors of theirs."""
        if node not in self.names:
            letters = NAMES.get(rank, "X")
            every = (f"{letter}{number or ''}" for number in range(len(self.names) + 1) for letter in letters)
            self.names[node] = next(name for name in every if name not in self.names.values())
        return self.names[node]

    def computed(self, node: fx.Node, modes: Modes) -> str | None:
        """An operator on tensors over edges."""
        name = operator_name(node)
        if name in INFIX and len(node.args) == 2 and argument(node, 2, "alpha", 1) == 1:
            parts = [self.operand(arg, modes, node) for arg in node.args]
            return None if None in parts else f"({parts[0]} {INFIX[name]} {parts[1]})"
        if name in FUNCTIONS:
            x = self.operand(node.args[0], modes, node)
            return None if x is None else FUNCTIONS[name].format(x=x)
        if name == "leaky_relu":
            x = self.operand(node.args[0], modes, node)
            slope = argument(node, 1, "negative_slope", 0.01)
            return None if x is None else f"where({x} > 0, {x}, {float(slope)!r} * {x})"
        if name == "elu" and argument(node, 2, "scale", 1) == argument(node, 3, "input_scale", 1) == 1:
            x = self.operand(node.args[0], modes, node)
            alpha = argument(node, 1, "alpha", 1.0)
            return None if x is None else f"where({x} > 0, {x}, {float(alpha)!r} * (exp({x}) - 1))"
        if name == "sum":
            return self.summed(node, modes)
        if name in SAME or is_inactive_dropout(node):
            return self.read(node.args[0], modes)
        if name in ("view", "unsqueeze", "squeeze", "expand"):
            inner = modes_before(node, modes)
            return None if inner is None else self.read(node.args[0], inner)
        return None

    def operand(self, arg: Any, modes: Modes, node: fx.Node) -> str | None:
        """An operand of an operator entry by entry."""
        value, result = tensor_value(arg), tensor_value(node)
        if value is None or result is None:
            return self.read(arg, ())
        offset = result.dim() - value.dim()
        return self.read(arg, tuple(
            None if is_one(extent) and not is_one(result.shape[offset + mode]) else modes[offset + mode]
            for mode, extent in enumerate(value.shape)
        ))  # fmt: skip

    def summed(self, node: fx.Node, modes: Modes) -> str | None:
        """`sum(x, -1) -> sum(k, x[..,k])`."""
        base = tensor_value(node.args[0])
        dims = argument(node, 1, "dim")
        if base is None or not isinstance(dims, list | tuple) or len(dims) != 1:
            return None
        summed = dims[0] % base.dim()
        name = f"k{len(self.sums) or ''}"
        self.sums[name] = base.shape[summed]
        rest = list(modes)
        if argument(node, 2, "keepdim", False):
            del rest[summed]
        inner = self.read(node.args[0], (*rest[:summed], name, *rest[summed:]))
        return None if inner is None or summed == 0 else f"sum({name}, {inner})"


def modes_before(node: fx.Node, modes: Modes) -> Modes | None:
    """The index variables of the operand of a view that adds or takes away modes of extent 1; `None` for others."""
    before, after = tensor_value(node.args[0]), tensor_value(node)
    if before is None or after is None:
        return None
    if operator_name(node) == "unsqueeze":
        mode = argument(node, 1, "dim") % after.dim()
        return modes[:mode] + modes[mode + 1 :]
    if operator_name(node) == "expand":
        offset = after.dim() - before.dim()
        pairs = zip(before.shape, after.shape[offset:], modes[offset:], strict=True)
        return tuple(None if is_one(own) and not is_one(wide) else name for own, wide, name in pairs)
    long = [name for name, extent in zip(modes, after.shape, strict=True) if not is_one(extent)]
    if extents(before) != extents(after):
        return None
    left = iter(long)
    ones = iter([name for name, extent in zip(modes, after.shape, strict=True) if is_one(extent)])
    return tuple(next(ones, None) if is_one(extent) else next(left) for extent in before.shape)


def extents(value: torch.Tensor) -> Sequence[str]:
    """The extents of a tensor but those of 1."""
    return [str(extent) for extent in value.shape if not is_one(extent)]
