"""Weights with zeros that torch's operators read in training: what is 0 gets no gradient, as in kernels.

In: `%y = conv_transpose1d(%x, %w)` for a `%w` that a rule prunes, in no region.
Out: `%k = trained_entries(%w); %v = mul(%w, %k); %y = conv_transpose1d(%x, %v)`, where entries are what is not 0,
or the mask that the weight remembers.
"""

from typing import Any

import torch
from torch import fx

from sparsify.compiler.torch_operator import Operator, register
from sparsify.passes.call.region_operator import is_call
from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.node_info import info
from sparsify.passes.graph.operators import TRAINED_ENTRIES, is_mutating, operator_name
from sparsify.storage.tensor import SparseTensor
from sparsify.storage.trained_masks import entries

aten = torch.ops.aten
_library = register(
    Operator(
        f"{TRAINED_ENTRIES}(Tensor weight) -> Tensor",
        entries,
        lambda w: w.new_empty(w.shape, dtype=torch.bool),
    )
)


def keep_zeros(draft: Draft) -> Draft:
    """The draft whose sparse weights get gradients where they are not 0, whoever reads them."""
    if draft.is_trainable:
        stays = remaining(draft)
        for weight in draft.graph.find_nodes(op="get_attr"):
            if isinstance(weight.meta.get("val"), SparseTensor):
                continue  # its gradients lie on its pattern
            readers = [user for user in weight.users if user in stays and has_tensors(user)]
            if is_sparse(info(weight).mark) and readers and not any(map(is_mutating, readers)):
                mask(weight, readers)
    return draft


def remaining(draft: Draft) -> set[fx.Node]:
    """The nodes that regions do not replace, and those that they replace and that others read, as parts of weights."""
    covered = {node for region in draft.regions for node in region.covered}
    results = {node for region in draft.regions for node in region.outputs}
    found: set[fx.Node] = set()
    for node in reversed(draft.graph.nodes):
        if node not in covered or (node not in results and any(user in found for user in node.users)):
            found.add(node)
    return found


def has_tensors(node: fx.Node) -> bool:
    """Whether a node is a tensor or several ones, and not an extent."""
    value = node.meta.get("val")
    return any(
        isinstance(part, torch.Tensor) for part in (value if isinstance(value, list | tuple) else [value])
    )


def is_sparse(mark: Any) -> bool:
    """Whether a mark is that of a weight of which zeros are not stored."""
    if not isinstance(mark, Mark) or mark.role != "weight":
        return False
    return any(level.strip() != "dense" for level in mark.format.split(","))


def is_kept_sparse(weight: fx.Node) -> bool:
    """Whether nothing reads a weight in a way that gives its zeros gradients: regions alone do, or `w * entries(w)`."""
    return all(is_call(user) or _is_mask(user) for user in weight.users)


def _is_mask(user: fx.Node) -> bool:
    """Whether a reader of a weight is one of those that `mask` makes."""
    other = user.args[1] if operator_name(user) == "mul" else None
    return operator_name(user) == TRAINED_ENTRIES or (
        isinstance(other, fx.Node) and operator_name(other) == TRAINED_ENTRIES
    )


def mask(weight: fx.Node, readers: list[fx.Node]) -> None:
    """Gives some readers `w * entries(w)` in place of a weight."""
    with weight.graph.inserting_before(min(readers)):
        is_kept = weight.graph.call_function(torch.ops.sparsify.trained_entries.default, (weight,))
        entries = weight.graph.call_function(aten.mul.Tensor, (weight, is_kept))
    value = weight.meta["val"]
    is_kept.meta["val"], entries.meta["val"] = value != 0, value
    for reader in readers:
        reader.replace_input_with(weight, entries)
