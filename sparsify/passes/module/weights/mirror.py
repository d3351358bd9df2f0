"""Copies of a model's modules over the same tensors, changeable while other threads run the model.

In: `Mirror(model)`. Out: `mirror.model`, whose modules have the classes and attributes of the model's, and the same
parameters and buffers; modes, weights and attributes set on the mirror do not affect the model. Modules are copied
wherever attributes reach them: children, lists and dictionaries, bound methods, partial functions and closures. A model
that reaches its modules by another path, such as a global variable, runs partly with the originals.
"""

import copy
import copyreg
import functools
import types
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from sparsify.passes.capture.shell import Modes, renew_flat_weights, set_modes

CONTAINERS: Final = (list, dict, OrderedDict, set)
# Attributes that are separate dictionaries in each module.
STORES: Final = ("_parameters", "_modules")


class Mirror:
    """A copy of a model over the same tensors.

    Args:
        model: the original.
        is_isolated: whether the copy's effects stay in the copy: attributes set, lists changed, buffers replaced.
            Otherwise `write_back` transfers them to the model.

    Attributes:
        model: the copy.
    """

    def __init__(self, model: nn.Module, *, is_isolated: bool = True) -> None:
        self.is_isolated = is_isolated
        self.copies: dict[int, Any] = {}
        self.pairs: list[tuple[nn.Module, nn.Module, dict[str, Any]]] = []
        self.model: nn.Module = self.module(model)

    def of(self, module: nn.Module) -> nn.Module:
        """The copy of a module."""
        mirrored: nn.Module = self.copies[id(module)]
        return mirrored

    def module(self, module: nn.Module) -> nn.Module:
        """The copy of a module, made at the first call."""
        if id(module) in self.copies:
            return self.of(module)
        if isinstance(module, torch.jit.ScriptModule):
            new_script = self.copies[id(module)] = copy.copy(module)
            return new_script
        new: nn.Module = object.__new__(type(module))
        self.copies[id(module)] = new
        for name in copyreg._slotnames(type(module)):  # type: ignore[attr-defined]
            if hasattr(module, name):
                object.__setattr__(new, name, getattr(module, name))
        attributes = dict(vars(module))  # other threads may add some
        for name, value in attributes.items():
            if name in STORES:
                new.__dict__[name] = dict(value)
            elif name == "_buffers":
                new.__dict__[name] = dict(value) if self.is_isolated else value
        for name, child in new._modules.items():
            new._modules[name] = None if child is None else self.module(child)
        for name, value in attributes.items():
            if name not in new.__dict__:
                new.__dict__[name] = self.value(value)
        self.pairs.append((module, new, dict(vars(new))))
        return new

    def value(self, value: Any) -> Any:
        """An attribute with copies in place of modules."""
        if isinstance(value, nn.Module):
            return self.module(value)
        kind = type(value)
        if kind in CONTAINERS or kind is tuple:
            return self.container(value)
        if kind is types.MethodType:
            owner = self.value(value.__self__)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if kind is functools.partial:
            parts = (value.func, value.args, value.keywords)
            function, args, kwargs = copies = [self.value(part) for part in parts]
            return value if _are_same(parts, copies) else functools.partial(function, *args, **kwargs)
        return self.closure(value) if kind is types.FunctionType and value.__closure__ else value

    def container(self, value: Any) -> Any:
        """A container with copies in place of modules; the same object if shareable and without modules."""
        if id(value) in self.copies:
            return self.copies[id(value)]
        is_kept = isinstance(value, tuple) or not self.is_isolated
        if isinstance(value, tuple | set):
            copied: Any = type(value)([self.value(part) for part in value])
        elif isinstance(value, list):
            copied = self.copies[id(value)] = []
            copied += [self.value(part) for part in list(value)]
        else:
            copied = self.copies[id(value)] = type(value)()
            for key, part in list(value.items()):
                copied[key] = self.value(part)
        parts = (value.values(), copied.values()) if isinstance(value, Mapping) else (value, copied)
        if is_kept and _are_same(*map(list, parts)):
            copied = value
        self.copies[id(value)] = copied
        return copied

    def closure(self, function: Any) -> Any:
        """A function with copies in place of the modules in its closure."""
        if id(function) in self.copies:
            return self.copies[id(function)]
        self.copies[id(function)] = function  # functions may refer to themselves
        contents = [_contents(cell) for cell in function.__closure__]
        copies = [self.value(part) for part in contents]
        if not _are_same(contents, copies):
            cells = tuple([types.CellType(part) for part in copies])
            parts = (function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
            new: Any = types.FunctionType(*parts)
            new.__kwdefaults__ = function.__kwdefaults__
            new.__dict__.update({name: self.value(part) for name, part in vars(function).items()})
            self.copies[id(function)] = new
        return self.copies[id(function)]

    def set_modes(self, modes: Modes) -> None:
        """Sets the copy into modes, in the order of `shell.modes`."""
        set_modes(self.model, iter(modes))

    def replace(self, tensors: Mapping[int, Tensor]) -> None:
        """Replaces parameters, given by identity."""
        for _, new, _ in self.pairs:
            for name, tensor in new._parameters.items():
                if id(tensor) in tensors:
                    new._parameters[name] = tensors[id(tensor)]  # type: ignore[assignment]
        self.renew_lists()

    def borrow(self, tensors: Iterable[tuple[nn.Module, str, str, Any]]) -> None:
        """Puts tensors into the stores of module copies, excluded from `write_back`."""
        pairs = {id(module): (new, before) for module, new, before in self.pairs}
        for module, kind, name, tensor in list(tensors):
            new, before = pairs[id(module)]
            if vars(new)[kind] is vars(module)[kind]:
                new.__dict__[kind] = before[kind] = dict(vars(new)[kind])
            vars(new)[kind][name] = tensor
        self.renew_lists()

    def renew_lists(self) -> None:
        """Renews the parameter lists of copied recurrent layers, excluded from `write_back`."""
        for _, new, before in self.pairs:
            renew_flat_weights([new])
            before |= {name: vars(new)[name] for name in before if name == "_flat_weights"}

    def copy_buffers(self) -> None:
        """Replaces the buffers of the copy by clones."""
        clones: dict[int, Tensor] = {}
        for _, new, _ in self.pairs:
            for name, buffer in new._buffers.items():
                if buffer is not None:
                    if id(buffer) not in clones:
                        clones[id(buffer)] = buffer.detach().clone()
                    new._buffers[name] = clones[id(buffer)]

    def clear(self) -> None:
        """Removes the tensors from the copy, which may be in reference cycles; the copy cannot run any more."""
        for _, new, _ in self.pairs:
            new.__dict__.update({"_parameters": {}, "_buffers": {}})
        self.pairs, self.copies = [], {}

    def write_back(self) -> None:
        """Sets attributes changed in the copy on the modules of the model."""
        originals = {id(new): module for module, new, _ in self.pairs}
        for module, new, before in self.pairs:
            for name, value in vars(new).items():
                if name != "training" and before.get(name, self) is not value:
                    module.__dict__[name] = originals.get(id(value), value)


def _are_same(left: Any, right: Any) -> bool:
    return len(left) == len(right) and all(one is other for one, other in zip(left, right, strict=True))


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
