"""Operators under one canonical name, and arguments in one order.

In: `Tensor.__matmul__`, called with `(A,)` and `other=B`. Out: `torch.matmul` and `(A, B)`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import get_testing_overrides, resolve_name

ALIASES: Final = {"truediv": "div", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
FIRST: Final = ("input", "self")


def canonical(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The function of `torch` equivalent to a method or an operator sign; other functions themselves.

    In-place methods stand for themselves. Without a cache, whose wrapper Dynamo warns about.

    >>> canonical(torch.Tensor.__add__) is torch.add, canonical(torch.Tensor.mm) is torch.mm
    (True, True)
    """
    name = getattr(operator, "__name__", "")
    is_method = getattr(Tensor, name, None) is operator and not is_in_place(name)
    plain = name.strip("_")
    function = getattr(torch, ALIASES.get(plain, plain), None)
    return function if is_method and callable(function) else operator


def is_in_place(name: str) -> bool:
    """Whether a method or a sign of the given name writes into its tensor.

    >>> is_in_place("add_"), is_in_place("__iadd__"), is_in_place("__invert__"), is_in_place("__add__")
    (True, True, False, False)
    """
    if name.startswith("__") and name.endswith("__"):
        return name == "__setitem__" or (name[2:3] == "i" and hasattr(Tensor, f"__{name[3:]}"))
    return name.endswith("_")


def written(operator: Callable[..., Any]) -> str:
    """The user-facing name of an operator, `torch.mm`."""
    function = canonical(operator)
    name = getattr(function, "__name__", str(function))
    for module in (torch, torch.nn.functional):
        if getattr(module, name, None) is function:
            return f"{module.__name__}.{name}"
    return str(resolve_name(function) or getattr(function, "__qualname__", name))


@lru_cache(maxsize=1024)
def argument_names(operator: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments in order; `out` last for operators of torch.

    >>> argument_names(torch.add)
    ('input', 'other', 'alpha', 'out')
    """
    function = canonical(operator)
    name = getattr(function, "__name__", "")
    packet = getattr(torch.ops.aten, name, None) if not inspect.isfunction(function) else None
    if packet is not None:
        overloads = packet.overloads()
        chosen = next((o for o in ("Tensor", "default") if o in overloads), overloads[0])
        names = [argument.name for argument in getattr(packet, chosen)._schema.arguments]
        names[0] = FIRST[0] if names[0] == FIRST[1] else names[0]
        return (*names, "out")
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        like = get_testing_overrides().get(function)
        return tuple(inspect.signature(like).parameters) if like is not None else ()


def arguments(
    operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a call in the order of the signature, `None` for missing ones.

    >>> arguments(torch.add, (1,), {"other": 2, "alpha": 3})
    (1, 2, 3)
    """
    names = argument_names(operator)
    result = list(args)
    for key, value in kwargs.items():
        position = (
            names.index(FIRST[0] if key in FIRST and FIRST[0] in names else key)
            if (key in names or key in FIRST)
            else len(result)
        )
        result += [None] * (position + 1 - len(result))
        result[position] = value
    return tuple(result)
