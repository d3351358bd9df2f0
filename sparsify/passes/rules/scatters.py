"""Scatters that rules call message passing: of what follows from features, to places that a tensor holds.

In: `index_add(zeros, 0, batch, relu(linear(x, w)))`. Out: yes; degrees, `index_add(zeros, 0, rows, ones)`, follow from
the structure alone, and are computed once for it.
"""

from typing import Any, Final

from torch import fx

from sparsify.passes.graph.operators import argument, operator_name, sources, tensor_value

SCATTERS: Final = ("index_add", "index_put", "scatter_add", "scatter_reduce")
GATHERS: Final = ("index_select", "gather", "index", "embedding")


def scatters_features(node: fx.Node) -> bool:
    """Whether a node sums, or otherwise reduces, what follows from features by places that a tensor holds."""
    name, value = operator_name(node), tensor_value(node)
    if name not in SCATTERS or value is None or not value.is_floating_point():
        return False
    if name == "index_put":
        if not argument(node, 3, "accumulate", False) or len(argument(node, 1, "indices")) != 1:
            return False
        return has_features(argument(node, 2, "values"))
    return has_features(argument(node, 3, "source" if name == "index_add" else "src"))


def has_features(messages: Any) -> bool:
    """Whether messages follow from parameters, from tensors with several modes, or from vectors of nodes."""
    if not isinstance(messages, fx.Node):
        return False
    waiting, seen = [messages], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        value = tensor_value(node)
        is_float = value is not None and value.is_floating_point()
        if is_float and value is not None and node.op in ("placeholder", "get_attr"):
            if node.op == "get_attr" or value.dim() > 1:
                return True
        elif is_float and operator_name(node) in GATHERS:
            read = node.args[0]
            if any(is_real(source) for source in sources([read])):
                return True
        waiting += node.all_input_nodes
    return False


def is_real(node: fx.Node) -> bool:
    """Whether an input or a parameter has real numbers."""
    value = tensor_value(node)
    return value is not None and value.is_floating_point()
