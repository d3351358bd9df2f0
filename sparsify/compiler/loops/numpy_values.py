"""Values of loop IR in numpy, for the interpreter.

In: `converted(array, "float32", "bfloat16")`. Out: the bits of the rounded numbers, uint16.
"""

from functools import cache
from typing import Any

import numpy as np

from sparsify.compiler.ir.dtypes import FLOATING, category
from sparsify.compiler.loops.race_check import Array

# A numpy scalar, or an array with one element a lane.
Value = Any


def unsigned(bits: Any) -> int:
    """The bits of an int64 as a nonnegative number."""
    return int(bits) & (1 << 64) - 1


def poison(dtype: str) -> Any:
    """The value of undefined memory: NaN, or an integer that is never a valid index."""
    if dtype == "bool":
        return True
    return np.nan if category(dtype) >= FLOATING else np.iinfo(dtype).min


@cache
def array_dtype(dtype: str) -> np.dtype[Any]:
    """Numpy dtype of values of `dtype`; bfloat16 is stored as bits."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def full(count: int, value: Any, dtype: str) -> Array:
    """The same value many times."""
    return np.repeat(converted(np.asarray([value]), "", dtype), count)


def converted(values: Value, source: str, dtype: str) -> Value:
    """Values in another dtype; the real part of a complex number, bfloat16 as bits."""
    if source == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if dtype == "bfloat16":
        bits = values.astype(np.float32).view(np.uint32)
        rounded = np.where(np.isnan(values), 0x7FC0, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
        return rounded.astype(np.uint16)
    if values.dtype.kind == "c" and category(dtype) == FLOATING:
        values = values.real
    return values.astype(dtype)
