"""Data-dependent extents as numbers, from the example inputs of a capture.

In: a graph with `%i = nonzero(%mask)` or `%n = item(%max)`, and the inputs of the call. Out: `known_size(extent of %i,
128)` is the number of nonzeros of the example's mask; otherwise the estimates and benchmarks of passes assume 128.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from sparsify.passes.graph.canonicalize import is_writer
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import ancestors, data_extents, tensor_value, updates_statistics


def note_extents(
    graph: fx.Graph, inputs: Mapping[str, torch.Tensor], attribute: Callable[[str], torch.Tensor]
) -> None:
    """Computes the part of `graph` with data-dependent extents, and records the extents.

    Args:
        graph: functional graph with fake values.
        inputs: tensors of the call by placeholder name.
        attribute: function from qualified names to tensors.
    """
    deciding = list(deciders(graph))
    writers = [node for node in graph.nodes if is_writer(node)] if deciding else []
    needed = set(ancestors([*deciding, *writers]))
    if any(updates_statistics(node) or not is_computable(node) for node in needed):
        return
    values: dict[fx.Node, Any] = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for node in graph.nodes:
            if node not in needed:
                continue
            if node.op == "placeholder":
                example = inputs[str(info(node).input_name or node.target)].detach()
                values[node] = example.clone() if writers else example
            elif node.op == "get_attr":
                stored = attribute(str(node.target)).detach()
                values[node] = (
                    stored.clone() if writers else stored
                )  # or the buffers of the model would change
            else:
                args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
    for node in deciding:
        sizes = values[node].shape if isinstance(values[node], torch.Tensor) else (values[node],)
        for extent, size in zip(numbers_of(node), sizes, strict=True):
            if is_decided(extent):
                data_extents(extent)[extent.node.expr] = size


def deciders(graph: fx.Graph) -> Iterator[fx.Node]:
    """The first node of each data-dependent extent and number."""
    noted = set[Any]()
    for node in graph.nodes:
        decided = {extent.node.expr for extent in numbers_of(node) if is_decided(extent)}
        if decided - noted:
            noted |= decided
            yield node


def numbers_of(node: fx.Node) -> tuple[Any, ...]:
    """The extents of a tensor, or the number computed by a node, nothing for other nodes."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return (value,)
    tensor = tensor_value(node)
    return () if tensor is None else tuple(tensor.shape)


def is_decided(extent: Any) -> bool:
    """Whether an extent is a data-dependent number."""
    return isinstance(extent, torch.SymInt) and extent.node.hint is None and extent.node.expr.is_Symbol


def is_computable(node: fx.Node) -> bool:
    """Whether a node is an input, a tensor of the model or a call of a function."""
    return node.op in ("placeholder", "get_attr", "call_function")
