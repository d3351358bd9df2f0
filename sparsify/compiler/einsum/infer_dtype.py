"""Dtypes of expressions, by the rules of `torch.result_type`.

In: `A[i,j] * 2.0` with A of int32. Out: `float32`.

A number gives way to every tensor, a tensor without modes to one with modes, unless its category (bool,
integer, floating, complex) is higher. Sums of integers are int64; a sum of products of truth
values is their or.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import torch

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Const,
    Declaration,
    Expr,
    Index,
    Reduce,
    Stored,
)
from sparsify.errors import DtypeError

NUMBER, SCALAR, TENSOR = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Kind:
    """A dtype and how strong it is: that of a number, of a tensor without modes or of one with modes."""

    dtype: str
    strength: int


def infer_dtype(assign: Assign, declarations: Mapping[str, Declaration]) -> str:
    """The dtype of the result of a statement."""
    kind = _kind(assign.value, declarations)
    return _reduced(kind, assign.monoid, assign.value).dtype if assign.monoid is not None else kind.dtype


def _kind(expr: Expr, declarations: Mapping[str, Declaration]) -> Kind:
    match expr:
        case Const(bool()) | Stored():
            return Kind("bool", NUMBER if isinstance(expr, Const) else TENSOR)
        case Const(value):
            return Kind("int64" if isinstance(value, int) else "float32", NUMBER)
        case Index():
            return Kind("int64", NUMBER)
        case Access(tensor, indices):
            return Kind(declarations[tensor].dtype, TENSOR if indices else SCALAR)
        case Reduce(monoid, _, body):
            return _reduced(_kind(body, declarations), monoid, body)
        case Call("where", (_, yes, no)):
            return _promote(_kind(yes, declarations), _kind(no, declarations))
        case Call(name, args):
            function = FUNCTIONS[name]
            kind = reduce(_promote, (_kind(arg, declarations) for arg in args))
            if function.result == "bool":
                return Kind("bool", kind.strength)
            if function.result == "float" and _category(kind.dtype) < 2:
                return Kind("float32", kind.strength)
            return kind
    raise AssertionError(f"{type(expr).__name__} has no dtype")


def _reduced(kind: Kind, monoid: str, body: Expr) -> Kind:
    """The dtype of a reduction: int64 for sums and products of integers."""
    if monoid in ("or", "and"):
        return Kind("bool", kind.strength)
    if monoid not in ("sum", "prod") or _category(kind.dtype) > 1:
        return kind
    is_contraction = isinstance(body, Call) and body.function == "mul"
    return kind if kind.dtype == "bool" and is_contraction else Kind("int64", kind.strength)


def _promote(one: Kind, other: Kind) -> Kind:
    """The common dtype of two operands."""
    strong, weak = (one, other) if one.strength >= other.strength else (other, one)
    if strong.strength == weak.strength:
        common = torch.promote_types(_torch(strong.dtype), _torch(weak.dtype))
        return Kind(str(common).removeprefix("torch."), strong.strength)
    if _category(weak.dtype) <= _category(strong.dtype):
        return strong
    if weak.strength == NUMBER and weak.dtype == "float32":
        return Kind("float32", strong.strength)
    return Kind(weak.dtype, strong.strength)


def _category(dtype: str) -> int:
    """0 for truth values, 1 for integers, 2 for floating and 3 for complex numbers."""
    kind = _torch(dtype)
    return 3 if kind.is_complex else 2 if kind.is_floating_point else 0 if kind is torch.bool else 1


def _torch(dtype: str) -> torch.dtype:
    """The torch dtype of a name."""
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise DtypeError(f"{dtype} is not a dtype; use one of torch's names, as float32")
    return found
