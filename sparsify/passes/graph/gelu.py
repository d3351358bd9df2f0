"""Written-out GELU, joined into one operator, which kernels and libraries fuse with the preceding product.

In:  `%c = mul(pow(%x, 3.0), 0.044715); %t = tanh(mul(add(%x, %c), 0.79788)); %y = mul(mul(%x, 0.5), add(%t, 1.0))`.
Out: `%y = gelu(%x, approximate="tanh")`; with `%t = erf(div(%x, 1.41421))` the result is `%y = gelu(%x)`.

Only for float32 and float64: in half precision each written-out operator rounds, and torch has no GELU of integers.

Source: Hendrycks and Gimpel, Gaussian error linear units (GELUs), 2016, section 2.
"""

from collections.abc import Iterator
from math import isclose, pi, sqrt
from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.operators import argument, operator_name, overwritten, tensor_value

CUBIC: Final = 0.044715
DTYPES: Final = (torch.float32, torch.float64)
# Tolerance of constants: models write them with at least seven digits.
CLOSE: Final = 1e-6


def join_gelu(graph: fx.Graph) -> None:
    """Replaces written-out GELUs by the operator; unread nodes are left in the graph."""
    written = overwritten(graph)
    for node in list(graph.nodes):
        match = gelu_of(node)
        if match is None or match[0] in written:
            continue
        x, approximate = match
        with graph.inserting_before(node):
            new = graph.call_function(torch.ops.aten.gelu.default, (x,), {"approximate": approximate})
        new.meta.update({key: node.meta[key] for key in ("val", "nn_module_stack") if key in node.meta})
        node.replace_all_uses_with(new)


def gelu_of(node: fx.Node) -> tuple[fx.Node, str] | None:
    """`x` and the approximation of `0.5 * x * (1 + t)`; `None` for anything else."""
    value = tensor_value(node)
    if operator_name(node) != "mul" or value is None or value.dtype not in DTYPES:
        return None
    for half, sum_ in orders(node):
        x, t = factor_of(half, 0.5), summand_of(sum_, 1.0)
        if x is None or t is None or len(t.args) != 1:
            continue
        if (x_value := tensor_value(x)) is None or x_value.dtype != value.dtype:
            continue
        if operator_name(t) == "tanh" and x is cubic_of(factor_of(t.args[0], sqrt(2 / pi))):
            return x, "tanh"
        if operator_name(t) == "erf" and x is factor_of(t.args[0], 1 / sqrt(2)):
            return x, "none"
    return None


def cubic_of(node: Any) -> fx.Node | None:
    """`x` of `x + 0.044715 * pow(x, 3)`."""
    if not is_sum(node):
        return None
    for x, rest in orders(node):
        power = factor_of(rest, CUBIC)
        if power is not None and operator_name(power) == "pow" and power.args == (x, 3):
            return x if isinstance(x, fx.Node) else None
    return None


def factor_of(node: Any, factor: float) -> fx.Node | None:
    """`x` of `factor * x`, or of the equivalent `x / n`."""
    if not isinstance(node, fx.Node) or len(node.args) != 2 or node.kwargs:
        return None
    if operator_name(node) == "mul":
        return next((x for x, number in orders(node) if is_close(x, number, factor)), None)
    x, number = node.args
    is_quotient = operator_name(node) == "div" and is_close(x, number, 1 / factor)
    return x if is_quotient and isinstance(x, fx.Node) else None


def summand_of(node: Any, number: float) -> fx.Node | None:
    """`x` of `x + number`."""
    return (
        next((x for x, other in orders(node) if is_close(x, other, number)), None) if is_sum(node) else None
    )


def is_sum(node: Any) -> bool:
    """Whether a node is an unscaled sum of two."""
    return isinstance(node, fx.Node) and operator_name(node) == "add" and argument(node, 2, "alpha", 1) == 1


def orders(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """The first two arguments of a node in both orders."""
    if len(node.args) >= 2:
        yield node.args[0], node.args[1]
        yield node.args[1], node.args[0]


def is_close(x: Any, number: Any, expected: float) -> bool:
    """Whether `x` is a tensor and a number is approximately the expected constant."""
    return (
        isinstance(x, fx.Node)
        and isinstance(number, int | float)
        and isclose(number, expected, rel_tol=CLOSE)
    )
