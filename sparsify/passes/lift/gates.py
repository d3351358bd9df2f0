"""Where a gate chooses: what decides its zeros, apart from its weights.

In:  `%gate = scatter(%zeros, 1, %chosen, %weights)`. Out: `%places = scatter(%zeros, 1, %chosen, 1)`.

Gradients of a gate reach what it is made of only there. A weight that happens to be 0 has one all the same, so that
places are not where a gate is 0.
"""

from typing import Any, Final

import torch
from torch import fx

from sparsify.passes.operators import argument, operator_name, tensor_value

ZEROS: Final = frozenset({"zeros", "new_zeros", "zeros_like"})
# Of these the places are those of the first operand.
KEEPING: Final = frozenset({"to", "_to_copy", "clone", "contiguous", "alias", "div", "neg"})


def places(gate: Any) -> fx.Node | None:
    """A tensor that is 0 where a gate is 0 whatever its weights are; `None` where nothing says so.

    Args:
        gate: a node; what the tensor needs is added to its graph.
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
        return next((found for side in gate.args[:2] if (found := _of_shape(side, value)) is not None), None)
    if name == "where" and len(gate.args) == 3 and _is_zero(gate.args[2]):
        return gate.args[0] if is_like(gate.args[0], value) else None
    if name in ("scatter", "scatter_add") and _is_zero(gate.args[0]):
        return _scattered(gate, value)
    return None


def is_choice(node: Any) -> bool:
    """Whether a tensor has no gradients: it is made of comparisons, whole numbers or one-hot rows."""
    value = tensor_value(node)
    if value is None:
        return False
    if not value.dtype.is_floating_point:
        return True
    name = operator_name(node)
    if name in ("mul", "add", "sub"):
        return all(is_choice(side) for side in node.args[:2] if isinstance(side, fx.Node))
    return name in (KEEPING | {"view", "unsqueeze", "expand"}) and is_choice(node.args[0])


def is_like(node: Any, value: torch.Tensor) -> bool:
    """Whether a tensor has the shape of another one."""
    own = tensor_value(node)
    return own is not None and [*map(str, own.shape)] == [*map(str, value.shape)]


def _of_shape(node: Any, value: torch.Tensor) -> fx.Node | None:
    """The places of a factor of a gate, which says of each of its entries whether it is 0."""
    return places(node) if is_like(node, value) else None


def _is_zero(node: Any) -> bool:
    """Whether a tensor or number is 0 everywhere."""
    if not isinstance(node, fx.Node):
        return bool(node == 0)
    name = operator_name(node)
    is_full = name in ("full", "full_like", "new_full", "scalar_tensor")
    filled = argument(node, 0 if name == "scalar_tensor" else 1 if name != "new_full" else 2, "fill_value")
    return name in ZEROS or (is_full and isinstance(filled, int | float) and filled == 0)


def _scattered(gate: fx.Node, value: torch.Tensor) -> fx.Node:
    """Ones where weights are scattered to."""
    zeros, dim, index = gate.args[:3]
    with gate.graph.inserting_before(gate):
        ones = gate.graph.call_function(torch.ops.aten.scatter.value, (zeros, dim, index, 1))
    ones.meta.update({key: gate.meta[key] for key in ("nn_module_stack",) if key in gate.meta})
    ones.meta["val"] = value
    return ones
