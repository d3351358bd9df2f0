"""The attributes and methods of the source model on a sparse model, and their side effects.

In: `sparse.config`, `sparse.save_pretrained(folder)`, `sparse.scale = 2.0`. Out: the attribute of the source model; the
method of the source model with dense weights, where calls of the model are calls of the sparse one; a source model with
the new attribute, and no graph with the old one.

Methods run on a mirror; their changes are transferred to the source model when they end. Other threads, and captures
within the method, see a source model with packed weights all the time.
"""

import threading
import weakref
from collections.abc import Callable, ItemsView, Mapping, ValuesView
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from sparsify import options as settings
from sparsify.errors import CaptureError
from sparsify.passes.capture import calls
from sparsify.passes.capture.shell import (
    INTERNAL,
    Modes,
    adopt,
    fill_shell,
    follow,
    is_dunder,
    modes,
    module_behind,
    share_tensors,
    shared_copy,
)
from sparsify.passes.module.source.autocast import Autocast
from sparsify.passes.module.source.generate import run_by
from sparsify.passes.module.source.hooks import hooked
from sparsify.passes.module.variants.variant import CallIndex
from sparsify.passes.module.weights.mirror import Mirror
from sparsify.passes.module.weights.packed_weights import Weights
from sparsify.runtime.locks import CAPTURES
from sparsify.storage.tensor import SparseTensor

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule


# Types of attributes that a graph may hold as constants.
CONSTANTS: Final = (bool, int, float, str, type(None))
STORES: Final = ("_parameters", "_buffers", "_modules")
# Attributes that are tracked separately.
KEPT: Final = (*STORES, "training")
MISSING: Final = object()


