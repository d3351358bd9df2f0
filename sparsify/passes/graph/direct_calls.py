"""Operators by the functions that Python calls at once: a call by the name of an operator takes twice the time.

In: `torch.ops.aten.add.Tensor`. Out: the function behind `torch.add`, whose arguments are made from the same schema.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

# Where torch has the functions that are made from the schemas of operators, and where it offers them.
HOLDERS: Final = ((torch._C._VariableFunctions, torch), (torch._C._nn, torch._C._nn))


def require(condition: Any, message: str) -> None:
    """Raises, as `torch.ops.aten._assert_scalar` does, where a condition does not hold."""
    if not condition:
        raise RuntimeError(message)


# Operators whose functions in Python take other arguments than the operator, or that are methods alone.
OTHERS: Final[dict[str, Callable[..., Any]]] = {
    "_assert_scalar": require,
    "item": torch.Tensor.item,
    "expand": torch.Tensor.expand,
    "view": torch.Tensor.view,
}


def direct(target: Any) -> Callable[..., Any] | None:
    """The function that computes what an operator does; `None` where none takes the same arguments.

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
    # Code of graphs has functions by their names, under which torch may offer one of Python that is made otherwise.
    for holder, public in HOLDERS:
        function: Callable[..., Any] | None = getattr(holder, name, None)
        if function is not None and function is getattr(public, name, None):
            return function
    return OTHERS.get(name)


def call_directly(graph: fx.Graph) -> None:
    """Has the nodes of a graph that is run, and not traced, call functions in place of operators."""
    for node in graph.nodes:
        if node.op == "call_function" and (function := direct(node.target)) is not None:
            node.target = function
