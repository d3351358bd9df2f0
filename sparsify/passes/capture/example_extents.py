"""Extents that the data decides, as numbers: those that the example inputs of a capture have.

In: a graph with `%i = nonzero(%mask)`, and the inputs of the call. Out: `known_size(extent of %i, 128)` is how many
entries of the example's mask are not 0; without that the estimates and benchmarks of passes assume 128.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from sparsify.passes.graph.canonicalize import has_effect
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import ancestors, data_extents, tensor_value


def note_extents(
    graph: fx.Graph, inputs: Mapping[str, torch.Tensor], attribute: Callable[[str], torch.Tensor]
) -> None:
    """Computes the part of `graph` that decides extents, and notes these.

    Args:
        graph: a functional graph with fake values.
        inputs: the tensors of the call by the names of placeholders.
        attribute: the tensor with a qualified name.
    """
    deciding = list(deciders(graph))
    needed = set(ancestors(deciding))
    if any(has_effect(node) or not is_computable(node) for node in needed):
        return
    found: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in graph.nodes:
            if node not in needed:
                continue
            if node.op == "placeholder":
                found[node] = inputs[str(info(node).input_name or node.target)].detach()
            elif node.op == "get_attr":
                found[node] = attribute(str(node.target)).detach()
            else:
                args, kwargs = fx.map_arg((node.args, node.kwargs), found.__getitem__)
                found[node] = node.target(*args, **kwargs)
    for node in deciding:
        extents: tuple[Any, ...] = tuple(node.meta["val"].shape)
        for extent, size in zip(extents, found[node].shape, strict=True):
            if is_decided(extent):
                data_extents(extent)[extent.node.expr] = size


def deciders(graph: fx.Graph) -> Iterator[fx.Node]:
    """The first node of each extent that the data decides."""
    known = set[Any]()
    for node in graph.nodes:
        value = tensor_value(node)
        extents: tuple[Any, ...] = () if value is None else tuple(value.shape)
        decided = {extent.node.expr for extent in extents if is_decided(extent)}
        if decided - known:
            known |= decided
            yield node


def is_decided(extent: Any) -> bool:
    """Whether an extent is a number that only the data tells."""
    return isinstance(extent, torch.SymInt) and extent.node.hint is None and extent.node.expr.is_Symbol


def is_computable(node: fx.Node) -> bool:
    """Whether a node is an input, a tensor of the model or a call of a function."""
    return node.op in ("placeholder", "get_attr", "call_function")
