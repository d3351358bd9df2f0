"""The source model's parameters by name, in modules without code.

In: `fill_shell(shell, model)`. Out: `shell.conv1.lin.weight is model.conv1.lin.weight`.
"""

import copy
import operator
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sparsify.errors import CaptureError
from sparsify.passes.capture.libraries import torch_geometric


class Owner(Protocol):
    """The attributes and methods of the source model, for the shells of a sparse model."""

    def run_inside(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a module of the source model."""

    def attribute(self, path: str, name: str) -> Any:
        """An attribute of a module of the source model."""

    def set_attribute(self, path: str, name: str, value: Any) -> bool:
        """Sets an existing attribute of a module of the source model; returns whether the attribute exists."""

    def add_hooked(self, shell: nn.Module) -> None:
        """A shell got hooks."""

    def part(self, path: str) -> Any:
        """A module of the source model."""

    def shown(self, value: Any) -> Any:
        """Shells in place of modules of the source model."""


class Shell(nn.Module):
    """A module of the source model without its code, with the same parameters under the same names.

    A call runs the source model's module; missing attributes are looked up in the source model's module.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the source model's module."""
        owner, path = _owner_and_path(self)
        return owner.run_inside(path, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if is_dunder(name) or self not in _PLACES:
                raise
        owner, path = _owner_and_path(self)
        part = owner.part(path)
        if any(name in store for store in (part._parameters, part._buffers, part._modules)):
            raise AttributeError(f"{type(part).__name__} of a sparse model has no {name}: it was deleted")
        return owner.attribute(path, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in INTERNAL and self in _PLACES:
            owner, path = _owner_and_path(self)
            if owner.set_attribute(path, name, value):
                return
        super().__setattr__(name, value)


def _registering(name: str) -> Any:
    """A torch method that registers a hook; with such hooks, the source model runs."""
    torch_method = getattr(nn.Module, name)

    @wraps(torch_method)
    def register(self: Any, *args: Any, **kwargs: Any) -> Any:
        handle = torch_method(self, *args, **kwargs)
        owner, _ = _owner_and_path(self)
        owner.add_hooked(self)
        return handle

    return register


for _name in ("forward_pre", "forward", "full_backward_pre", "full_backward", "backward"):
    setattr(Shell, f"register_{_name}_hook", _registering(f"register_{_name}_hook"))


class GraphLayer(Shell):
    """The shell of a torch-geometric layer, an instance of the layer's class for code that searches by class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the layer."""
        if self not in _PLACES:
            return GraphLayer
        owner, path = _owner_and_path(self)
        return type(owner.part(path))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == torch_geometric.EXPLAINED and value:
            raise CaptureError(
                "explainers of torch-geometric put masks into layers, which a sparse model does not run",
                "give the explainer the source model: both share their parameters",
            )
        Shell.__setattr__(self, name, value)


class Container(Shell):
    """The shell of a container module (`ModuleList`, `ModuleDict`, `Sequential`)."""

    def __getitem__(self, key: Any) -> Any:
        owner, path = _owner_and_path(self)
        return owner.shown(owner.part(path)[key])

    def __len__(self) -> int:
        owner, path = _owner_and_path(self)
        return len(owner.part(path))

    def __iter__(self) -> Any:
        owner, path = _owner_and_path(self)
        return iter([owner.shown(item) for item in owner.part(path)])

    def __contains__(self, key: Any) -> bool:
        owner, path = _owner_and_path(self)
        return key in owner.part(path) or any(item is key for item in self._modules.values())


ITEMS: Final = ("__getitem__", "__len__", "__iter__", "__contains__")
# Attributes of a module with the hooks of its forward and backward passes.
HOOKS: Final = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_is_full_backward_hook",
)
INTERNAL: Final = frozenset(vars(nn.Module()))
# The owner of each shell, the path of the shell in its owner, and the source module of the shell: outside of the
# shells, which are copied and pickled.
_PLACES: "weakref.WeakKeyDictionary[Shell, tuple[weakref.ref[Any], str, Any]]" = weakref.WeakKeyDictionary()


def adopt(sparse: nn.Module, owner: Owner) -> None:
    """Sets the owner of all shells in a sparse model, and adds the source's item methods to the model."""
    for name in ITEMS:
        if hasattr(type(owner.part("")), name):
            setattr(type(sparse), name, vars(Container)[name])
    reference = weakref.ref(owner)
    for path, inner in sparse.named_modules():
        if isinstance(inner, Shell):
            _PLACES[inner] = reference, path, owner.part(path)


def module_behind(value: Any) -> Any:
    """The source module of a shell; other values are unchanged."""
    return _PLACES[value][2] if isinstance(value, Shell) and value in _PLACES else value


def _owner_and_path(shell: Any) -> tuple[Owner, str]:
    """The owner of a shell, and its path in the sparse model; the root for a sparse model itself."""
    if not isinstance(shell, Shell):
        return shell._facade, ""
    reference, path, _ = _PLACES.get(shell, (None, "", None))
    owner = None if reference is None else reference()
    if owner is None:
        raise CaptureError(
            "this module is part of a sparse model that is gone, and has no code itself",
            "keep the sparse model, or take the module from the source model",
        )
    return owner, path


def is_dunder(name: str) -> bool:
    """Whether a name is special to Python, looked up on types."""
    return name.startswith("__") and name.endswith("__")


Modes = tuple[bool, ...]


def modes(model: nn.Module) -> Modes:
    """Training modes of modules, in the order of the model's modules."""
    result = [model.training]
    for child in model._modules.values():
        if child is not None:
            result += modes(child)
    return tuple(result)


@contextmanager
def in_modes(model: nn.Module, modes_wanted: Modes) -> Iterator[None]:
    """A context in which the modules of `model` are in given modes; restores the earlier modes on exit."""
    before = [(module, module.training) for module in model.modules()]
    set_modes(model, iter(modes_wanted))
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def set_modes(model: nn.Module, modes_wanted: Iterator[bool]) -> None:
    """Sets every module of `model` into a mode, in the order of `modes`."""
    model.training = next(modes_wanted)
    for child in model._modules.values():
        if child is not None:
            set_modes(child, modes_wanted)


def follow(model: nn.Module, shell: nn.Module) -> None:
    """Sets every module of `model` to the mode of its shell."""
    model.training = shell.training
    for name, child in model._modules.items():
        inner = shell._modules.get(name)
        if child is not None and inner is not None:
            follow(child, inner)


def borrowed(model: nn.Module, shell: nn.Module) -> Iterator[tuple[nn.Module, str, str, Any]]:
    """The tensors of shells that differ from the model's, as within `torch.func.functional_call`.

    Yields the module of the model, the name of its store, the name of the tensor and the shell's tensor.
    """
    for kind in ("_parameters", "_buffers"):
        shell_tensors = vars(shell)[kind]
        for name, tensor in vars(model)[kind].items():
            if name in shell_tensors and shell_tensors[name] is not tensor:
                yield model, kind, name, shell_tensors[name]
    for name, child in model._modules.items():
        inner = shell._modules.get(name)
        if child is not None and inner is not None:
            yield from borrowed(child, inner)


def is_lent(model: nn.Module, shell: nn.Module) -> bool:
    """Whether shells have tensors that differ from the model's."""
    return next(borrowed(model, shell), None) is not None


class ModulePairs:
    """The modules of a model paired with their shells, in flat lists, for checks in every call.

    Attributes:
        model: the model.
        is_whole: whether every module has a shell.
    """

    __slots__ = ("_children", "_pairs", "_recorded_children", "_stores", "is_whole", "model")

    def __init__(self, model: nn.Module, shell: nn.Module) -> None:
        self.model = model
        self.is_whole = True
        self._pairs = [(model, shell)]
        for outer, inner in self._pairs:
            for name, child in outer._modules.items():
                shell_child = inner._modules.get(name)
                if child is not None and shell_child is not None:
                    self._pairs.append((child, shell_child))
                self.is_whole &= (child is None) == (shell_child is None)
        kinds = ("_parameters", "_buffers")
        self._stores = [
            (vars(outer)[kind], vars(inner)[kind]) for outer, inner in self._pairs for kind in kinds
        ]
        self._children = [module._modules for pair in self._pairs for module in pair]
        self._recorded_children = self._current_children()

    def _current_children(self) -> list[nn.Module | None]:
        """The children of all modules, in order."""
        return [child for children in self._children if children for child in children.values()]

    def are_current(self, model: nn.Module) -> bool:
        """Whether the recorded pairs are still the modules of a model and their shells."""
        current = self._current_children()
        return (
            model is self.model
            and len(current) == len(self._recorded_children)
            and all(map(operator.is_, current, self._recorded_children))
        )

    def are_in_same_modes(self) -> bool:
        """Whether every module is in the mode of its shell."""
        return self.is_whole and all(module.training == inner.training for module, inner in self._pairs)

    def are_lent(self) -> bool:
        """Whether shells have tensors other than the model's, as within `torch.func.functional_call`."""
        for tensors, shell_tensors in self._stores:
            if tensors:
                for name, tensor in tensors.items():
                    if shell_tensors.get(name, tensor) is not tensor:
                        return True
        return False


def fill_shell(shell: nn.Module, model: nn.Module) -> None:
    """Gives `shell` the parameters, buffers and submodules of `model`, as shells of the same names.

    A module with several names in `model` gets one shell under all of its names.
    """
    _fill(shell, model, {})


def _fill(shell: nn.Module, model: nn.Module, shells: dict[nn.Module, nn.Module]) -> None:
    """Fills a shell, given the shells made so far."""
    shells[model] = shell
    for store, names in ((shell._parameters, model._parameters), (shell._buffers, model._buffers)):
        for name in store.keys() - names.keys():
            del store[name]
    for name in shell._modules.keys() - model._modules.keys():
        del shell._modules[name]
    for name, parameter in model._parameters.items():
        shell._parameters[name] = parameter
    for name, buffer in model._buffers.items():
        shell._buffers[name] = buffer
    shell._non_persistent_buffers_set = set(model._non_persistent_buffers_set)
    for name, child in model._modules.items():
        if child is not None and child not in shells:
            existing = shell._modules.get(name)
            inner = existing if isinstance(existing, Shell) else shell_of(child)
            inner.training = child.training if inner is not existing else inner.training
            _fill(inner, child, shells)
        shell._modules[name] = None if child is None else shells[child]


def shell_of(module: nn.Module) -> Shell:
    """A new shell for a module."""
    if any(hasattr(type(module), name) for name in ITEMS):
        return Container()
    return GraphLayer() if torch_geometric.is_layer(module) else Shell()


def with_copied_buffers(module: nn.Module) -> nn.Module:
    """The modules and parameters of a model with copied buffers, which a call may write in place."""
    shell = nn.Module()
    fill_shell(shell, module)
    copies = {id(buffer): buffer.detach().clone() for buffer in shell.buffers()}
    for part in shell.modules():
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else copies[id(buffer)]
    return shell


def share_tensors(shell: nn.Module, model: nn.Module) -> None:
    """Updates a filled shell with the present parameters and buffers of `model`."""
    for name, parameter in model._parameters.items():
        shell._parameters[name] = parameter
    renew_flat_weights([shell])
    for name, buffer in model._buffers.items():
        shell._buffers[name] = buffer
    for name, child in model._modules.items():
        inner = shell._modules.get(name)
        if child is not None and inner is not None:
            share_tensors(inner, child)


def shared_copy(model: nn.Module) -> nn.Module:
    """A copy of the modules of `model`, with shared parameters and buffers."""
    return copy.deepcopy(model, kept_in_copies(model))


def kept_in_copies(model: nn.Module) -> dict[int, Any]:
    """The memo of a copy with shared tensors: parameters, buffers, and tensors computed by hooks.

    Results of a computation, as the weights of `torch.nn.utils.prune` and of `weight_norm`, cannot be copied.
    """
    tensors = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        for value in vars(module).values():
            several = value if isinstance(value, list | tuple) else (value,)
            tensors += [one for one in several if isinstance(one, Tensor) and not one.is_leaf]
    return {id(tensor): tensor for tensor in tensors}


def usual_copy(model: nn.Module) -> nn.Module:
    """A copy of the modules of `model` with autograd tensors in place of inference-mode tensors."""
    every = (*model.parameters(), *model.buffers())
    tensors = [tensor for tensor in every if not is_lazy(tensor) and tensor.is_inference()]
    if not tensors:
        return model
    with torch.inference_mode(False):
        copies: dict[int, Any] = {id(tensor): _usual(tensor) for tensor in tensors}
        return copy.deepcopy(model, {**kept_in_copies(model), **copies})


def _usual(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of an inference-mode tensor, usable by autograd."""
    copy = tensor.detach().clone()
    return (
        nn.Parameter(copy, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
    )


def places(model: nn.Module, parameter: Tensor) -> list[tuple[dict[str, Any], str]]:
    """Owners of a parameter: dictionaries of modules, with the parameter's name in each."""
    return [(module._parameters, name) for module, name in owners(model, parameter)]


def owners(model: nn.Module, parameter: Tensor) -> list[tuple[nn.Module, str]]:
    """The modules with a parameter, and its name in each."""
    return [
        (module, name)
        for module in model.modules()
        for name, other in module._parameters.items()
        if other is parameter
    ]


def replace(model: nn.Module, old: Tensor, new: Tensor) -> None:
    """Replaces a parameter under each of its names."""
    places = owners(model, old)
    for module, name in places:
        module._parameters[name] = new  # type: ignore[assignment]
    renew_flat_weights(module for module, _ in places)


def renew_flat_weights(modules: Iterable[nn.Module]) -> None:
    """Updates the parameter lists of recurrent layers, the operands of their forward.

    Assignments to attributes update the lists, changes of dictionary entries do not.
    """
    for module in modules:
        names = vars(module).get("_flat_weights_names")
        if isinstance(module, nn.RNNBase) and names is not None:
            parameters = module._parameters
            module.__dict__["_flat_weights"] = [
                parameters[name] if name in parameters else getattr(module, name, None) for name in names
            ]
