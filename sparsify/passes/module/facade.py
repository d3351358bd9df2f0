"""The attributes and methods of the source model on a sparse model, and what they change.

In: `sparse.config`, `sparse.save_pretrained(folder)`, `sparse.scale = 2.0`. Out: the attribute of the source model; the
method of the source model with dense weights, its calls of the model those of the sparse one; a source model with the
attribute, and no graph that knows the old one.
"""

import weakref
from collections.abc import ItemsView, Mapping, ValuesView
from functools import wraps
from inspect import Parameter, Signature
from types import MethodType
from typing import TYPE_CHECKING, Any, get_type_hints

from torch import nn

from sparsify import options as settings
from sparsify.errors import CaptureError
from sparsify.passes.capture import calls
from sparsify.passes.capture.shell import (
    INTERNAL,
    adopt,
    fill_shell,
    follow,
    is_dunder,
    modes,
    module_behind,
    share_again,
    shared_copy,
)
from sparsify.passes.module.autocast import Autocast
from sparsify.passes.module.call_index import Quick
from sparsify.passes.module.generate import run_by
from sparsify.passes.module.hooks import hooked
from sparsify.passes.module.run_method import Borrowed, Watch, are_equal_constants, is_same, parts_of
from sparsify.runtime.locks import CAPTURES
from sparsify.storage.tensor import SparseTensor

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule


