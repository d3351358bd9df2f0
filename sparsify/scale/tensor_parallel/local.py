"""The graph of one process with its part of the weights.

In: a captured graph and its `Splits`. Out: `local_module(...)`; split products read rows or columns of weights,
with `share` in front of a pair and of other tensors that the pair reads, and `sum_parts` behind.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn

import sparsify
from sparsify.scale.tensor_parallel.split import Split, Splits
from sparsify.scale.variant import attach
from sparsify.storage.tensor import SparseTensor

aten = torch.ops.aten


def local_module(
    graph: fx.Graph, splits: Splits, tensor: Callable[[str], Tensor], rank: int, group: int
) -> fx.GraphModule:
    """The module of a process.

    Args:
        graph: the captured graph.
        splits: splits of the graph.
        tensor: parameters, buffers and constants by name.
        rank: rank of the process.
        group: group as numbered by `collectives.register`.
    """
    made = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    shared: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node in splits.rows:
            rows, weight, *bias = node.args
            part = made.call_function(aten.linear.default, (copies[rows], copies[weight]))
            copies[node] = made.call_function(torch.ops.sparsify.sum_parts.default, (part, group))
            if bias and bias[0] is not None:
                copies[node] = made.call_function(aten.add.Tensor, (copies[node], copies[bias[0]]))
            continue
        whole = _whole_operands(splits, node)
        for operand in whole:
            if operand not in shared:
                shared[operand] = made.call_function(
                    torch.ops.sparsify.share.default, (copies[operand], group)
                )
        copies[node] = made.node_copy(node, lambda n, whole=whole: (shared if n in whole else copies)[n])  # type: ignore[misc]
        _divide(made, copies[node], splits, node)
    root = nn.Module()
    cuts = cuts_of(splits)
    for node in graph.find_nodes(op="get_attr"):
        name = str(node.target)
        attach(
            root,
            name,
            part_of(tensor(name), cuts[name], rank, splits.count) if name in cuts else tensor(name),
        )
    return fx.GraphModule(root, made)


def _whole_operands(splits: Splits, node: fx.Node) -> list[fx.Node]:
    """The operands of a call with results in parts that all processes have: their gradients are sums over processes."""
    if node not in splits.steps:
        return []
    cut = node.args[1:] if node in splits.columns else splits.steps[node].cut
    return [
        operand
        for operand in node.all_input_nodes
        if operand not in splits.steps
        and operand not in cut
        and isinstance(value := operand.meta.get("val"), Tensor)
        and (value.is_floating_point() or value.is_complex())
    ]


def _divide(graph: fx.Graph, copy: Any, splits: Splits, node: fx.Node) -> None:
    """Divides the size of the split mode in the arguments of a call."""
    step = splits.steps.get(node)
    if step is None or step.size is None:
        return
    at, place = step.size
    sizes = copy.args[at]
    size = sizes if place is None else sizes[place]
    if isinstance(size, fx.Node):
        with graph.inserting_before(copy):
            size = graph.call_function(operator.floordiv, (size, splits.count))
    elif size != -1:
        size //= splits.count
    if place is not None:
        size = [*sizes[:place], size, *sizes[place + 1 :]]
    copy.update_arg(at, size)


def cuts_of(splits: Splits) -> dict[str, Split]:
    """The cut mode of each parameter, by name."""
    found: dict[str, Split] = {}
    for node, outer in splits.columns.items():
        for parameter in node.args[1:]:
            if isinstance(parameter, fx.Node):
                found[str(parameter.target)] = Split(0, outer)
    for node, split in splits.rows.items():
        assert isinstance(node.args[1], fx.Node), "the weight of a product"
        found[str(node.args[1].target)] = Split(1, split.outer)
    for step in splits.steps.values():
        found |= {str(node.target): split for node, split in step.cut.items()}
    return found


def part_of(whole: Tensor, split: Split, rank: int, count: int) -> Tensor:
    """The part of a parameter in a process.

    >>> part_of(torch.arange(8), Split(0, 2), 1, 2)
    tensor([2, 3, 6, 7])
    """
    dense = whole.to_dense() if isinstance(whole, SparseTensor) else whole
    part = dense.detach().unflatten(split.mode, (int(split.outer), count, -1)).select(split.mode + 1, rank)
    part = part.flatten(split.mode, split.mode + 1).clone(memory_format=torch.contiguous_format)
    if isinstance(whole, SparseTensor):
        part = sparsify.tensor(part, whole.format)
    return nn.Parameter(part, requires_grad=whole.requires_grad) if isinstance(whole, nn.Parameter) else part


def whole_of(part: Tensor, split: Split | None, group: Any) -> Tensor:
    """The whole parameter from the parts of all processes, dense; called by all processes of the group."""
    dense = (part.to_dense() if isinstance(part, SparseTensor) else part).detach().contiguous()
    if split is None:
        return dense
    count = dist.get_world_size(group)
    parts = [torch.empty_like(dense) for _ in range(count)]
    dist.all_gather(parts, dense, group=group)
    apart = [one.unflatten(split.mode, (int(split.outer), -1)) for one in parts]
    return torch.stack(apart, split.mode + 1).flatten(split.mode, split.mode + 2)
