"""Operators that return a view or a copy depending on strides, where writes expose the difference.

In: `%v = reshape(%x, [-1]); add_(%v, 1)`, which writes into `%x` only if `%x` is contiguous.
Out: `%x` is marked: the graph requires a contiguous tensor in each call.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import torch
from torch import fx

from sparsify.errors import CaptureError
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import ancestors, operator_name, raw_name, tensor_value

aten: Final = torch.ops.aten
# Operators that copy only tensors with other strides than the result's.
STRIDED: Final = frozenset({"contiguous", "reshape", "flatten", "ravel", "reshape_as"})
# Operators with contiguous results for all strides of their operands.
MAKING: Final = frozenset({"linear", "mm", "addmm", "bmm", "embedding"})


def gives_operand(node: fx.Node) -> bool:
    """Whether `node` is `contiguous` of a tensor contiguous in the capture."""
    if raw_name(node) != "contiguous":
        return False
    operand, result = tensor_value(node.args[0]), tensor_value(node)
    assert operand is not None and result is not None, "tensors are contiguous"
    return bool(operand.untyped_storage()._cdata == result.untyped_storage()._cdata)


def mark_inputs(graph: fx.Graph, root_of: Callable[[fx.Node], fx.Node], last: dict[fx.Node, fx.Node]) -> None:
    """Marks the inputs whose strides determine the target of a write.

    Args:
        graph: graph before functionalization.
        root_of: function from a node to the base tensor of its memory.
        last: last write into each base tensor.

    Raises:
        CaptureError: a marked input is not contiguous.
    """
    asking = [
        node.args[0]
        for node in graph.nodes
        if raw_name(node) in STRIDED or node.kwargs.get("memory_format") is not None
        if any(root in last and last[root] > node for root in (root_of(node), root_of(node.args[0])))
    ]
    for source in inputs_that_lay_out(asking):
        value = tensor_value(source)
        if value is None or not value.is_contiguous():
            raise CaptureError(
                f"the strides of {source.target} decide whether the model writes into a copy; give it contiguous"
            )
        set_info(source, is_contiguous=True)


def inputs_that_lay_out(nodes: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """The inputs whose strides determine the strides of `nodes`."""

    def is_followed(node: fx.Node) -> bool:
        return (
            isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))
            and operator_name(node) not in MAKING
        )

    followed = filter(is_followed, ancestors(nodes, is_followed))
    return (node for node in followed if node.op == "placeholder")


def contiguous_inputs(graph: fx.Graph) -> list[int]:
    """The positions of marked inputs."""
    places = graph.find_nodes(op="placeholder")
    return [position for position, node in enumerate(places) if info(node).is_contiguous]


def drop_contiguous(graph: fx.Graph) -> None:
    """Replaces `contiguous` of a tensor contiguous in the capture by its operand."""
    for node in graph.find_nodes(op="call_function", target=aten.contiguous.default):
        if info(node).is_contiguous:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
