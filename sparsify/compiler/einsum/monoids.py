"""Monoids: the operations of reductions.

In: a name, `max`. Out: the combining function, the identity of a dtype, the annihilator and the notation of the
assignment, `max=`.
"""

from dataclasses import dataclass
from math import inf
from typing import Final

FLOATING = frozenset({"float64", "float32", "float16", "bfloat16", "complex64", "complex128"})
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8}


@dataclass(frozen=True, slots=True)
class Monoid:
    """An associative, commutative operation with an identity.

    Attributes:
        combine: function of `functions.py` that combines two values.
        neutral: identity over the reals with infinities; `identity` converts it to a dtype.
        annihilator: absorbing value, equal to any combination with it; `None` without one.
        assign: notation of a reducing assignment, `+=`.
    """

    name: str
    combine: str
    neutral: float | int | bool
    annihilator: float | int | bool | None
    assign: str

    def identity(self, dtype: str) -> float | int | bool:
        """The identity as a value of `dtype`; infinities become the bounds of an integer range.

        >>> monoid("max").identity("int8")
        -128
        """
        if dtype == "bool":
            return self.neutral > 0
        if dtype in INTEGER_BITS and self.neutral in (inf, -inf):
            low, high = integer_range(dtype)
            return high if self.neutral > 0 else low
        return float(self.neutral) if dtype in FLOATING else int(self.neutral)


def integer_range(dtype: str) -> tuple[int, int]:
    """The least and the greatest value of an integer dtype."""
    bits = INTEGER_BITS[dtype]
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


MONOIDS: dict[str, Monoid] = {
    m.name: m
    for m in (
        Monoid("sum", "add", 0, None, "+="),
        Monoid("prod", "mul", 1, 0, "*="),
        Monoid("min", "min", inf, -inf, "min="),
        Monoid("max", "max", -inf, inf, "max="),
        Monoid("or", "logical_or", False, True, "|="),
        Monoid("and", "logical_and", True, False, "&="),
    )
}


# Reductions to the first position of an extremum, with the monoid of the extremum: see `places.py`.
PLACES: Final = {"argmax": "max", "argmin": "min"}


def monoid(name: str) -> Monoid:
    """The monoid called `name`."""
    return MONOIDS[name]
