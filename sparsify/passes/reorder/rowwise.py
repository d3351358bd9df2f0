"""Operators that compute each row of their result from the same row of their operands.

In: `%y = add(%x, %b)`, `x` [nodes, features], `b` [features]. Out: `[%x]`: permuting the rows of `x` permutes those of
`y`. `None` for every operator that is not known to be one.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph import operators
from sparsify.passes.graph.canonicalize import is_writer
from sparsify.passes.graph.operators import argument, operator_name, tensor_value

IsRows = Callable[[Any], bool]

ENTRYWISE: Final = frozenset(
    [
        "relu",
        "relu6",
        "gelu",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
        "prelu",
        "sigmoid",
        "hardsigmoid",
        "tanh",
        "hardtanh",
        "silu",
        "hardswish",
        "mish",
        "softplus",
        "log_sigmoid",
        "exp",
        "expm1",
        "log",
        "log1p",
        "neg",
        "abs",
        "sign",
        "sqrt",
        "rsqrt",
        "square",
        "reciprocal",
        "pow",
        "sin",
        "cos",
        "erf",
        "clamp",
        "clamp_min",
        "clamp_max",
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "where",
        "masked_fill",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_not",
        "isinf",
        "isnan",
        "to",
        "_to_copy",
        "clone",
        "contiguous",
        "detach",
        "nan_to_num",
    ]
)
# Operators along modes, and the position of these modes among the arguments.
ALONG: Final = {
    "softmax": 1,
    "log_softmax": 1,
    "_log_softmax": 1,
    "logsumexp": 1,
    "sum": 1,
    "mean": 1,
    "amax": 1,
    "amin": 1,
    "linalg_vector_norm": 2,
}


def row_operands(node: fx.Node, is_rows: IsRows) -> list[fx.Node] | None:
    """The operands whose rows are those of the result, `None` where other rows matter.

    Args:
        node: any.
        is_rows: whether an extent is the number of rows.
    """
    value = tensor_value(node)
    if node.op != "call_function" or value is None or value.dim() == 0 or not is_rows(value.shape[0]):
        return None
    if operators.is_random(node) or is_writer(node):
        return None
    found = _found(node, value, is_rows)
    if found is None or any(not _has_rows(operand, is_rows) for operand in found):
        return None
    # An operand that is read in two ways has its rows in two orders.
    read = sum(1 for argument in _flat(node.args) + _flat(node.kwargs.values()) if argument in found)
    return list(dict.fromkeys(found)) if read == len(found) else None


def _found(node: fx.Node, value: torch.Tensor, is_rows: IsRows) -> list[fx.Node] | None:
    name = operator_name(node)
    if name in ENTRYWISE:
        return _entrywise(node, value, is_rows)
    first = tensor_value(node.args[0]) if node.args else None
    if name in ("cat", "stack"):
        parts = node.args[0]
        dim = argument(node, 1, "dim", 0) % value.dim()
        return [part for part in parts if isinstance(part, fx.Node)] if dim != 0 else None  # type: ignore[union-attr]
    if name == "addmm":
        bias, x = node.args[0], node.args[1]
        shape = tensor_value(bias)
        return [x] if shape is not None and shape.dim() == 1 else None  # type: ignore[list-item]
    if first is None or first.dim() == 0:
        return None
    rows = [node.args[0]]
    if name in ALONG:
        dims = argument(node, ALONG[name], "dim")
        dims = [dims] if isinstance(dims, int) else dims
        is_apart = bool(dims) and all(dim % first.dim() != 0 for dim in dims)
    elif name in ("linear", "mm", "matmul"):
        other = tensor_value(node.args[1])
        is_apart = first.dim() >= 2 and other is not None and other.dim() <= 2
    elif name == "batch_norm":
        is_apart = first.dim() >= 2 and argument(node, 5, "training") is False
    elif name == "layer_norm":
        is_apart = len(argument(node, 1, "normalized_shape")) < first.dim()
    else:
        is_apart = _keeps_rows(node, name, first, value)
    return rows if is_apart else None  # type: ignore[return-value]


def _entrywise(node: fx.Node, value: torch.Tensor, is_rows: IsRows) -> list[fx.Node] | None:
    """The operands that are not repeated over rows."""
    found = []
    for operand in _flat(node.args) + _flat(node.kwargs.values()):
        shape = tensor_value(operand)
        if shape is None or shape.dim() < value.dim():
            continue
        rows = shape.shape[0]
        if is_rows(rows):
            found.append(operand)
        elif not (isinstance(rows, int) and rows == 1):
            return None
    return found or None


def _keeps_rows(node: fx.Node, name: str, first: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether an operator that moves entries moves none from row to row."""
    rank = first.dim()
    if name in ("view", "flatten", "expand"):
        is_same = str(first.shape[0]) == str(value.shape[0])
        return is_same and (name != "expand" or rank == value.dim())
    if name == "unsqueeze":
        return bool(argument(node, 1, "dim") % (rank + 1) != 0)
    if name in ("squeeze", "select", "slice"):
        dim = argument(node, 1, "dim", 0 if name == "slice" else None)
        return isinstance(dim, int) and dim % rank != 0
    if name == "transpose":
        dims = (argument(node, 1, "dim0"), argument(node, 2, "dim1"))
        return all(dim % rank != 0 for dim in dims)
    if name == "permute":
        return bool(argument(node, 1, "dims")[0] % rank == 0)
    return False


def _has_rows(operand: fx.Node, is_rows: IsRows) -> bool:
    """Whether the first mode of an operand is that of the rows."""
    value = tensor_value(operand)
    return value is not None and value.dim() > 0 and is_rows(value.shape[0])


def _flat(values: Any) -> list[fx.Node]:
    """The nodes among arguments, those in lists included, each as often as it is there."""
    found: list[fx.Node] = []
    for value in values:
        if isinstance(value, fx.Node):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _flat(value)
    return found