class Facade:
    """The attributes and methods of the source model of a sparse one, for it and the shells inside it.

    Args:
        sparse: holds this facade, which therefore does not hold it.
    """

    def __init__(self, sparse: "SparseModule") -> None:
        self._sparse = weakref.ref(sparse)

    @property
    def sparse(self) -> "SparseModule":
        """The sparse model."""
        found = self._sparse()
        assert found is not None, "a sparse model outlives its facade"
        return found

    def attribute(self, path: str, name: str) -> Any:
        """An attribute of a module of the source model; methods run by `run_method`, modules are shells."""
        part = self.part(path)
        found = getattr(part, name)
        if not isinstance(found, MethodType) or found.__self__ is not part:
            return self.shown(found)

        sparse = self.sparse  # lives as long as its methods

        @wraps(found)
        def method(*args: Any, **kwargs: Any) -> Any:
            return sparse._facade.run_method(path, name, args, kwargs)

        return method

    def part(self, path: str) -> nn.Module:
        """A module of the source model."""
        return self.sparse._source.get_submodule(path)

    def shown(self, value: Any) -> Any:
        """The shell of a module of the source model, of those in the views of a dictionary, anything else as it is."""
        if isinstance(value, ValuesView | ItemsView):
            return [self.shown(item) for item in value]
        if type(value) is tuple:
            return tuple([self.shown(item) for item in value])
        if not isinstance(value, nn.Module):
            return value
        path = next((path for path, part in self.sparse._source.named_modules() if part is value), None)
        return value if path is None else self.sparse.get_submodule(path)

    def run_method(self, path: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a method of a module of the source model, which runs on a mirror with dense weights.

        Calls of the whole model within it are calls of this one. What it writes into weights stays; where it changes
        parameters, modules or constants, this model is captured anew.
        """
        with self.sparse._weights.lock:  # the modes are those of these modules
            wanted = modes(self.sparse)
            borrowed = Borrowed(self.sparse._weights, wanted)
        model = borrowed.mirror.model
        watch = Watch(model, self.sparse)
        run_by(model, watch.run)
        receiver = model.get_submodule(path)
        try:
            with watch:
                result = borrowed.call(lambda: getattr(receiver, name)(*args, **kwargs))
        finally:
            if modes(model) != wanted:
                follow(self.sparse, model)
            self.hand_on(borrowed)
        if watch.ran:
            masks = ", and without the masks of the recipe" if self.sparse._asked.has_masks else ""
            self.sparse._notices.warn(
                f"{name} runs modules of the source model densely{masks}; calls of the whole model are sparse"
            )
        if isinstance(result, ValuesView | ItemsView):
            return [self.shown(item) for item in borrowed.originals().value(list(result))]
        return self.shown(borrowed.originals().value(result))

    def hand_on(self, borrowed: Borrowed) -> None:
        """Gives the source model what a method changed in a mirror of it."""
        changes, written = borrowed.changes(), borrowed.written()
        if not changes and not written and is_same(borrowed.parts, parts_of(borrowed.source)):
            return
        with CAPTURES, self.sparse._weights.lock:
            for name, dense in written.items():
                self.sparse._weights.rewrite(name, dense)
            packed = self.sparse._weights.packed()
            is_other = borrowed.hand_on(changes)
            share_again(self.sparse, self.sparse._source)  # what was written to is packed anew
            self.sparse._weights.follow()
            if is_other:
                self.renew(packed)

    def run_part(self, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What a module of the source model computes, densely."""
        with self.sparse._weights.running(self.sparse) as own:
            return own(part)(*args, **kwargs)

    def run_inside(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a module of the source model, called by itself."""
        masks = ", and without the masks of the recipe" if self.sparse._asked.has_masks else ""
        self.sparse._notices.warn(
            f"{path} is called by itself: it runs densely{masks}; calls of the whole model are sparse"
        )
        return self.run_part(self.part(path), *args, **kwargs)

    def add_hooked(self, shell: nn.Module) -> None:
        """A shell got hooks."""
        self.sparse._hooks.add(next(path for path, known in self.sparse.named_modules() if known is shell))

    def runs_hooks(self) -> bool:
        """Whether hooks of modules are to run in a call now, so that the source model has to.

        Raises:
            CaptureError: they are, and nothing may run densely.
        """
        paths = self.sparse._hooks.active(self.sparse, self.sparse._source)
        if not paths:
            return False
        names = ", ".join(path or "the source model" for path in paths)
        if self.sparse._asked.has_masks:
            self.sparse._notices.warn(
                f"hooks of {names} do not run: the source model cannot run with masks of a recipe"
            )
            return False
        if self.sparse._asked.strict or settings.current().strict:
            raise CaptureError(
                f"{names} have hooks, with which the source model runs, densely", "remove the hooks"
            )
        self.sparse._notices.warn(f"{names} have hooks: while they have, the source model runs, densely")
        return True

    def run_hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The source model's result, with the hooks that modules of this model have."""
        with self.sparse._weights.mirrored(self.sparse) as own:
            source = own(self.sparse._source)
            with hooked(self.sparse, source, self.sparse._hooks.paths):
                return calls.run_source(source, args, kwargs)

    def set_attribute(self, path: str, name: str, value: Any) -> bool:
        """Sets an attribute that a module of the source model has; whether it has it.

        A source model that is the user's is copied before: parameters stay shared, attributes and modules do not.
        """
        if name in INTERNAL or is_dunder(name):
            return False
        part, value = self.part(path), module_behind(value)
        stores = (part._parameters, part._buffers, part._modules)
        is_part = any(name in store for store in stores)
        if not is_part and name not in vars(part):
            return False
        old = getattr(part, name, self)
        if old is value or are_equal_constants(old, value):
            return True
        with CAPTURES, self.sparse._weights.lock:
            packed = self.sparse._weights.packed()
            self.take_source()
            setattr(self.part(path), name, value)
            # the old shell stands for the old module
            self.sparse.get_submodule(path)._modules.pop(name, None)
            self.renew(packed)
        return True

    def take_source(self) -> None:
        """Makes the source model one that this model may change.

        Raises:
            CaptureError: it cannot be copied.
        """
        weights = self.sparse._weights
        if weights.is_own:
            return
        try:
            weights.source, weights.is_own = shared_copy(weights.source), True
            adopt(self.sparse, self)
        except Exception as error:  # whatever the modules of the model raise when they are copied
            raise CaptureError(
                f"{type(weights.source).__name__} cannot be copied, and is to be changed: {error}",
                "change the model itself, and apply the recipe to it once more",
            ) from error

    def renew(self, packed: Mapping[str, SparseTensor]) -> None:
        """Follows a source model that has other parameters, modules or constants: it is captured anew.

        Args:
            packed: the weights that it held packed before.
        """
        sparse = self.sparse
        sparse._weights.rename(packed)
        fill_shell(sparse, sparse._source)
        adopt(sparse, self)
        sparse._hooks.follow(sparse, sparse._source)
        sparse._captures.forget()
        sparse._autocast = Autocast()
        sparse._quick = Quick(tuple(sparse.modules()), sparse._quick.matrices)


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
    module.__dict__["__signature__"] = signature
