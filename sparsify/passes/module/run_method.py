"""Methods of source models, run on a mirror; what they change is handed on when they have ended.

In: a mirror of the source model and a method that sets `self.scale = 2.0` or replaces `self.last`. Out: the source
model with these changes, and whether graphs of it are of another model now. Other threads, and captures within the
method, meet a source model that has its packed weights all the time.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from sparsify.passes.capture.shell import INTERNAL, Modes
from sparsify.passes.module.mirror import Mirror
from sparsify.passes.module.packed_weights import Weights
from sparsify.storage.tensor import SparseTensor

# Types of attributes that a graph may hold as constants.
CONSTANTS: Final = (bool, int, float, str, type(None))
STORES: Final = ("_parameters", "_buffers", "_modules")
# Attributes that are followed in another way.
KEPT: Final = (*STORES, "training")
MISSING: Final = object()


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
    """An entry of a store of a module, or with `store` "" an attribute, that has another value now.

    Attributes:
        module: of the source model.
        old, new: the values; `MISSING` for none.
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
        """Makes it in the module that takes the place of the one that there was."""
        module = moved.get(id(self.module), self.module)
        store = vars(module)[self.store] if self.store else module.__dict__
        if self.new is MISSING:
            store.pop(self.name, None)
        else:
            store[self.name] = originals.value(self.new)


class Borrowed:
    """A mirror of a source model with dense weights, which a method may change.

    Args:
        weights: of the source model.
        wanted: the modes of the mirror.

    Attributes:
        mirror: whose model the method is called on.
    """

    def __init__(self, weights: Weights, wanted: Modes) -> None:
        self.weights, self.source = weights, weights.source
        self.names = list(weights.packed())
        self.mirror = weights.mirror(wanted, is_isolated=False)
        self.parts = parts_of(self.source)

    def call(self, run: Callable[[], Any]) -> Any:
        """The result of a method; from here on changes of the mirror count."""
        self.before = [
            (module, new, dict(vars(new)), {kind: dict(vars(new)[kind]) for kind in STORES})
            for module, new, _ in self.mirror.pairs
        ]
        self.dense: dict[str, Tensor] = {name: self.mirror.model.get_parameter(name) for name in self.names}
        self.versions = {name: dense._version for name, dense in self.dense.items()}
        return run()

    def changes(self) -> list[Change]:
        """What the method changed in modules."""
        found = []
        for module, new, attributes, stores in self.before:
            pairs = [
                ("", attributes, vars(new)),
                *((kind, known, vars(new)[kind]) for kind, known in stores.items()),
            ]
            for kind, old, now in pairs:
                names = [name for name, value in old.items() if now.get(name, MISSING) is not value]
                names += [name for name in now if name not in old]
                values = ((name, old.get(name, MISSING), now.get(name, MISSING)) for name in names)
                found += [Change(module, kind, *value) for value in values if kind or value[0] not in KEPT]
        return found

    def written(self) -> dict[str, Tensor]:
        """By name the packed weights into whose dense ones the method wrote."""
        present = dict(self.mirror.model.named_parameters(remove_duplicate=False))
        return {
            name: dense
            for name, dense in self.dense.items()
            if present.get(name) is dense and dense._version != self.versions[name]
        }

    def originals(self) -> Originals:
        """The way back into the source model that there is now."""
        moved = {} if self.weights.source is self.source else self.moved()
        return Originals({id(new): moved.get(id(old), old) for old, new, _ in self.mirror.pairs})

    def moved(self) -> dict[int, nn.Module]:
        """By identity of a module of the source model that was mirrored the one at its path now."""
        now = dict(self.weights.source.named_modules())
        return {id(part): now[path] for path, part in self.source.named_modules() if path in now}

    def hand_on(self, changes: list[Change]) -> bool:
        """Makes the changes in the source model; whether its graphs are of another model now."""
        originals, moved = self.originals(), self.moved()
        for change in changes:
            change.make(moved, originals)
        is_other = any(change.is_of_graph for change in changes)
        return is_other or not is_same(self.parts, parts_of(self.source))


def parts_of(model: nn.Module) -> dict[tuple[str, str], Any]:
    """The parameters, buffers, modules and constants of a model by path and name."""
    found: dict[tuple[str, str], Any] = {}
    for path, module in list(model.named_modules()):
        for kind in STORES:
            found |= {(path, name): value for name, value in dict(vars(module)[kind]).items()}
        for name, value in dict(vars(module)).items():
            if type(value) in CONSTANTS and name not in INTERNAL:
                found[path, name] = value
    return found


def is_same(before: dict[tuple[str, str], Any], now: dict[tuple[str, str], Any]) -> bool:
    """Whether a model has the parts that it had, be its weights packed or dense."""

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
