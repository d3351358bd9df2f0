"""Hoisted exchanges, determined by edges alone: degrees and normalisations do not travel in each call.

In: a graph over local rows, `%h = halo_exchange(%degree)` with `%degree` computed from `edge_index`. Out: the same
graph with a buffer in place of `%h`, computed once by all processes.
"""

from collections.abc import Collection, Mapping, Sequence
from operator import getitem
from typing import Any, Final

import torch
from torch import Tensor, fx

from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import is_mutating, is_random
from sparsify.scale.overlap import exchange  # noqa: F401  registers the operators
from sparsify.scale.placement import Placement
from sparsify.scale.variant import attach

EXCHANGES: Final = (
    torch.ops.sparsify.halo_exchange.default,
    torch.ops.sparsify.halo_reduce.default,
    torch.ops.sparsify.all_reduce_sum.default,
    torch.ops.sparsify.all_reduce_amax.default,
    torch.ops.sparsify.exchange_halo.default,
)
# Exchanges of an overlap with results that are no tensors.
STEPS: Final = (torch.ops.sparsify.exchange_begin.default, torch.ops.sparsify.halves_reduce.default)
SIZES: Final = (torch.ops.aten.sym_size.int,)


def hoist(
    module: fx.GraphModule,
    inputs: Mapping[str, Placement],
    tensors: Sequence[Tensor],
    buffers: Collection[str],
) -> None:
    """Replaces exchanges determined by edges alone by buffers; called by all processes of a graph together.

    Args:
        module: module over local rows; its graph changes.
        inputs: placements of the inputs, by name.
        tensors: tensors of a call, in the order of the inputs.
        buffers: names of buffers determined by edges.
    """
    graph = module.graph
    given = dict(zip(graph.find_nodes(op="placeholder"), tensors, strict=True))
    known = {node for node in given if inputs[str(info(node).input_name or node.target)].numbers}
    for node in graph.nodes:
        if _is_known(node, known, buffers):
            known.add(node)
    wanted = [node for node in graph.nodes if node in known and _is_exchanged(node)]
    values: dict[fx.Node, Any] = {}
    needed = _needed(wanted)
    with torch.no_grad():
        for node in graph.nodes:
            if node in needed:
                values[node] = given[node] if node in given else _value(module, node, values)
    for number, node in enumerate(wanted):
        name = f"hoisted_{number}"
        attach(module, name, values[node])
        with graph.inserting_before(node):
            read = graph.get_attr(name)
        read.meta |= node.meta
        node.replace_all_uses_with(read)
        graph.erase_node(node)
    for node in reversed(graph.nodes):
        if node.target in STEPS and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    module.recompile()


def _is_exchanged(node: fx.Node) -> bool:
    """Whether a tensor is the result of an exchange."""
    if node.target is getitem:
        return node.all_input_nodes[0].target in STEPS
    return node.target in EXCHANGES


def _is_known(node: fx.Node, known: set[fx.Node], buffers: Collection[str]) -> bool:
    """Whether edges and the sizes of a call determine the value of a node."""
    if node.target in SIZES:
        return True
    if node.op == "get_attr":
        return str(node.target) in buffers
    if node.op != "call_function":
        return False
    is_pure = node.target in (*EXCHANGES, *STEPS) or not (is_random(node) or is_mutating(node))
    return is_pure and all(operand in known for operand in node.all_input_nodes)


def _needed(wanted: Sequence[fx.Node]) -> set[fx.Node]:
    """Nodes with all their transitive operands."""
    found: set[fx.Node] = set()
    stack = list(wanted)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def _value(module: fx.GraphModule, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """The value of a node."""
    if node.op == "get_attr":
        return getattr(module, str(node.target))
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: values[operand])
    return node.target(*args, **kwargs)  # type: ignore[operator]
