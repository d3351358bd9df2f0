"""Message passing, recognised by its operators: gather rows, weight them, scatter-add them.

In: `%g = index_select(%x, 0, %col); %m = mul(view(%w, [-1, 1]), %g); %y = index_add(zeros, 0, %row, %m)`.
Out: `GatherScatter(node=%y, rows=%row, columns=%col, features=%x, weights=(%w,))`, that is
`y[i,k] += A[i,j] * x[j,k]` with `w` the entries of `A` at (row, col).
"""

from dataclasses import dataclass, field
from typing import Any

from torch import fx

from sparsify.passes.graph.operators import argument, operator_name, tensor_value


@dataclass(frozen=True)
class GatherScatter:
    """One step of message passing.

    Attributes:
        node: the scatter.
        rows: receiving node of each edge, [edges].
        columns: sending node of each edge, [edges].
        features: what is gathered, [nodes, features].
        weights: factors of each edge, [edges] each.
        divisors: what each edge is divided by, [edges] each.
        scale: constant factor.
        extent: number of receiving nodes, a number or a size node.
        covered: the nodes that the product replaces.
    """

    node: fx.Node
    rows: fx.Node
    columns: fx.Node
    features: fx.Node
    weights: tuple[fx.Node, ...]
    divisors: tuple[fx.Node, ...]
    scale: float
    extent: Any
    covered: tuple[fx.Node, ...]


@dataclass
class Message:
    """What is known of a message while its factors are taken apart."""

    gather: fx.Node | None = None
    weights: list[fx.Node] = field(default_factory=list)
    divisors: list[fx.Node] = field(default_factory=list)
    scale: float = 1.0
    covered: list[fx.Node] = field(default_factory=list)


def recognise(node: fx.Node) -> GatherScatter | None:
    """The message passing that ends in the scatter `node`, None when it is something else."""
    parts = scatter_parts(node)
    if parts is None:
        return None
    base, rows, source = parts
    value = tensor_value(node)
    if value is None or value.dim() != 2 or not is_zeros(base):
        return None
    message = Message()
    if not take_apart(source, message) or message.gather is None:
        return None
    columns = gathered_index(message.gather)
    features = message.gather.args[0]
    if columns is None or not isinstance(features, fx.Node):
        return None
    return GatherScatter(
        node=node,
        rows=rows,
        columns=columns,
        features=features,
        weights=tuple(message.weights),
        divisors=tuple(message.divisors),
        scale=message.scale,
        extent=base.args[0][0],  # type: ignore[index]
        covered=(node, *message.covered),
    )


def reason(node: fx.Node) -> str:
    """Why a scatter is no message passing that can be lifted, "" when it can or when it is no scatter."""
    name = operator_name(node)
    if name not in ("scatter_add", "index_add", "scatter_reduce", "index_put", "scatter"):
        return ""
    value = tensor_value(node)
    if value is not None and value.dim() != 2:
        return ""
    parts = scatter_parts(node)
    if parts is None:
        how = argument(node, 4, "reduce", "") if name == "scatter_reduce" else name
        return (
            f"scatters by {how} or with an index that differs between columns; "
            "only sums over rows, largest and smallest entries are lifted"
        )
    if not is_zeros(parts[0]):
        return "scatters into a tensor that is not zero"
    message = Message()
    if not take_apart(parts[2], message) or message.gather is None:
        return f"the message is not gathered rows times edge weights: it ends in {operator_name(parts[2])}"
    return ""


def scatter_parts(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """(base, row of each message [edges], messages) of a scatter that sums along the first mode."""
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
    """Whether `dim` is the first mode of the tensor that `node` computes."""
    value = tensor_value(node)
    return value is not None and dim in (0, -value.dim())


def spread_index(index: Any) -> Any:
    """The vector [edges] that an index [edges, features] repeats in every column, None when it is another."""
    if not isinstance(index, fx.Node):
        return None
    value = tensor_value(index)
    if value is not None and value.dim() == 1:
        return index
    if operator_name(index) in ("expand", "expand_as", "repeat"):
        column = index.args[0]
        return column_vector(column) if isinstance(column, fx.Node) else None
    return None


def column_vector(node: fx.Node) -> fx.Node | None:
    """`w` for `w.view(-1, 1)` or `w.unsqueeze(-1)`, another column [edges, 1] itself, None for what is no column."""
    value = tensor_value(node)
    if value is None or value.dim() != 2 or not is_one(value.shape[1]):
        return None
    base = node.args[0] if node.args else None
    inner = tensor_value(base)
    is_view = operator_name(node) in ("view", "unsqueeze")
    if is_view and isinstance(base, fx.Node) and inner is not None and inner.dim() == 1:
        return base
    return node


def is_one(extent: Any) -> bool:
    """Whether an extent is the number 1."""
    return isinstance(extent, int) and extent == 1


def is_zeros(node: fx.Node) -> bool:
    """Whether `node` makes a tensor of zeros with an explicit size."""
    name = operator_name(node)
    if name == "full":
        return bool(argument(node, 1, "fill_value") == 0)
    return name == "zeros" and isinstance(node.args[0], list | tuple)


def take_apart(node: fx.Node, message: Message) -> bool:
    """Collects gather, weights and scale of a message; False when it has other parts."""
    name, value = operator_name(node), tensor_value(node)
    if gathered_index(node) is not None and value is not None and value.dim() == 2:
        message.gather = node
        message.covered.append(node)
        return True
    if name not in ("mul", "div") or len(node.args) < 2 or node.kwargs:
        return False
    left, right = node.args[0], node.args[1]
    join = multiply_by if name == "mul" else divide_by
    orders = ((left, right), (right, left)) if name == "mul" else ((left, right),)
    for inner, factor in orders:
        trial = Message()
        if isinstance(inner, fx.Node) and take_apart(inner, trial) and join(factor, trial):
            message.gather, message.scale = trial.gather, trial.scale
            message.weights, message.divisors = trial.weights, trial.divisors
            message.covered = [*trial.covered, node]
            return True
    return False


def multiply_by(factor: Any, message: Message) -> bool:
    """Takes an edge weight or a constant into the message."""
    if isinstance(factor, int | float):
        message.scale *= factor
        return True
    weight = column_vector(factor) if isinstance(factor, fx.Node) else None
    if weight is None:
        return False
    message.weights.append(weight)
    return True


def divide_by(factor: Any, message: Message) -> bool:
    """Takes a divisor per edge, or a constant, into the message."""
    if isinstance(factor, int | float):
        message.scale /= factor
        return True
    divisor = column_vector(factor) if isinstance(factor, fx.Node) else None
    if divisor is None:
        return False
    message.divisors.append(divisor)
    return True


def gathered_index(node: fx.Node) -> fx.Node | None:
    """The vector by which `node` gathers rows, None when it gathers none."""
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
