"""Operator results sparsified by rules: kept entries, and 0 elsewhere.

In: `%h = relu(%x)`, marked with `inline: {threshold: 0.1}`.
Out: `%k = kept_entries(%h, ScalarThreshold(0.1)); %y = where(%k, %h, 0)`, in the graph and in the reference graph for
verification; readers of `%h` read `%y`.
"""

from dataclasses import replace
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.capture.draft import Draft, Mark
from sparsify.passes.graph.insert import call
from sparsify.passes.graph.kept_entries import kept_entries, sparse_gradient, straight_through, written
from sparsify.passes.graph.node_info import info, set_info
from sparsify.sparsification.rules.streaming import KeepAll
from sparsify.sparsification.sparsified import Parts

aten: Final = torch.ops.aten
SAME: Final = "same"


def sparsified(draft: Draft) -> Draft:
    """The draft with marked results sparsified, in its graph and in the reference graph."""
    chosen = [(node.name, mark) for node in draft.graph.nodes if (mark := mark_of(node)) is not None]
    if not chosen:
        return draft
    if draft.masked is None:
        draft.masked = fx.Graph()
        draft.masked.output(draft.masked.graph_copy(draft.graph, {}))
    for graph in (draft.masked, draft.graph):
        nodes = {node.name: node for node in graph.nodes}
        for name, mark in chosen:
            set_info(nodes[name], mark=None)
            thin = thin_out(nodes[name], mark)
            if graph is draft.graph and mark.outputs is not None:
                set_info(thin, mark=replace(mark, role="activation"), shown=nodes[name])
    return draft


def mark_of(node: fx.Node) -> Mark | None:
    """The mark of a result sparsified by a rule."""
    mark = info(node).mark
    return mark if isinstance(mark, Mark) and (mark.outputs or mark.gradients) is not None else None


def thin_out(node: fx.Node, mark: Mark) -> fx.Node:
    """`%h -> where(kept_entries(%h, sparsifier), %h, 0)` for all readers; gradients follow the mark.

    Returns:
        the node read in place of `%h`.
    """
    readers, at = list(node.users), node
    outputs, gradients = mark.outputs or Parts(), mark.gradients
    mask = None
    for sparsifier in sparsifiers_of(outputs):
        mask = behind(at, kept_entries, at, sparsifier)
        at = behind(mask, aten.where.ScalarOther, mask, at, 0)
    if gradients is not None and gradients.format == SAME:
        origin = at
        if mask is None:
            origin = mask = behind(at, aten.ne.Scalar, at, 0)
        at = behind(origin, sparse_gradient, at, mask, sparsifiers_of(gradients))
    elif gradients is not None:
        at = at if at is node else behind(at, straight_through, node, at)
        at = behind(at, sparse_gradient, at, None, sparsifiers_of(gradients))
    for reader in readers:
        reader.replace_input_with(node, at)
    return at


def sparsifiers_of(parts: Parts) -> tuple[str, ...]:
    """The sparsifiers that drop entries, in order, in the notation of graphs."""
    return tuple([written(one) for one in (parts.inline, parts.external) if not isinstance(one, KeepAll)])


def behind(origin: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A new node after another node, in the same module."""
    with origin.graph.inserting_after(origin):
        node = call(target, *args)
    if "nn_module_stack" in origin.meta:
        node.meta["nn_module_stack"] = origin.meta["nn_module_stack"]
    return node