class Watch:
    """A context that records in `ran` whether modules of a model run on their own.

    Args:
        model: model with the watched modules.
        sparse: replacement for calls of the whole model.
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


class Originals(Mirror):
    """The way back from a mirror: originals in place of copies; new modules stay, with originals inside."""

    def __init__(self, originals: Mapping[int, nn.Module]) -> None:
        self.is_isolated = False
        self.copies, self.pairs = dict(originals), []

    def module(self, module: nn.Module) -> nn.Module:
        """The original of a copy, else the module itself."""
        if id(module) not in self.copies:
            self.copies[id(module)] = module
            for name, value in list(vars(module).items()):
                module.__dict__[name] = self.value(value)
        return self.of(module)


@dataclass(frozen=True)
class Change:
    """A changed entry of a store of a module, or a changed attribute with `store` "".

    Attributes:
        module: module of the source model.
        old, new: values; `MISSING` for none.
    """

    module: nn.Module
    store: str
    name: str
    old: Any
    new: Any

    @property
    def is_of_graph(self) -> bool:
        """Whether graphs may hold the old value."""
        return bool(self.store) or is_other_constant(self.old, self.new)

    def make(self, moved: Mapping[int, nn.Module], originals: Originals) -> None:
        """Applies the change to the present replacement of the module."""
        module = moved.get(id(self.module), self.module)
        store = vars(module)[self.store] if self.store else module.__dict__
        if self.new is MISSING:
            store.pop(self.name, None)
        else:
            store[self.name] = originals.value(self.new)


class Borrowed:
    """A mirror of a source model with dense weights, which a method may change.

    Args:
        weights: weights of the source model.
        wanted: modes of the mirror.

    Attributes:
        mirror: mirror with the receiver of the method.
    """

    def __init__(self, weights: Weights, target_modes: Modes) -> None:
        self.weights, self.source = weights, weights.source
        self.names = list(weights.packed())
        self.mirror = weights.mirror(target_modes, is_isolated=False)
        self.parts = parts_of(self.source)

    def call(self, run: Callable[[], Any]) -> Any:
        """The result of a method; changes of the mirror are recorded from here on."""
        self.before = [
            (module, new, dict(vars(new)), {kind: dict(vars(new)[kind]) for kind in STORES})
            for module, new, _ in self.mirror.pairs
        ]
        self.dense: dict[str, Tensor] = {name: self.mirror.model.get_parameter(name) for name in self.names}
        self.versions = {name: dense._version for name, dense in self.dense.items()}
        return run()

    def changes(self) -> list[Change]:
        """The changes of the method in modules."""
        all_changes = []
        for module, new, attributes, stores in self.before:
            pairs = [
                ("", attributes, vars(new)),
                *((kind, earlier, vars(new)[kind]) for kind, earlier in stores.items()),
            ]
            for kind, old, now in pairs:
                names = [name for name, value in old.items() if now.get(name, MISSING) is not value]
                names += [name for name in now if name not in old]
                values = ((name, old.get(name, MISSING), now.get(name, MISSING)) for name in names)
                all_changes += [
                    Change(module, kind, *value) for value in values if kind or value[0] not in KEPT
                ]
        return all_changes

    def written(self) -> dict[str, Tensor]:
        """The packed weights whose dense copies the method has written, as dense tensors by name."""
        present = dict(self.mirror.model.named_parameters(remove_duplicate=False))
        return {
            name: dense
            for name, dense in self.dense.items()
            if present.get(name) is dense and dense._version != self.versions[name]
        }

    def originals(self) -> Originals:
        """The mapping from the mirror back into the present source model."""
        moved = {} if self.weights.source is self.source else self.moved()
        return Originals({id(new): moved.get(id(old), old) for old, new, _ in self.mirror.pairs})

    def moved(self) -> dict[int, nn.Module]:
        """The present module at the path of each mirrored module of the source model, by identity."""
        now = dict(self.weights.source.named_modules())
        return {id(part): now[path] for path, part in self.source.named_modules() if path in now}

    def hand_on(self, changes: list[Change]) -> bool:
        """Applies the changes to the source model; returns whether its graphs are invalid now."""
        originals, moved = self.originals(), self.moved()
        for change in changes:
            change.make(moved, originals)
        is_other = any(change.is_of_graph for change in changes)
        return is_other or not is_same(self.parts, parts_of(self.source))


def parts_of(model: nn.Module) -> dict[tuple[str, str], Any]:
    """The parameters, buffers, modules and constants of a model by path and name."""
    parts: dict[tuple[str, str], Any] = {}
    for path, module in list(model.named_modules()):
        for kind in STORES:
            parts |= {(path, name): value for name, value in dict(vars(module)[kind]).items()}
        for name, value in dict(vars(module)).items():
            if type(value) in CONSTANTS and name not in INTERNAL:
                parts[path, name] = value
    return parts


def is_same(before: dict[tuple[str, str], Any], now: dict[tuple[str, str], Any]) -> bool:
    """Whether a model has unchanged parts; packed and dense weights count as equal."""

    def unchanged(old: Any, new: Any) -> bool:
        is_packed = isinstance(old, SparseTensor) or isinstance(new, SparseTensor)
        return is_packed or old is new or are_equal_constants(old, new)

    return before.keys() == now.keys() and all(unchanged(old, now[name]) for name, old in before.items())


def are_equal_constants(old: Any, new: Any) -> bool:
    """Whether both values are the same constant."""
    return type(old) in CONSTANTS and type(old) is type(new) and bool(old == new)


def is_other_constant(old: Any, new: Any) -> bool:
    """Whether a value is a constant in place of another value, or the other way round."""
    return (type(old) in CONSTANTS or type(new) in CONSTANTS) and not are_equal_constants(old, new)


class Facade:
    """The attributes and methods of the source model, for its sparse model and the shells inside.

    Args:
        sparse: owner of the facade, referenced weakly.
    """

    def __init__(self, sparse: "SparseModule") -> None:
        self._sparse = weakref.ref(sparse)

    @property
    def sparse(self) -> "SparseModule":
        """The sparse model."""
        module = self._sparse()
        assert module is not None, "a sparse model outlives its facade"
        return module

    def attribute(self, path: str, name: str) -> Any:
        """An attribute of a module of the source model; methods run by `run_method`, modules are shells."""
        part = self.part(path)
        value = getattr(part, name)
        if not isinstance(value, MethodType) or value.__self__ is not part:
            return self.shown(value)

        sparse = self.sparse  # keeps the model alive as long as its methods

        @wraps(value)
        def method(*args: Any, **kwargs: Any) -> Any:
            return sparse._facade.run_method(path, name, args, kwargs)

        return method

    def part(self, path: str) -> nn.Module:
        """A module of the source model."""
        return self.sparse._source.get_submodule(path)

    def shown(self, value: Any) -> Any:
        """The shell of a module of the source model, also inside dictionary views; other values are unchanged."""
        if isinstance(value, ValuesView | ItemsView):
            return [self.shown(item) for item in value]
        if type(value) is tuple:
            return tuple([self.shown(item) for item in value])
        if not isinstance(value, nn.Module):
            return value
        path = next((path for path, part in self.sparse._source.named_modules() if part is value), None)
        return value if path is None else self.sparse.get_submodule(path)

    def run_method(self, path: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a method of a module of the source model, run on a mirror with dense weights.

        Calls of the whole model within the method are calls of the sparse model. Writes into weights persist; where the
        method changes parameters, modules or constants, the sparse model is captured anew.
        """
        with self.sparse._weights.lock:  # the modes are the modes of the sparse model's modules
            modes_before = modes(self.sparse)
            borrowed = Borrowed(self.sparse._weights, modes_before)
        model = borrowed.mirror.model
        watch = Watch(model, self.sparse)
        run_by(model, watch.run)
        receiver = model.get_submodule(path)
        try:
            with watch:
                result = borrowed.call(lambda: getattr(receiver, name)(*args, **kwargs))
        finally:
            if modes(model) != modes_before:
                follow(self.sparse, model)
            self.hand_on(borrowed)
        if watch.ran:
            masks = ", and without the masks of the recipe" if self.sparse._request.has_masks else ""
            self.sparse._notices.warn(
                f"{name} runs modules of the source model densely{masks}; calls of the whole model are sparse"
            )
        if isinstance(result, ValuesView | ItemsView):
            return [self.shown(item) for item in borrowed.originals().value(list(result))]
        return self.shown(borrowed.originals().value(result))

    def hand_on(self, borrowed: Borrowed) -> None:
        """Transfers the changes of a method from a mirror to the source model."""
        changes, written = borrowed.changes(), borrowed.written()
        if not changes and not written and is_same(borrowed.parts, parts_of(borrowed.source)):
            return
        with CAPTURES, self.sparse._weights.lock:
            for name, dense in written.items():
                self.sparse._weights.rewrite(name, dense)
            packed = self.sparse._weights.packed()
            is_other = borrowed.hand_on(changes)
            share_tensors(self.sparse, self.sparse._source)  # repacks written weights
            self.sparse._weights.follow()
            if is_other:
                self.renew(packed)

    def run_part(self, part: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The dense result of a module of the source model."""
        with self.sparse._weights.running(self.sparse) as mirrored:
            return mirrored(part)(*args, **kwargs)

    def run_inside(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a module of the source model, called outside of the whole model."""
        masks = ", and without the masks of the recipe" if self.sparse._request.has_masks else ""
        self.sparse._notices.warn(
            f"{path} is called by itself: it runs densely{masks}; calls of the whole model are sparse"
        )
        return self.run_part(self.part(path), *args, **kwargs)

    def add_hooked(self, shell: nn.Module) -> None:
        """A shell got hooks."""
        self.sparse._hooks.add(next(path for path, module in self.sparse.named_modules() if module is shell))

    def runs_hooks(self) -> bool:
        """Whether hooks of modules have to run in a call now, which forces the source model to run.

        Raises:
            CaptureError: hooks have to run, and nothing may run densely.
        """
        paths = self.sparse._hooks.active(self.sparse, self.sparse._source)
        if not paths:
            return False
        names = ", ".join(path or "the source model" for path in paths)
        if self.sparse._request.has_masks:
            self.sparse._notices.warn(
                f"hooks of {names} do not run: the source model cannot run with masks of a recipe"
            )
            return False
        if self.sparse._request.strict or settings.current().strict:
            raise CaptureError(
                f"{names} have hooks, with which the source model runs, densely", "remove the hooks"
            )
        self.sparse._notices.warn(f"{names} have hooks: while they have, the source model runs, densely")
        return True

    def run_hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The source model's result, with the hooks of the sparse model's modules."""
        with self.sparse._weights.mirrored(self.sparse) as mirrored:
            source = mirrored(self.sparse._source)
            with hooked(self.sparse, source, self.sparse._hooks.paths):
                return calls.run_source(source, args, kwargs)

    def set_attribute(self, path: str, name: str, value: Any) -> bool:
        """Sets an existing attribute of a module of the source model; returns whether the attribute exists.

        A source model owned by the user is copied first: parameters stay shared, attributes and modules do not.
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
            # the old shell belongs to the old module
            self.sparse.get_submodule(path)._modules.pop(name, None)
            self.renew(packed)
        return True

    def take_source(self) -> None:
        """Replaces the source model by a copy that the sparse model may change.

        Raises:
            CaptureError: the source model cannot be copied.
        """
        weights = self.sparse._weights
        if weights.is_own:
            return
        try:
            weights.source, weights.is_own = shared_copy(weights.source), True
            adopt(self.sparse, self)
        except Exception as error:  # modules of the model may raise anything when copied
            raise CaptureError(
                f"{type(weights.source).__name__} cannot be copied, and is to be changed: {error}",
                "change the model itself, and apply the recipe to it once more",
            ) from error

    def renew(self, packed: Mapping[str, SparseTensor]) -> None:
        """Follows a source model with other parameters, modules or constants by a new capture.

        Args:
            packed: formerly packed weights.
        """
        sparse = self.sparse
        sparse._weights.rename(packed)
        fill_shell(sparse, sparse._source)
        adopt(sparse, self)
        sparse._hooks.follow(sparse, sparse._source)
        sparse._captures.forget()
        sparse._autocast = Autocast()
        sparse._call_index = CallIndex(tuple(sparse.modules()), sparse._call_index.matrices)


def adopt_signature(module: nn.Module, model: nn.Module, signature: Signature) -> None:
    """Copies the signature and the type hints of the source model's forward to a module."""
    forward = vars(type(module))["forward"]
    self_parameter = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    is_free = "self" not in signature.parameters
    forward.__signature__ = (
        signature.replace(parameters=[self_parameter, *signature.parameters.values()]) if is_free else None
    )
    try:
        forward.__annotations__ = get_type_hints(model.forward)
    except Exception:  # annotations may name undefined types
        forward.__annotations__ = dict(getattr(model.forward, "__annotations__", {}))
    module.__dict__["__signature__"] = signature
