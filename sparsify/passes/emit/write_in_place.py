"""In-place writes into tensors without later readers.

In: `%n = index_copy(%cache, 0, %i, %k)`, `copy_(%cache, %n)`, where `%n` is the last reader of `%cache`.
Out: `%n = index_copy_(%cache, 0, %i, %k)`.
In: `%n = slice_scatter(%h, %v, 1, 0, 4)`, with `%h` created in the graph and without later readers.
Out: `copy_(slice(%h, 1, 0, 4), %v)`, and reads of `%n` are reads of `%h`.

Graphs are functional up to this pass; in-place writes save copies of the written tensors.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.capture.draft import Draft
from sparsify.passes.functional.pure_writes import argument_types
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import operator_name, raw_name

aten: Final = torch.ops.aten
SCATTERS: Final = {"select_scatter": aten.select.int, "slice_scatter": aten.slice.Tensor}
# Operators without aliasing results in their schemas that may return their operand.
RETURNING: Final = frozenset(
    {
        *("dropout", "alpha_dropout", "feature_alpha_dropout", "einsum", "type_as", "lift_fresh_copy"),
        *("_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "sum_to_size"),
        *("broadcast_tensors", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d"),
    }
)


def write_in_place(draft: Draft) -> Draft:
    """The draft with writes in place where no later read changes its value."""
    graph = draft.graph
    for node in list(graph.nodes):
        if raw_name(node) == "copy_" and node.args[0].op in ("placeholder", "get_attr"):
            write_outside(node)
    for node in list(graph.nodes):
        if operator_name(node) in SCATTERS and info(node).is_write and is_last_reader(node):
            base = node.args[0]
            if is_fresh_result(base):
                scatter_into(node)
    return draft


def write_outside(copy: fx.Node) -> None:
    """Replaces updates of an input or buffer and the copy back by in-place operators, if all have such forms."""
    outside, chain = copy.args[0], list(updates(copy))
    if not chain or chain[-1].args[0] is not outside:
        return
    for node in chain:
        has_form = operator_name(node) in SCATTERS or form_in_place(node) is not None
        if not has_form or not is_last_reader(node, copy):
            return
    copy.graph.erase_node(copy)
    for node in reversed(chain):
        if operator_name(node) in SCATTERS:
            scatter_into(node)
        else:
            node.target = form_in_place(node)


def updates(copy: fx.Node) -> Iterator[fx.Node]:
    """The chain of updates from last to first; each operator updates the result of its predecessor."""
    node: Any = copy.args[1]
    while isinstance(node, fx.Node) and node.op == "call_function" and info(node).is_write:
        yield node
        node = node.args[0]


def form_in_place(node: fx.Node) -> Any:
    """The overload that writes its result into its first argument, `None` without one."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    packet = getattr(aten, f"{node.target._schema.name.split('::')[-1]}_", None)
    if packet is None:
        return None
    types = argument_types(node.target)
    overloads = (getattr(packet, name) for name in packet.overloads())
    return next((form for form in overloads if argument_types(form) == types), None)


def is_last_reader(node: fx.Node, copy: fx.Node | None = None) -> bool:
    """Whether `node` is the last reader of its overwritten operand, and no kernel reads the operand at all.

    Kernels save their operands for gradients.

    Args:
        node: operator that overwrites its first operand.
        copy: copy of the result into an input or a buffer.
    """
    base = node.args[0]
    assert isinstance(base, fx.Node), "tensors are nodes"
    waiting, noted = [base], set[fx.Node]()
    while waiting:
        one = waiting.pop()
        for user in one.users:
            if user in (node, copy) or user in noted:
                continue
            noted.add(user)
            if copy is not None and user > copy:
                continue  # reads the result of the copy
            is_torch = isinstance(user.target, torch._ops.OpOverload)
            if not is_torch or user > node:
                return False
            if may_share(user):
                waiting.append(user)
    return True


def may_share(node: fx.Node) -> bool:
    """Whether the result of an operator may alias its operand."""
    returns = node.target._schema.returns  # type: ignore[union-attr]
    return any(one.alias_info is not None for one in returns) or returns_operand(node)


def returns_operand(node: fx.Node) -> bool:
    """Whether an operator may return its operand, or a view, although its schema declares fresh results."""
    return bool({raw_name(node), operator_name(node)} & RETURNING)


def is_fresh_result(node: Any) -> bool:
    """Whether a tensor is a fresh result of an operator of torch, without aliases."""
    if not isinstance(node, fx.Node) or not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return len(returns) == 1 and returns[0].alias_info is None and not returns_operand(node)


def scatter_into(node: fx.Node) -> None:
    """Replaces a scatter by a write into a view of its first operand."""
    base, value, *where = node.args
    with node.graph.inserting_before(node):
        part = node.graph.call_function(SCATTERS[operator_name(node)], (base, *where))
        part.meta["val"] = value.meta["val"]  # type: ignore[union-attr]
        node.graph.call_function(aten.copy_.default, (part, value)).meta = dict(part.meta)
    node.replace_all_uses_with(base)  # type: ignore[arg-type]
    node.graph.erase_node(node)
