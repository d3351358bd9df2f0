"""The attributes and methods of the source model on a sparse model, and what they change.

In: `sparse.config`, `sparse.save_pretrained(folder)`, `sparse.scale = 2.0`. Out: the attribute of the source model; the
method of the source model with dense weights, its calls of the model those of the sparse one; a source model with the
attribute, and no graph that knows the old one.
"""

import threading
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature
from types import MethodType
from typing import Any, Final, get_type_hints

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from sparsify import options as settings
from sparsify.errors import CaptureError
from sparsify.passes import calls
from sparsify.passes.autocast import Autocast
from sparsify.passes.decoder import Decoder, running
from sparsify.passes.hooks import Hooks, hooked
from sparsify.passes.mark import aliases
from sparsify.passes.packed import Weights
from sparsify.passes.product_weights import product_weights
from sparsify.passes.prunable import passed_over
from sparsify.passes.quick import Quick
from sparsify.passes.shell import (
    adopt,
    fill_shell,
    follow,
    in_modes,
    is_dunder,
    modes,
    module_behind,
    replace,
    share_again,
    shared_copy,
)
from sparsify.storage.tensor import SparseTensor

# Types of attributes that a graph may hold as constants.
CONSTANTS: Final = (bool, int, float, str, type(None))
INTERNAL: Final = frozenset(vars(nn.Module()))


