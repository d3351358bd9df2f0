"""Dtypes: categories, promotion, and the dtype of computation.

In: `bfloat16` and `int32`. Out: the common dtype `bfloat16`, with values computed in `float32`.

The 16-bit floats are storage dtypes only: values are read as float32, computed and accumulated as float32, and rounded
when written.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch

from sparsify.errors import DtypeError

BOOL, INTEGER, FLOATING, COMPLEX = range(4)
# Strength of an operand's dtype in promotion: number, tensor without modes, tensor with modes.
NUMBER, SCALAR, TENSOR = range(3)

BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
STORED_HALVES: Final = ("bfloat16", "float16")
REAL: Final = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A dtype and its strength in promotion: `NUMBER`, `SCALAR` or `TENSOR`."""

    dtype: str
    strength: int = TENSOR


@cache
def category(dtype: str) -> int:
    """`BOOL`, `INTEGER`, `FLOATING` or `COMPLEX`."""
    kind = torch_dtype(dtype)
    if kind.is_complex:
        return COMPLEX
    return FLOATING if kind.is_floating_point else BOOL if kind is torch.bool else INTEGER


def computing(dtype: str) -> str:
    """The dtype in which values of `dtype` are computed and accumulated.

    >>> computing("bfloat16"), computing("int8")
    ('float32', 'int8')
    """
    return "float32" if dtype in STORED_HALVES else dtype


def real(dtype: str) -> str:
    """The dtype of the parts of complex numbers, `dtype` itself if not complex."""
    return REAL.get(dtype, dtype)


@cache
def promote(one: Kind, other: Kind) -> Kind:
    """The common dtype of two operands, by the rules of `torch.result_type`.

    A number yields to every tensor, a tensor without modes to one with modes, unless the weaker category is higher.
    """
    strong, weak = (one, other) if one.strength >= other.strength else (other, one)
    if strong.strength == weak.strength:
        common = torch.promote_types(torch_dtype(strong.dtype), torch_dtype(weak.dtype))
        return Kind(name_of(common), strong.strength)
    if category(weak.dtype) <= category(strong.dtype):
        return strong
    if category(weak.dtype) == COMPLEX and category(strong.dtype) == FLOATING:
        return Kind("complex128" if strong.dtype == "float64" else "complex64", strong.strength)
    return Kind(weak.dtype, strong.strength)


def held(value: float | int | bool, dtype: str) -> float | int | bool:
    """A number as a value of `dtype`: `1.0` becomes 1 as an integer and true as a truth value."""
    match category(dtype):
        case 0:
            return bool(value)
        case 1:
            return int(value)
    return value


@cache
def torch_dtype(dtype: str) -> torch.dtype:
    """The torch dtype of a name."""
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise DtypeError(f"{dtype} is not a dtype; use one of torch's names, as float32")
    return found


def name_of(dtype: torch.dtype) -> str:
    """`float32` of `torch.float32`."""
    return str(dtype).removeprefix("torch.")
