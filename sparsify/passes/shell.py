"""The source model's parameters under their names, in modules without code.

In: `fill_shell(shell, model)`. Out: `shell.conv1.lin.weight is model.conv1.lin.weight`.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class Shell(nn.Module):
    """A module of the source model without its code: it holds the same parameters under the same names."""


Modes = tuple[bool, ...]


def modes(model: nn.Module) -> Modes:
    """Which modules are in training mode, in the order of the model's modules."""
    found = [model.training]
    for child in model._modules.values():
        if child is not None:
            found += modes(child)
    return tuple(found)


@contextmanager
def in_modes(model: nn.Module, wanted: Modes) -> Iterator[None]:
    """Within this context the modules of `model` are in these modes, afterwards in their own again."""
    before = [(module, module.training) for module in model.modules()]
    set_modes(model, iter(wanted))
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def set_modes(model: nn.Module, wanted: Iterator[bool]) -> None:
    """Sets every module of `model` into a mode, in the order of `modes`."""
    model.training = next(wanted)
    for child in model._modules.values():
        if child is not None:
            set_modes(child, wanted)


def fill_shell(shell: nn.Module, model: nn.Module) -> None:
    """Gives `shell` the parameters, buffers and submodules of `model`, as shells of the same names."""
    for name, parameter in model._parameters.items():
        shell.register_parameter(name, parameter)
    for name, buffer in model._buffers.items():
        shell.register_buffer(name, buffer, persistent=name not in model._non_persistent_buffers_set)
    for name, child in model._modules.items():
        inner: nn.Module | None = None
        if child is not None:
            inner = Shell()
            inner.training = child.training
            fill_shell(inner, child)
        shell.add_module(name, inner)


def share_again(shell: nn.Module, model: nn.Module) -> None:
    """Gives a filled shell the parameters and buffers that `model` has now."""
    for name, parameter in model._parameters.items():
        shell._parameters[name] = parameter
    for name, buffer in model._buffers.items():
        shell._buffers[name] = buffer
    for name, child in model._modules.items():
        inner = shell._modules.get(name)
        if child is not None and inner is not None:
            share_again(inner, child)


def shared_copy(model: nn.Module) -> nn.Module:
    """A copy of the modules of `model` that holds the same parameters and buffers."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def places(model: nn.Module, parameter: Tensor) -> list[tuple[dict[str, Any], str]]:
    """Where a parameter is kept: dictionaries of modules, and its name in each."""
    return [(module._parameters, name) for module, name in owners(model, parameter)]


def owners(model: nn.Module, parameter: Tensor) -> list[tuple[nn.Module, str]]:
    """The modules that have a parameter, and its name in each."""
    return [
        (module, name)
        for module in model.modules()
        for name, found in module._parameters.items()
        if found is parameter
    ]


def replace(model: nn.Module, old: Tensor, new: Tensor) -> None:
    """Puts a parameter in the place of another, under each of its names."""
    for store, name in places(model, old):
        store[name] = new
