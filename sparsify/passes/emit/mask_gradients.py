"""Masks for trained weights whose zeros would get gradients: read by torch's operators, or in blocks.

In: `%y = conv_transpose1d(%x, %w)` for a `%w` pruned by a rule, in no region.
Out: the same graph, and a note that `%w` trains under a mask (`storage/subclass/trained_masks.py`): the recorded mask
of the weight, or its nonzeros when the graph is compiled.
"""

from typing import Any, TypeGuard

import torch
from torch import fx, nn

from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.node_info import info, set_info
from sparsify.passes.graph.operators import is_mutating
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.subclass import trained_masks
from sparsify.storage.tensor import SparseTensor


def keep_zeros(draft: Draft) -> Draft:
    """The draft with sparse weights restricted to gradients at their nonzeros, for all readers."""
    if draft.is_trainable:
        stays = remaining(draft)
        for weight in draft.graph.find_nodes(op="get_attr"):
            if isinstance(weight.meta.get("val"), SparseTensor):
                continue  # gradients have the weight's own pattern
            mark = info(weight).mark
            if not is_sparse(mark):
                continue
            readers = [user for user in weight.users if user in stays and has_tensors(user)]
            if any(map(is_mutating, readers)):
                continue
            if readers or stores_zeros(draft.captured.tensor(draft.model, str(weight.target)), mark.format):
                set_info(weight, is_under_mask=True)
    return draft


def stores_zeros(weight: torch.Tensor, format: str) -> bool:
    """Whether a format stores zeros of a weight, such as zeros within blocks: kernels give them gradients."""
    levels = [level.rpartition(":")[2].strip() for level in format.split(",")]
    kinds = "".join(
        "d" if level == "dense" else "c" if level.startswith("compressed") else "o" for level in levels
    )
    if format == "auto" or ("o" not in kinds and "cd" not in kinds) or isinstance(weight, SparseTensor):
        return False
    entries = trained_masks.entries(weight.detach())
    return tensor(entries.float(), format).nnz > int(entries.count_nonzero())


def remaining(draft: Draft) -> set[fx.Node]:
    """Nodes outside of regions, and replaced nodes with outside readers, such as parts of weights."""
    covered = {node for region in draft.regions for node in region.covered}
    results = {node for region in draft.regions for node in region.outputs}
    nodes: set[fx.Node] = set()
    for node in reversed(draft.graph.nodes):
        if node not in covered or (node not in results and any(user in nodes for user in node.users)):
            nodes.add(node)
    return nodes


def has_tensors(node: fx.Node) -> bool:
    """Whether a node is a tensor or several ones, and not an extent."""
    value = node.meta.get("val")
    return any(
        isinstance(part, torch.Tensor) for part in (value if isinstance(value, list | tuple) else [value])
    )


def is_sparse(mark: Any) -> TypeGuard[Mark]:
    """Whether a mark is of a weight stored without its zeros."""
    if not isinstance(mark, Mark) or mark.role != "weight":
        return False
    return drops_zeros(mark.format)


def drops_zeros(format: str) -> bool:
    """Whether a format, `dense, compressed`, does not store all zeros."""
    return any(level.strip() != "dense" for level in format.split(","))


def is_kept_sparse(weight: fx.Node) -> bool:
    """Whether the zeros of a weight get no gradients: trained under a mask, or read by regions only."""
    return info(weight).is_under_mask or all(is_call(user) for user in weight.users)


def remember_masks(graph: fx.Graph, model: nn.Module) -> None:
    """Records the present nonzeros as masks of weights trained under masks, where none is recorded yet."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for node in graph.find_nodes(op="get_attr"):
        weight = parameters.get(str(node.target)) if info(node).is_under_mask else None
        if weight is None or isinstance(weight, SparseTensor) or trained_masks.is_remembered(weight):
            continue
        trained_masks.remember(weight, trained_masks.entries(weight))
