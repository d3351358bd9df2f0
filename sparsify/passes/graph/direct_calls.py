"""Operators as directly callable Python functions: a call through `torch.ops` takes twice the time.

In: `torch.ops.aten.add.Tensor`. Out: the function called by `torch.add`, with arguments generated from the same schema.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

# Modules with functions generated from operator schemas, and their public counterparts.
HOLDERS: Final = ((torch._C._VariableFunctions, torch), (torch._C._nn, torch._C._nn))


def require(condition: Any, message: str) -> None:
    """Raises if a condition does not hold, as `torch.ops.aten._assert_scalar` does."""
    if not condition:
        raise RuntimeError(message)


# Operators whose Python functions take other arguments, or exist only as methods.
OTHERS: Final[dict[str, Callable[..., Any]]] = {
    "_assert_scalar": require,
    "item": torch.Tensor.item,
    "expand": torch.Tensor.expand,
    "view": torch.Tensor.view,
}


def direct(target: Any) -> Callable[..., Any] | None:
    """The function equivalent to an operator; `None` without one with the same arguments.

    >>> direct(torch.ops.aten.relu.default)(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    >>> direct(torch.ops.aten.add_.Tensor)
    """
    is_function = isinstance(target, torch._ops.OpOverload) and not target._schema.is_mutable
    if not is_function or target.namespace != "aten":
        return None
    name = target._schema.name.removeprefix("aten::")
    # An operator of losses has a number for the reduction and a function a name; no function takes None for an index.
    types = [str(argument.type) for argument in target._schema.arguments]
    if "loss" in name or "cross_entropy" in name or "List[Optional[Tensor]]" in types:
        return None
    # Graph code refers to functions by name, and the public name may denote a different Python function.
    for holder, public in HOLDERS:
        function: Callable[..., Any] | None = getattr(holder, name, None)
        if function is not None and function is getattr(public, name, None):
            return function
    return OTHERS.get(name)


def call_directly(graph: fx.Graph) -> None:
    """Replaces operators by direct functions in an executed (not traced) graph."""
    for node in graph.nodes:
        if node.op == "call_function" and (function := direct(node.target)) is not None:
            node.target = function
