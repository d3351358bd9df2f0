"""Targets of rules: patterns of the names of parameters, inputs, nodes, scopes and operators.

In: `param:encoder.*.weight`, `re:param:.*weight`, `scope:layer@2`. Out: `selects(target, "param", "encoder.0.weight")`.

Expressions have the syntax of Rust's `regex` crate, by way of pydantic: matching is linear in the length of the name,
so look-arounds and back references do not exist. Globs are those of `fnmatch`, without backtracking behind a star.
"""

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from math import prod
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

KINDS: Final = ("param", "input", "node", "scope", "op")
MOST_CHARACTERS: Final = 1000
# Maximum length of an expression times the product of its counts: `(a{1,30}){1,30}` is as long as its copies.
MOST_COPIES: Final = 10_000
# `in_proj_weight` of a module without a submodule `in_proj`.
PACKED: Final = re.compile(r"(?<=\w)_(weight|bias)$")
COUNTS: Final = re.compile(r"\{(\d*)(?:,(\d*))?\}")
CALL: Final = re.compile(r"0*[1-9][0-9]{0,8}")


def require_target(target: str) -> str:
    """Returns a valid target unchanged.

    Raises:
        ValueError: an unreadable or too long expression; a call that is no number.
    """
    if len(target) > MOST_CHARACTERS:
        raise ValueError(f"{target[:20]!r}... has {len(target)} characters, more than {MOST_CHARACTERS}")
    if target.startswith("re:"):
        expression(target[3:])
    kind, _, pattern = target.partition(":")
    _, separator, call = pattern.partition("@")
    if kind == "scope" and separator and CALL.fullmatch(call) is None:
        raise ValueError(f"{target!r}: after @ stands the number of a call, from 1: `scope:layer@2`")
    return target


def kind_of(target: str) -> str:
    """Kind of a target, `param`, `input`, ...; "" without a kind.

    >>> kind_of("op:softmax"), kind_of("re:param:.*"), kind_of("Linear")
    ('op', '', '')
    """
    kind, separator, _ = target.partition(":")
    return kind if separator and kind in KINDS else ""


def selects(target: str, kind: str, name: str) -> bool:
    """Whether a target selects an object by kind and name; module types are not handled."""
    if target.startswith("re:"):
        return expression(target[3:]).isinstance_python(f"{kind}:{name}")
    wanted, separator, pattern = target.partition(":")
    names = (name, dotted(name)) if kind == "param" else (name,)
    if separator and wanted in KINDS:
        return kind == wanted and any(matches_name(kind, pattern, known) for known in names)
    return kind in ("param", "input") and any(fnmatchcase(known, target) for known in names)


def dotted(name: str) -> str:
    """Name of a packed parameter as if its prefix were a submodule.

    >>> dotted("layers.0.self_attn.in_proj_weight")
    'layers.0.self_attn.in_proj.weight'
    """
    return PACKED.sub(r".\1", name)


def matches_name(kind: str, pattern: str, name: str) -> bool:
    """Whether a glob matches a name; `scope:layer@2` is the second call of a shared module."""
    if kind != "scope":
        return fnmatchcase(name, pattern)
    wanted, _, call = pattern.partition("@")
    path, _, repeat = name.partition("@")
    if call and int(call) != int(repeat or 0) + 1:
        return False
    return fnmatchcase(path, wanted)


@lru_cache(maxsize=256)
def expression(text: str) -> SchemaValidator:
    """Compiled predicate: whether an expression matches a whole name.

    Raises:
        ValueError: it cannot be read, or it is too long.
    """
    counts = [max(int(number or 1) for number in found.groups()) for found in COUNTS.finditer(text)]
    if len(text) * prod(counts) > MOST_COPIES:
        raise ValueError(f"the expression {text!r} repeats too much; use * or + in place of counts")
    try:
        for whole in (text, rf"\A(?:{text})\z"):  # alone first: `a)|(b` must not close our group
            found = SchemaValidator(core_schema.str_schema(pattern=whole, regex_engine="rust-regex"))
    except SchemaError as error:
        reason = str(error).strip().rpartition("error: ")[2]
        raise ValueError(
            f"the expression {text!r} cannot be read: {reason} (the syntax is that of Rust's regex crate)"
        ) from None
    return found
