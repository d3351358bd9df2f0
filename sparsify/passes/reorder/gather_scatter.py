"""Recognition of message passing: gather node rows, compute over edges, reduce at receivers.

In: `%g = index_select(%x, 0, %col); %m = mul(view(%w, [-1, 1]), %g); %y = index_add(zeros, 0, %row, %m)`.
Out: `GatherScatter(node=%y, rows=%row, columns=%col, gather=%g, weights=[%w], extent=n)`. Any computation over edges
between gather and scatter is independent of the order of nodes.
"""

from dataclasses import dataclass
from typing import Any

from torch import fx

from sparsify.passes.graph.operators import ancestors, argument, operator_name, tensor_value


@dataclass(frozen=True)
class GatherScatter:
    """One step of message passing.

    Attributes:
        node: the scatter.
        rows, columns: receiving and sending node of each edge, [edges].
        gather: rows of the sending nodes, [edges, features].
        weights: other sources of the messages.
        extent: number of receiving nodes, a number or a size node.
    """

    node: fx.Node
    rows: fx.Node
    columns: fx.Node
    gather: fx.Node
    weights: list[fx.Node]
    extent: Any

    @property
    def features(self) -> fx.Node:
        """The gathered tensor, [nodes, features]."""
        tensor = self.gather.args[0]
        assert isinstance(tensor, fx.Node), "rows are those of tensors"
        return tensor


def recognise(node: fx.Node) -> GatherScatter | None:
    """The message passing with the scatter `node`, None for other nodes."""
    parts, value = scatter_parts(node), tensor_value(node)
    if parts is None or value is None or value.dim() != 2 or not is_zeros(parts[0]):
        return None
    base, rows, messages = parts
    gathers, weights = over_edges(messages)
    if len(gathers) != 1:
        return None
    columns = gathered_index(gathers[0])
    assert columns is not None, "gathers have an index"
    return GatherScatter(node, rows, columns, gathers[0], weights, base.args[0][0])  # type: ignore[index]


def over_edges(messages: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
    """The gathers that messages over edges are computed from, and the other sources of the messages."""
    edges = str(messages.meta["val"].shape[0])

    def is_passed(node: fx.Node) -> bool:
        value = tensor_value(node)
        has_edges = value is not None and value.dim() > 0 and str(value.shape[0]) == edges
        return has_edges and bool(node.all_input_nodes) and gathered_index(node) is None

    ends = [node for node in ancestors([messages], is_passed) if not is_passed(node)]
    gathers = [n for n in ends if gathered_index(n) is not None and n.meta["val"].dim() == 2]
    return gathers, [n for n in ends if n not in gathers and tensor_value(n) is not None]


def scatter_parts(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """(base, row of each message [edges], messages) of a scatter-sum along the first mode."""
    name = operator_name(node)
    base = node.args[0] if node.args else None
    if not isinstance(base, fx.Node):
        return None
    if name == "index_put":
        indices, source = argument(node, 1, "indices"), argument(node, 2, "values")
        accumulates = argument(node, 3, "accumulate", False)
        if not accumulates or not isinstance(indices, list | tuple) or len(indices) != 1:
            return None
        return checked(base, indices[0], source)
    dim, index, source = argument(node, 1, "dim"), argument(node, 2, "index"), argument(node, 3, "src")
    if name == "index_add":
        source = argument(node, 3, "source")
        ok = argument(node, 4, "alpha", 1) == 1
    elif name == "scatter_add":
        ok, index = True, spread_index(index)
    elif name == "scatter_reduce":
        ok, index = argument(node, 4, "reduce") == "sum", spread_index(index)
    else:
        return None
    return checked(base, index, source) if ok and is_first_mode(dim, base) else None


def checked(base: fx.Node, index: Any, source: Any) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """The three parts when the index is a vector."""
    value = tensor_value(index)
    if value is None or value.dim() != 1 or not isinstance(source, fx.Node):
        return None
    return base, index, source


def is_first_mode(dim: Any, node: fx.Node) -> bool:
    """Whether `dim` is the first mode of the tensor of `node`."""
    value = tensor_value(node)
    return value is not None and dim in (0, -value.dim())


def spread_index(index: Any) -> Any:
    """The vector [edges] repeated in every column of an index [edges, features], None for other indices."""
    if not isinstance(index, fx.Node):
        return None
    value = tensor_value(index)
    if value is not None and value.dim() == 1:
        return index
    column = index.args[0] if operator_name(index) in ("expand", "expand_as", "repeat") else None
    if not isinstance(column, fx.Node) or operator_name(column) not in ("view", "unsqueeze"):
        return None
    vector = column.args[0]
    inner, outer = tensor_value(vector), tensor_value(column)
    is_column = inner is not None and inner.dim() == 1 and outer is not None and outer.dim() == 2
    return vector if is_column and outer.shape[1] == 1 else None  # type: ignore[union-attr]


def is_zeros(node: fx.Node) -> bool:
    """Whether `node` makes a tensor of zeros with an explicit size."""
    name = operator_name(node)
    if name == "full":
        return bool(argument(node, 1, "fill_value") == 0)
    return name == "zeros" and isinstance(node.args[0], list | tuple)


def gathered_index(node: fx.Node) -> fx.Node | None:
    """The vector by which `node` gathers rows, None for other nodes."""
    name = operator_name(node)
    index: Any = None
    if name == "index_select" and isinstance(node.args[0], fx.Node):
        index = argument(node, 2, "index") if is_first_mode(argument(node, 1, "dim"), node.args[0]) else None
    elif name == "index":
        indices = argument(node, 1, "indices")
        index = indices[0] if isinstance(indices, list | tuple) and len(indices) == 1 else None
    elif name == "gather":
        index = spread_index(argument(node, 2, "index")) if argument(node, 1, "dim") in (0, -2) else None
    elif name == "embedding":
        index = argument(node, 1, "indices")
    value = tensor_value(index)
    if value is None or value.dim() != 1 or value.dtype.is_floating_point or str(value.dtype) == "torch.bool":
        return None
    return index if isinstance(index, fx.Node) else None
