"""Results of classes of transformers, without the import of transformers, which takes longer than loading a model.

In: the name of a class and the fields of a result. Out: an object of the class where its module is imported already,
else a `DeferredOutput`, which behaves like the class and imports it at the first use that only the class can serve.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from sparsify.errors import DataError

# Prefix of the names under which results without their class are registered in torch.
PREFIX: Final = "sparsify."
_registered: dict[str, type] = {}


class DeferredOutput(OrderedDict[str, Any]):
    """The fields of a result, by key, by attribute and by position, as a `transformers` output has them.

    Subclasses set `path`, the module and the name of the class. `isinstance` and all attributes besides the fields
    are those of the class.
    """

    path: tuple[str, str]

    def __getitem__(self, key: Any) -> Any:
        return OrderedDict.__getitem__(self, key) if isinstance(key, str) else self.to_tuple()[key]

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return OrderedDict.__getitem__(self, name)
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.imported(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            OrderedDict.__setattr__(self, name, value)
        else:
            self[name] = value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class that `isinstance` sees: the one of transformers where it is imported."""
        return known_class(self.path) or type(self)

    def __reduce__(self) -> Any:
        return restored, (*self.path, tuple(self.items()))

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields of the result, in order."""
        return tuple(self.values())

    def imported(self) -> Any:
        """The result as an object of its class, which is imported."""
        return restored(*self.path, tuple(self.items()))


def restored(module: str, name: str, items: Iterable[tuple[str, Any]]) -> Any:
    """The result of a class with some fields; imports the class.

    Raises:
        DataError: the module registers no class of results under the name: a folder could name any function.
    """
    import_module(module)
    kind = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(f"{module}.{name}")
    if kind is None:
        raise DataError(
            f"results of class {module}.{name}, which is no registered class", "save the model again"
        )
    return kind(**dict(items))


def known_class(path: tuple[str, str]) -> type | None:
    """The class of a path where its module is imported, else None."""
    return pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(".".join(path)) if path[0] in sys.modules else None


def deferred_name(name: str) -> str:
    """The registered name of results of a class that is not imported; registers it at the first request.

    Args:
        name: module and name of the class, as `transformers.modeling_outputs.BaseModelOutput`.
    """
    if name not in _registered:
        module, _, own = name.rpartition(".")
        kind = type(own, (DeferredOutput,), {"path": (module, own), "__module__": __name__})
        pytree.register_pytree_node(
            kind,
            _flatten,
            partial(_unflatten, kind),
            serialized_type_name=PREFIX + name,
            flatten_with_keys_fn=_flatten_with_keys,
        )
        _registered[name] = kind
    return PREFIX + name


def _flatten(output: DeferredOutput) -> tuple[list[Any], list[str]]:
    """The values and the names of fields."""
    return list(output.values()), list(output)


def _flatten_with_keys(output: DeferredOutput) -> tuple[list[tuple[Any, Any]], list[str]]:
    """The values with their keys, and the names of fields."""
    return [(pytree.MappingKey(name), value) for name, value in output.items()], list(output)


def _unflatten(kind: type[DeferredOutput], values: Iterable[Any], names: list[str]) -> Any:
    """The result; exported and compiled programs name the class, which is imported for them."""
    items = tuple(zip(names, values, strict=True))
    if torch.compiler.is_compiling() or known_class(kind.path) is not None:
        return restored(*kind.path, items)
    found = kind()
    for name, value in items:
        found[name] = value
    return found
