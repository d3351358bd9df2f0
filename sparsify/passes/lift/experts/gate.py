"""The pattern of a gate, independent of its weights.

In:  `%gate = scatter(%zeros, 1, %chosen, %weights)`. Out: `%places = scatter(%zeros, 1, %chosen, 1)`.

Gradients reach the sources of a gate only at the pattern. A weight with the value 0 has a gradient nevertheless: the
pattern is not just the nonzeros of a gate.
"""

from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.graph.einsum_nodes import einsum_of
from sparsify.passes.graph.insert import call_before
from sparsify.passes.graph.operators import COPIES, argument, operator_name, tensor_value

ZEROS: Final = frozenset({"zeros", "new_zeros", "zeros_like"})
# Operators with the pattern of the first operand.
KEEPING: Final = COPIES | {"type_as", "div", "neg"}
# Operators with the pattern transformed as the operand.
TURNING: Final = frozenset({"unsqueeze", "permute", "transpose", "expand"})


def places(gate: Any) -> fx.Node | None:
    """A tensor that is 0 where a gate is always 0, for any weights; `None` if unknown.

    Args:
        gate: a node; auxiliary nodes are added to its graph.
    """
    value = tensor_value(gate)
    if value is None:
        return None
    if is_choice(gate):
        return gate  # type: ignore[no-any-return]
    name = operator_name(gate)
    if name in KEEPING:
        return _of_shape(gate.args[0], value)
    if name == "relu":
        return gate  # type: ignore[no-any-return]
    if name == "mul":
        pattern = next(
            (pattern for side in gate.args[:2] if (pattern := _of_shape(side, value)) is not None), None
        )
        return pattern or _of_factors(gate, value)
    if name == "add":
        return _of_terms(gate, value)
    if name == "einsum":
        return _of_product(gate, value)
    if name in TURNING and not gate.kwargs:
        pattern = places(gate.args[0])
        return None if pattern is None else call_before(gate, gate.target, pattern, *gate.args[1:])
    if name == "where" and len(gate.args) == 3 and _is_zero(gate.args[2]):
        return gate.args[0] if is_like(gate.args[0], value) else None
    if name in ("scatter", "scatter_add") and _is_zero(gate.args[0]):
        return _scattered(gate)
    return None


def _of_factors(gate: fx.Node, value: torch.Tensor) -> fx.Node | None:
    """`places(x * y) = places(x) * places(y)`, with broadcast factors."""
    patterns = [places(side) for side in gate.args[:2]]
    if any(node is None for node in patterns):
        return None
    return call_before(gate, torch.ops.aten.mul.Tensor, *(_truth(gate, node) for node in patterns))


def _of_terms(gate: fx.Node, value: torch.Tensor) -> fx.Node | None:
    """`places(x + y)`, if all terms have a pattern."""
    sides = [side for side in gate.args[:2] if isinstance(side, fx.Node) or side != 0]
    patterns = [_of_shape(side, value) for side in sides]
    if len(patterns) == 1:
        return patterns[0]
    if any(node is None for node in patterns):
        return None
    return call_before(gate, torch.ops.aten.logical_or.default, *(_truth(gate, node) for node in patterns))


def _of_product(gate: fx.Node, value: torch.Tensor) -> fx.Node | None:
    """`places(einsum("te,tc->tec", x, y)) = einsum("te,tc->tec", places(x), places(y))` without sums."""
    product = einsum_of(gate)
    if product is None or {letter for _, at in product.operands for letter in at} - set(product.output):
        return None
    patterns = [places(side) for side, _ in product.operands]
    if any(node is None for node in patterns):
        return None
    numbers = [
        call_before(gate, torch.ops.aten.to.dtype, _truth(gate, node), value.dtype) for node in patterns
    ]
    return call_before(gate, torch.ops.aten.einsum.default, gate.args[0], numbers)


def _truth(gate: fx.Node, node: Any) -> fx.Node:
    """Whether the entries of a tensor are not 0."""
    return call_before(gate, torch.ops.aten.ne.Scalar, node, 0)


def is_choice(node: Any) -> bool:
    """Whether a tensor has no gradients: made of comparisons, integers or one-hot rows."""
    value = tensor_value(node)
    if value is None:
        return False
    if not value.dtype.is_floating_point:
        return True
    name = operator_name(node)
    if name in ("mul", "add", "sub"):
        return all(is_choice(side) for side in node.args[:2] if isinstance(side, fx.Node))
    if name == "einsum":
        product = einsum_of(node)
        return product is not None and all(is_choice(side) for side, _ in product.operands)
    return name in (KEEPING | {"view", "unsqueeze", "expand"}) and is_choice(node.args[0])


def is_decided(node: Any) -> bool:
    """Whether a tensor has fixed zeros: a choice, a scatter, or a product with a choice."""
    if not isinstance(node, fx.Node):
        return False
    name = operator_name(node)
    if name in ("scatter", "scatter_add") or is_choice(node):
        return True
    sides = node.args[: 2 if name == "mul" else 1 if name in KEEPING else 0]
    return any(is_decided(side) for side in sides)


def is_like(node: Any, value: torch.Tensor) -> bool:
    """Whether a tensor has the shape of another one."""
    node_value = tensor_value(node)
    return node_value is not None and [*map(str, node_value.shape)] == [*map(str, value.shape)]


def _of_shape(node: Any, value: torch.Tensor) -> fx.Node | None:
    """The pattern of a factor with the gate's shape, None for broadcast factors."""
    return places(node) if is_like(node, value) else None


def _is_zero(node: Any) -> bool:
    """Whether a tensor or number is 0 everywhere."""
    if not isinstance(node, fx.Node):
        return bool(node == 0)
    name = operator_name(node)
    is_full = name in ("full", "full_like", "new_full", "scalar_tensor")
    filled = argument(node, 0 if name == "scalar_tensor" else 1 if name != "new_full" else 2, "fill_value")
    return name in ZEROS or (is_full and isinstance(filled, int | float) and filled == 0)


def _scattered(gate: fx.Node) -> fx.Node:
    """Ones at the scattered positions of weights."""
    zeros, dim, index = gate.args[:3]
    return call_before(gate, torch.ops.aten.scatter.value, zeros, dim, index, 1)
