"""Inlining of blocks that export wraps in operators: `no_grad` and disabled autocast.

In: `%s = wrap_with_set_grad_enabled(False, %submodule, %x); %y = getitem(%s, 0)`.
Out: the nodes of the submodule, and `%y = detach(...)`, which blocks gradients as the block did.
"""

from typing import Any

import torch
from torch import fx

from sparsify.errors import CaptureError
from sparsify.passes.functional.layouts import gives_operand
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import is_mutating, tensor_value

GRAD = "wrap_with_set_grad_enabled"
AUTOCAST = "wrap_with_autocast"


def inline_blocks(graph: fx.Graph, root: torch.nn.Module) -> None:
    """Inlines the submodules called by `graph`.

    Args:
        graph: graph of `root`, changed in place.
        root: module with the submodules.

    Raises:
        CaptureError: a block turns autocast on, which changes the dtypes inside the block, or changes the shape of an
            outer tensor.
    """
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "")
        if node.op != "call_function" or name not in (GRAD, AUTOCAST):
            continue
        if name == AUTOCAST and node.args[2]:
            raise CaptureError("the model turns autocast on inside", "call the model without it")
        lets_through = name == AUTOCAST or bool(node.args[0])
        at = 4 if name == AUTOCAST else 1
        holder, operands = node.args[at], node.args[at + 1 :]
        assert isinstance(holder, fx.Node), "export keeps the block as an attribute"
        block = root.get_submodule(str(holder.target))
        assert isinstance(block, fx.GraphModule), "blocks are graphs"
        inline_blocks(block.graph, block)
        results = _copied(node, block, operands, has_gradients=lets_through if name == GRAD else None)
        _put_results(node, results, lets_through)
        if not holder.users:
            graph.erase_node(holder)


def _copied(
    call: fx.Node, block: fx.GraphModule, operands: Any, *, has_gradients: bool | None
) -> list[fx.Node]:
    """The results of a block, with its nodes copied to the call and marked by their gradient mode."""
    places = block.graph.find_nodes(op="placeholder")
    copies = dict(zip(places, operands, strict=True))
    with call.graph.inserting_before(call):
        results = call.graph.graph_copy(block.graph, copies)
    if has_gradients is not None:
        for node in block.graph.nodes:
            if node.op.startswith("call") and info(copies[node]).has_no_grad is None:
                set_info(copies[node], has_no_grad=not has_gradients)
    return list(results) if isinstance(results, (list, tuple)) else [results]  # type: ignore[list-item]


def _put_results(call: fx.Node, results: list[fx.Node], lets_through: bool) -> None:
    """Replaces the results of a call by the results of the block."""
    for number, result in enumerate(results):
        users = [user for user in call.users if user.args == (call, number)]
        if not users:
            continue
        value = written_operand(result)
        is_outside = value in call.all_input_nodes
        if is_outside and placed(value) != placed(result):
            raise CaptureError(
                f"the model changes the shape of {value} in place where gradients are disabled"
            )
        value = value if is_outside else result
        if not (lets_through or is_outside):
            with call.graph.inserting_before(call):
                value = call.graph.call_function(torch.ops.aten.detach.default, (result,))
            value.meta = dict(result.meta)
        for user in users:
            user.replace_all_uses_with(value)
            call.graph.erase_node(user)
    call.graph.erase_node(call)


def placed(node: fx.Node) -> str:
    """Order of the entries of a tensor in memory."""
    value = tensor_value(node)
    return "" if value is None else f"{value.shape} {value.stride()}"


def written_operand(node: fx.Node) -> fx.Node:
    """The operand returned by `node`, followed back through operators that return or overwrite their operand."""
    while isinstance(node, fx.Node) and (is_mutating(node) or gives_operand(node)):
        if not isinstance(node.args[0], fx.Node):
            break
        node = node.args[0]
    return node