class Facade(Decoder):
    """A module with the attributes and methods of its source model."""

    _weights: Weights
    _quick: Quick
    _hooks: Hooks
    _autocast: Autocast

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if is_dunder(name) or "_weights" not in self.__dict__:
                raise
        return self.source_attribute("", name)

    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name in self.__dict__ or hasattr(type(self), name)
        if is_own or not self.set_source_attribute("", name, value):
            super().__setattr__(name, value)

    def __copy__(self) -> Any:
        make, args = self.__reduce__()
        return make(*args)

    def source_attribute(self, path: str, name: str) -> Any:
        """An attribute of a module of the source model; methods run by `run_method`, modules are shells."""
        part = self.part(path)
        found = getattr(part, name)
        if not isinstance(found, MethodType) or found.__self__ is not part:
            return self.shown(found)

        @wraps(found)
        def method(*args: Any, **kwargs: Any) -> Any:
            return self.run_method(path, name, args, kwargs)

        return method

    def part(self, path: str) -> nn.Module:
        """A module of the source model."""
        return self._source.get_submodule(path)

    def shown(self, value: Any) -> Any:
        """The shell of a module of the source model, of those in the views of a dictionary, anything else as it is."""
        if isinstance(value, ValuesView | ItemsView):
            return [self.shown(item) for item in value]
        if type(value) is tuple:
            return tuple([self.shown(item) for item in value])
        if not isinstance(value, nn.Module):
            return value
        path = next((path for path, part in self._source.named_modules() if part is value), None)
        return value if path is None else self.get_submodule(path)

    def run_method(self, path: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a method of a module of the source model, whose weights are dense meanwhile.

        Calls of the whole model within it are calls of this one. What it writes into weights stays; where it changes
        parameters, modules or constants, this model is captured anew.
        """
        source = self._source
        with in_modes(source, modes(self)), dense_to_write(self._weights):
            before = parts_of(source)
            watch = Watch(source, self)
            part = source.get_submodule(path)
            receiver = part if path else running(source, watch.run)
            receiver.training = part.training
            known = dict(vars(receiver))
            try:
                with watch:
                    result = getattr(receiver, name)(*args, **kwargs)
            finally:
                if receiver is not part:
                    write_back(receiver, known, source)
                follow(self, source)
                is_changed = not is_same(before, parts_of(source))
        share_again(self, source)  # what was written to is packed anew
        self._weights.follow()
        if is_changed:
            self.renew()
        if watch.ran:
            masks = ", and without the masks of the recipe" if self._asked.has_masks else ""
            self._notices.warn(
                f"{name} runs modules of the source model densely{masks}; calls of the whole model are sparse"
            )
        return self if result is receiver else self.shown(result)

    def run_part(self, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What a module of the source model computes, densely."""
        with self._weights.running(self) as own:
            return own(part)(*args, **kwargs)

    def run_inside(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a module of the source model, called by itself."""
        masks = ", and without the masks of the recipe" if self._asked.has_masks else ""
        self._notices.warn(
            f"{path} is called by itself: it runs densely{masks}; calls of the whole model are sparse"
        )
        return self.run_part(self.part(path), *args, **kwargs)

    def check_pruning(self, call: calls.Call) -> None:
        """Warns, once a call shows it, where a rule pruned what no product reads."""
        pruning, rules = self._asked.pruning, self._asked.recipe.rules
        if not pruning.is_guess:
            return
        pruning.is_guess = False
        read = product_weights(self._source, lambda: self.run_source(calls.copied(call)))
        if read is None:
            return
        ties = aliases(self._source)
        known = {other for name in read for other in ties[name]}
        passed = {at: passed_over(self._source, rules[at], known, ties) for at in pruning.taken}
        names = [name for at, found in pruning.taken.items() for name in found if name in passed[at]]
        if names:
            self._notices.warn(
                f"{', '.join(names)} were pruned, and no product reads them; give apply example inputs, which show "
                "that, or name them in `ignore`"
            )

    def add_hooked(self, shell: nn.Module) -> None:
        """A shell got hooks."""
        self._hooks.add(next(path for path, known in self.named_modules() if known is shell))

    def runs_hooks(self) -> bool:
        """Whether hooks of modules are to run in a call now, so that the source model has to.

        Raises:
            CaptureError: they are, and nothing may run densely.
        """
        paths = self._hooks.active(self, self._source)
        if not paths:
            return False
        names = ", ".join(path or "the source model" for path in paths)
        if self._asked.has_masks:
            self._notices.warn(
                f"hooks of {names} do not run: the source model cannot run with masks of a recipe"
            )
            return False
        if self._asked.strict or settings.current().strict:
            raise CaptureError(
                f"{names} have hooks, with which the source model runs, densely", "remove the hooks"
            )
        self._notices.warn(f"{names} have hooks: while they have, the source model runs, densely")
        return True

    def run_hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The source model's result, with the hooks that modules of this model have."""
        named = {name: calls.as_torch(value) for name, value in kwargs.items()}
        with self._weights.running(self) as own:
            source = own(self._source)
            with hooked(self, source, self._hooks.paths):
                return source(*map(calls.as_torch, args), **named)

    def set_source_attribute(self, path: str, name: str, value: Any) -> bool:
        """Sets an attribute that a module of the source model has; whether it has it.

        A source model that is the user's is copied before: parameters stay shared, attributes and modules do not.
        """
        if "_weights" not in self.__dict__ or name in INTERNAL or is_dunder(name):
            return False
        part, value = self.part(path), module_behind(value)
        stores = (part._parameters, part._buffers, part._modules)
        is_part = any(name in store for store in stores)
        if not is_part and name not in vars(part):
            return False
        old = getattr(part, name, self)
        if old is value or (type(old) in CONSTANTS and type(old) is type(value) and old == value):
            return True
        self.take_source()
        setattr(self.part(path), name, value)
        self.get_submodule(path)._modules.pop(name, None)  # the old shell stands for the old module
        self.renew()
        return True

    def take_source(self) -> None:
        """Makes the source model one that this model may change.

        Raises:
            CaptureError: it cannot be copied.
        """
        weights = self._weights
        if weights.is_own:
            return
        try:
            weights.source, weights.is_own = shared_copy(weights.source), True
            adopt(self)
        except Exception as error:  # whatever the modules of the model raise when they are copied
            raise CaptureError(
                f"{type(weights.source).__name__} cannot be copied, and is to be changed: {error}",
                "change the model itself, and apply the recipe to it once more",
            ) from error

    def renew(self) -> None:
        """Follows a source model that has other parameters, modules or constants: it is captured anew."""
        weights = self._weights
        present = dict(self._source.named_parameters(remove_duplicate=False))
        for name in [n for n in weights.held if not isinstance(present.get(n), SparseTensor)]:
            del weights.held[name]
        fill_shell(self, self._source)
        adopt(self)
        self._captures.forget()
        object.__setattr__(self, "_quick", Quick(tuple(self.modules()), self._quick.matrices))


class Watch:
    """Within this context `ran` tells whether modules of a model run by themselves.

    Args:
        model: whose modules are watched.
        sparse: what runs in place of calls of the whole model.
    """

    def __init__(self, model: nn.Module, sparse: Callable[..., Any]) -> None:
        self.parts = {part for part in model.modules() if part is not model}
        self.sparse = sparse
        self.thread = threading.get_ident()
        self.ran = False
        self.depth = 0

    def __enter__(self) -> None:
        self.handle = register_module_forward_pre_hook(self.look)

    def __exit__(self, *_: object) -> None:
        self.handle.remove()

    def look(self, module: nn.Module, args: Any) -> None:
        """Called by torch before a module runs."""
        if not self.depth and module in self.parts and threading.get_ident() == self.thread:
            self.ran = True

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the whole model, in which modules may run."""
        self.depth += 1
        try:
            return self.sparse(*args, **kwargs)
        finally:
            self.depth -= 1


@contextmanager
def dense_to_write(weights: Weights) -> Iterator[None]:
    """Within this context weights are dense; afterwards packed as before, anew where they were written to."""
    packed = weights.packed()
    dense = {name: weights.unpacked(name) for name in packed}
    for name, weight in packed.items():
        replace(weights.source, weight, dense[name])
    versions = {name: weight._version for name, weight in dense.items()}
    try:
        yield
    finally:
        present = dict(weights.source.named_parameters(remove_duplicate=False))
        for name, weight in packed.items():
            if present.get(name) is dense[name]:
                if dense[name]._version == versions[name]:
                    replace(weights.source, dense[name], weight)
                else:
                    weights.hold(name, weights.held[name])


def write_back(changed: nn.Module, known: dict[str, Any], source: nn.Module) -> None:
    """Gives `source` the attributes that a copy of it got, and takes those that the copy lost."""
    now = vars(changed)
    for name in known.keys() - now.keys():
        source.__dict__.pop(name, None)
    for name, value in now.items():
        if name not in known or known[name] is not value:
            source.__dict__[name] = value


def parts_of(model: nn.Module) -> dict[tuple[str, str], Any]:
    """The parameters, buffers, modules and constants of a model by path and name."""
    found: dict[tuple[str, str], Any] = {}
    for path, module in model.named_modules():
        for store in (module._parameters, module._buffers, module._modules):
            found |= {(path, name): value for name, value in store.items()}
        for name, value in vars(module).items():
            if type(value) in CONSTANTS and name not in INTERNAL:
                found[path, name] = value
    return found


def is_same(before: dict[tuple[str, str], Any], now: dict[tuple[str, str], Any]) -> bool:
    """Whether a model has the parts that it had."""

    def unchanged(old: Any, new: Any) -> bool:
        return old is new or (type(old) in CONSTANTS and type(old) is type(new) and old == new)

    return before.keys() == now.keys() and all(unchanged(old, now[name]) for name, old in before.items())


def adopt_signature(module: nn.Module, model: nn.Module, signature: Signature) -> None:
    """Gives a module the signature and the type hints of its source model's forward."""
    forward = vars(type(module))["forward"]
    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    is_free = "self" not in signature.parameters
    forward.__signature__ = (
        signature.replace(parameters=[own, *signature.parameters.values()]) if is_free else None
    )
    try:
        forward.__annotations__ = get_type_hints(model.forward)
    except Exception:  # annotations may name what cannot be evaluated
        forward.__annotations__ = dict(getattr(model.forward, "__annotations__", {}))
    object.__setattr__(module, "__signature__", signature)
