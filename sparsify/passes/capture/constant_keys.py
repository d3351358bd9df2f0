"""Cache keys of non-tensor arguments: numbers, numpy arrays, user objects.

In: a value. Out: its class, and a text or digest that differs for different contents, in the form read by `pickle`;
`None` for unpicklable contents. Functions are compared by code, defaults and closures, classes and modules by identity.
"""

import enum
import hashlib
import pickle
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final

import torch

from sparsify.compiler.arrays.digest import digest
from sparsify.storage.own_memory import has_memory

Contents = tuple[type, str | bytes | None]
# Classes with a complete text form.
WRITTEN: Final = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})


def contents(value: Any) -> Contents:
    """The class of a value, and its text or pickle digest: equal for values that share a graph."""
    kind = type(value)
    if kind in WRITTEN:
        return kind, repr(value)  # -0.0 == 0.0
    sha256 = hashlib.sha256()
    try:
        _Reader(SimpleNamespace(write=sha256.update), pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception:  # classes may raise anything when pickled
        return kind, None
    return kind, sha256.digest()


class _Reader(pickle.Pickler):
    """A pickler for keys, which nothing unpickles; accepts functions and classes without a module."""

    def persistent_id(self, value: Any) -> Any:
        """The identity of classes and modules."""
        return (value.__name__, id(value)) if isinstance(value, type | ModuleType) else None

    def reducer_override(self, value: Any) -> Any:
        """The parts of tensors, functions, code and enumerated values; the default reduction for other values."""
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and has_memory(value):
            form = value.dtype, value.shape, value.stride(), value.requires_grad
            return tuple, ((type(value), form, digest(value)),)
        if isinstance(value, FunctionType):
            parts = (
                value.__code__,
                value.__defaults__,
                value.__kwdefaults__,
                value.__closure__,
                value.__dict__,
            )
            return tuple, (parts,)
        if isinstance(value, CodeType):
            names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
            return tuple, ((value.co_name, value.co_flags, value.co_code, value.co_consts, names),)
        if isinstance(value, CellType):
            return tuple, (_cell_value(value),)
        if isinstance(value, enum.Enum):
            return tuple, ((type(value), value.name, value.value),)
        return NotImplemented


def _cell_value(cell: CellType) -> tuple[Any, ...]:
    """The content of a closure cell, nothing for an empty cell."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()
