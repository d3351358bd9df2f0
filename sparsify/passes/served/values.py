"""Plain values as JSON and back: numbers, containers, named objects of torch, and some records.

In: `(1, torch.float32, Window(3))`. Out: `{"tuple": [1, {"dtype": "float32"}, {"record": "Window", ...}]}`, and an
equal value.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch

from sparsify import report
from sparsify.errors import DataError
from sparsify.passes.call.region_call import SizeAt
from sparsify.passes.module.weights.packed_weights import Held
from sparsify.passes.operands.alignment import BagsOutput
from sparsify.passes.operands.cached_operands import MatrixOutput, PatternOutput
from sparsify.passes.operands.convolution_operands import Places
from sparsify.passes.operands.sliding_window import Window
from sparsify.sparsification.masks.mask_spec import MaskSpec, Stamp
from sparsify.storage.format import Format

# Records by name: frozen dataclasses with values as fields, and the entries of reports.
RECORDS: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        *(SizeAt, Held, BagsOutput, MatrixOutput, PatternOutput, Places, Window, MaskSpec),
        *(kind for name, kind in vars(report).items() if name.endswith("Entry")),
    )
}
# Classes in keys of calls.
TYPES: Final[dict[str, type]] = {
    kind.__name__: kind
    for kind in (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(None),
        list,
        tuple,
        dict,
        torch.dtype,
        torch.device,
    )
}
# Kinds of objects that torch serializes by name, by class.
NAMED: Final[dict[type, str]] = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}
NUMBERS: Final = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
Encoder = Callable[[Any], Any]


def encoded(value: Any, other: Encoder | None = None) -> Any:
    """A value as plain data.

    Args:
        value: value of a class known to this module.
        other: encoder of all other values, such as nodes of graphs.

    Raises:
        DataError: a value that no file can hold.
    """

    def all_of(values: Any) -> list[Any]:
        return [encoded(one, other) for one in values]

    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case complex():
            return {"complex": all_of((value.real, value.imag))}
        case bytes():
            return {"bytes": value.hex()}
        case Stamp():
            return {"stamp": list(value)}
        case torch.Size():
            return {"size": all_of(value)}
        case tuple():
            return {"tuple": all_of(value)}
        case list():
            return all_of(value)
        case dict():
            return {"dict": [all_of(item) for item in value.items()]}
        case slice():
            return {"slice": all_of((value.start, value.stop, value.step))}
        case torch.device():
            return {"device": str(value)}
        case Format():
            return {"format": str(value)}
    return _encoded_by_class(value, other)


def _encoded_by_class(value: Any, other: Encoder | None) -> Any:
    """Plain data of records, classes and objects named by torch."""
    kind = type(value)
    if kind in NAMED:
        return {NAMED[kind]: str(value).removeprefix("torch.")}
    if isinstance(value, type) and TYPES.get(value.__name__) is value:
        return {"type": value.__name__}
    if is_dataclass(value) and RECORDS.get(kind.__name__) is kind:
        named = {field.name: encoded(getattr(value, field.name), other) for field in fields(value)}
        return {"record": kind.__name__, "fields": named}
    if other is not None:
        return other(value)
    raise DataError(
        f"a graph of this model holds {value!r:.60}, of class {kind.__name__}, which no file holds",
        "save without kernels=True, and load with the model",
    )


def decoded(data: Any, other: Callable[[str, Any], Any] | None = None) -> Any:
    """The value of plain data.

    Args:
        data: data made by `encoded`.
        other: decoder of the data of `encoded`'s `other`, from a name and its data.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: data not made by `encoded`.
    """
    if isinstance(data, list):
        return [decoded(one, other) for one in data]
    if not isinstance(data, dict):
        return data
    if "record" in data:
        named = {str(name): decoded(one, other) for name, one in data["fields"].items()}
        return RECORDS[data["record"]](**named)
    ((kind, found),) = data.items()
    if kind in DECODERS:
        return DECODERS[kind](found, lambda one: decoded(one, other))
    if other is None:
        raise KeyError(kind)
    return other(kind, found)


def _named(kind: type) -> Callable[[Any, Any], Any]:
    """The decoder of objects that torch serializes by name."""

    def find(name: Any, _: Any) -> Any:
        found = getattr(torch, str(name))
        if type(found) is not kind:
            raise ValueError(f"{name} is no {kind.__name__}")
        return found

    return find


DECODERS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "float": lambda text, _: NUMBERS[text],
    "complex": lambda parts, read: complex(*map(read, parts)),
    "bytes": lambda text, _: bytes.fromhex(text),
    "stamp": lambda parts, _: Stamp(*parts),
    "size": lambda parts, read: torch.Size(map(read, parts)),
    "tuple": lambda parts, read: tuple(map(read, parts)),
    "dict": lambda items, read: {read(key): read(value) for key, value in items},
    "slice": lambda parts, read: slice(*map(read, parts)),
    "device": lambda text, _: torch.device(text),
    "format": lambda text, _: Format(text),
    "type": lambda name, _: TYPES[name],
    **{name: _named(kind) for kind, name in NAMED.items()},
}
