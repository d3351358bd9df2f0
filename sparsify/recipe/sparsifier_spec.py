"""Sparsifiers in recipes: their names and numbers, as plain data.

In: `threshold: 0.1`, `{random_fraction: {fraction: 0.9, seed: 3}}`, `ScalarThreshold(0.1)` as text or as the object.
Out: `SparsifierSpec(name="ScalarThreshold", arguments={"threshold": 0.1})`, equal for all spellings of a sparsifier.
The sparsifiers themselves are in `sparsify.sparsifiers`; this module imports no torch.
"""

import ast
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from sparsify.recipe.suggestion import nearest

# Class and ordered parameters by name in recipes; users' own classes are given as objects.
NAMES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "keep_all": ("KeepAll", ()),
    "random_fraction": ("RandomFraction", ("fraction", "seed")),
    "threshold": ("ScalarThreshold", ("threshold", "signed")),
    "fraction": ("ScalarFraction", ("fraction",)),
    "block_fraction": ("BlockFraction", ("fraction", "block")),
    "nm": ("PerBlockFraction", ("n", "m", "dim", "group")),
    "top_k": ("TopK", ("k", "dim", "by")),
    "topk": ("TopK", ("k", "dim", "by")),
    "where": ("Where", ("text",)),
}
CLASSES: Final = {made: (key, parameters) for key, (made, parameters) in reversed(NAMES.items())}
# Sparsifiers with a tensor operand, unavailable in recipes, and the reason in the error text.
OF_TENSORS: Final = {
    "Movement": "compares with values of earlier steps, and is for weights",
    "SameFormat": "has a tensor as reference; of gradients write `grad: {format: same}`",
}


class SparsifierSpec(BaseModel):
    """A sparsifier by its class and its arguments; an object of a user's class is kept unchanged.

    >>> SparsifierSpec.model_validate({"threshold": 0.1}) == SparsifierSpec.model_validate("ScalarThreshold(0.1)")
    True
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    given: Any = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return specified(value)

    def __str__(self) -> str:
        if self.given is not None:
            return repr(self.given)
        given = dict(self.arguments)
        text = [repr(given.pop(key)) for key in CLASSES[self.name][1][:1] if key in given]
        return f"{self.name}({', '.join([*text, *(f'{key}={value!r}' for key, value in given.items())])})"


# In editors: a name, a call as text, or one name with its numbers.
JSON_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "null"},
        {"type": "string", "examples": ["keep_all", "ScalarThreshold(0.1)"]},
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "propertyNames": {"enum": [*NAMES, *CLASSES]},
        },
    ],
    "default": None,
}
Sparsifier = Annotated[SparsifierSpec | None, WithJsonSchema(JSON_SCHEMA)]


def specified(value: Any) -> dict[str, Any]:
    """Fields of a specification, from any of its spellings.

    Raises:
        ValueError: no sparsifier, or unknown arguments.
    """
    if isinstance(value, str):
        return of_text(value)
    if isinstance(value, Mapping):
        if {"name"} <= value.keys() <= {"name", "arguments", "given"}:  # the form of dumped recipes
            return checked(str(value["name"]), (), dict(value.get("arguments") or {}), value.get("given"))
        if len(value) != 1:
            raise ValueError(f"one sparsifier with its numbers, {{threshold: 0.1}}, not {dict(value)!r}")
        ((key, given),) = value.items()
        return of_numbers(str(key), given)
    return of_object(value)


def of_text(text: str) -> dict[str, Any]:
    """Fields of a textual sparsifier, `keep_all` or `ScalarThreshold(0.1)`; arguments are literals, no code runs."""
    try:
        found = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found = None
    match found:
        case ast.Name(name):
            return checked(name, (), {})
        case ast.Call(ast.Name(name), args, keywords) if all(one.arg is not None for one in keywords):
            try:
                named = {str(one.arg): ast.literal_eval(one.value) for one in keywords}
                return checked(name, tuple(ast.literal_eval(one) for one in args), named)
            except (TypeError, SyntaxError, RecursionError, MemoryError):
                pass
            except ValueError as error:
                if "malformed node" not in str(error):
                    raise
    raise ValueError(f"{text!r} is no sparsifier; write {{threshold: 0.1}} or ScalarThreshold(0.1)")


def of_numbers(key: str, given: Any) -> dict[str, Any]:
    """Fields of `threshold: 0.1`, `nm: 2:4`, `random_fraction: {fraction: 0.9}`, `block_fraction: [0.9, [4, 4]]`."""
    if isinstance(given, Mapping):
        return checked(key, (), dict(given))
    if NAMES.get(key, (key,))[0] == "PerBlockFraction" and isinstance(given, str):
        numbers = given.split(":")
        if len(numbers) in (2, 3) and all(number.isdigit() for number in numbers):
            return checked(key, (), dict(zip(("n", "m", "group"), map(int, numbers), strict=False)))
    if given is None:
        return checked(key, (), {})
    return checked(key, tuple(given) if isinstance(given, list | tuple) else (given,), {})


def of_object(value: Any) -> dict[str, Any]:
    """Fields of an object of `sparsify.sparsifiers`; other objects with a method `mask` are kept unchanged."""
    name = type(value).__name__
    if name in OF_TENSORS:
        raise ValueError(f"{name} {OF_TENSORS[name]}")
    if isinstance(value, type) or not callable(getattr(value, "mask", None)):
        raise ValueError(f"{value!r} is no sparsifier; write {{threshold: 0.1}} or ScalarThreshold(0.1)")
    is_ours = type(value).__module__.startswith("sparsify.") and name in CLASSES
    if not is_ours or (is_dataclass(value) and getattr(value, "origin", None)):
        return {"name": name, "given": value}
    if name == "Where":
        condition = value.condition()
        return checked(name, (condition.text,), dict(condition.operands))
    given = {one.name: getattr(value, one.name) for one in fields(value) if one.name in CLASSES[name][1]}
    defaults = {one.name: default_of(one) for one in fields(value)}
    return checked(name, (), {key: own for key, own in given.items() if own != defaults[key]})


def default_of(field: Any) -> Any:
    """Default of a field, `MISSING` without a default."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def checked(
    key: str, positional: tuple[Any, ...], named: dict[str, Any], given: Any = None
) -> dict[str, Any]:
    """Fields of a specification with a known class and named arguments.

    Raises:
        ValueError: an unknown class or argument.
    """
    if given is not None:
        return {"name": key, "given": given}
    if key in OF_TENSORS:
        raise ValueError(f"{key} {OF_TENSORS[key]}")
    known = CLASSES if key in CLASSES else NAMES
    if key not in known:
        raise ValueError(f"the sparsifier {key!r} is not known{nearest(key, [*NAMES, *CLASSES])}")
    name = key if key in CLASSES else NAMES[key][0]
    parameters = CLASSES[name][1]
    if len(positional) > len(parameters):
        raise ValueError(
            f"{name} has {len(parameters)} arguments, {', '.join(parameters)}, not {len(positional)}"
        )
    arguments = {**dict(zip(parameters, positional, strict=False)), **named}
    for argument in arguments:
        if argument not in parameters and name != "Where":
            raise ValueError(f"{name} has no argument {argument!r}{nearest(argument, parameters)}")
    listed = {k: tuple(value) if isinstance(value, list) else value for k, value in arguments.items()}
    return {"name": name, "arguments": listed}
