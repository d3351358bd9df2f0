"""Scatters recognised as message passing: reductions of features at indices held by a tensor.

In: `index_add(zeros, 0, batch, relu(linear(x, w)))`. Out: yes; degrees, `index_add(zeros, 0, rows, ones)`, follow from
the structure alone, and are computed once per structure.
"""

from typing import Final

import torch
from torch import fx

from sparsify.passes.graph.operators import argument, is_real, operator_name, tensor_value

SCATTERS: Final = ("index_add", "index_put", "scatter_add", "scatter_reduce")
# Gathers rows and sums them by bag: a scatter with sorted indices.
BAGS: Final = "embedding_bag"
GATHERS: Final = ("index_select", "gather", "index", "embedding")
# Position and name of a scatter's argument over edges, if not `src`.
MESSAGES: Final = {"index_put": (2, "values"), "index_add": (3, "source"), BAGS: (1, "indices")}
# Views that repeat indices along further modes.
REPEATS: Final = ("expand", "expand_as", "view", "unsqueeze", "repeat")
# Operators between a sum and the edges that read the sum.
ENTRYWISE: Final = ("add", "sub", "clamp", "clamp_min", "reciprocal", "detach", "alias", "clone", "getitem")


def scatters_features(node: fx.Node) -> bool:
    """Whether a node reduces values derived from features, at indices held by a tensor."""
    name, value = operator_name(node), tensor_value(node)
    if name not in SCATTERS or value is None or not value.is_floating_point():
        return False
    if name == "index_put" and (
        not argument(node, 3, "accumulate", False) or len(argument(node, 1, "indices")) != 1
    ):
        return False
    return has_features(messages_of(node))


def messages_of(scatter: fx.Node) -> fx.Node:
    """The tensor over edges reduced by a scatter; for bags the indices of the rows."""
    name = operator_name(scatter)
    position, argument_name = MESSAGES.get(name, (3, "src"))
    messages = argument(scatter, position, argument_name)
    assert isinstance(messages, fx.Node), "scatters are of tensors"
    return messages


def has_features(messages: fx.Node) -> bool:
    """Whether messages follow from parameters, from tensors with several modes, or from vectors of nodes."""
    waiting, visited = [messages], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in visited or not is_real(node):
            continue
        visited.add(node)
        if node.op in ("placeholder", "get_attr"):
            if node.op == "get_attr" or node.meta["val"].dim() > 1:
                return True
        elif gathers_by_number(node) and any(read.op == "placeholder" for read in real_sources(node)):
            return True
        waiting += node.all_input_nodes
    return False


def gathers_by_number(node: fx.Node) -> bool:
    """Whether a node gathers by integers; boolean masks only select entries, such as edges."""
    if operator_name(node) not in GATHERS:
        return False
    places = [tensor_value(read) for read in node.all_input_nodes if not is_real(read)]
    return any(index is not None and index.dtype != torch.bool for index in places)


def real_sources(node: fx.Node) -> list[fx.Node]:
    """The inputs and parameters of real numbers that determine the values of a tensor."""
    waiting, visited = [node], set[fx.Node]()
    while waiting:
        read = waiting.pop()
        if read not in visited and is_real(read):
            visited.add(read)
            waiting += read.all_input_nodes
    return [read for read in visited if read.op in ("placeholder", "get_attr")]


def reason_against(node: fx.Node) -> str:
    """Why a scatter is no message passing, "" for other nodes."""
    if operator_name(node) not in SCATTERS or scatters_features(node):
        return ""
    value = tensor_value(node)
    if value is None or not value.is_floating_point():
        return "scatters whole numbers"
    return "scatters no features: what it sums follows from the structure of a graph alone"


def is_inner(scatter: fx.Node) -> bool:
    """Whether only the reduced edges read a scatter's result back, as with the sums of a softmax."""
    places = set(scatter.all_input_nodes)
    waiting, visited = list(scatter.users), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in visited:
            continue
        visited.add(node)
        if operator_name(node) in GATHERS and not places.isdisjoint(sources_of_places(node)):
            continue
        if operator_name(node) not in ENTRYWISE:
            return False
        waiting += node.users
    return bool(visited)


def sources_of_places(node: fx.Node) -> set[fx.Node]:
    """The indices of a gather, with the views that repeat them."""
    result, waiting = set[fx.Node](), [read for read in node.all_input_nodes if not is_real(read)]
    while waiting:
        read = waiting.pop()
        result.add(read)
        result |= {user for user in read.users if operator_name(user) in REPEATS}
        waiting += [read.all_input_nodes[0]] if operator_name(read) in REPEATS else []
    return result
