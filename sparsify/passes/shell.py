"""The source model's parameters under their names, in modules without code.

In: `fill_shell(shell, model)`. Out: `shell.conv1.lin.weight is model.conv1.lin.weight`.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


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
def in_modes(model: nn.Module, shell: nn.Module) -> Iterator[None]:
    """Within this context every module of `model` is in the mode of its shell, afterwards in its own again."""
    before = [(module, module.training) for module in model.modules()]
    follow(model, shell)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def follow(model: nn.Module, shell: nn.Module) -> None:
    """Sets every module of `model` into the mode of its shell."""
    model.training = shell.training
    for name, child in model._modules.items():
        inner = shell._modules.get(name)
        if child is not None and inner is not None:
            follow(child, inner)


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
