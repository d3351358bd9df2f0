"""Fill rules: the unstored entries of a result.

In: `decided("mul", 0, 0.0)`. Out: `(True, 0.0)`: zero times anything finite is zero, so the product of a sparse and a
dense operand is sparse.

An unstored entry is the fill. A result has a fill if the operator yields the same value for every finite value of the
operands without a fill; otherwise the result is dense. Annihilators act without reading the other operand: a NaN or an
infinity that meets only unstored entries does not reach the result. Contradicting fills decide
nothing: inf and -inf, both unstored, add up to NaN. Interpreters, inference, lattices and the handlers of torch's
dispatcher use the same rules; for numbers and arrays of numbers alike.

Source: Henry, Hsu, Yadav, Chou, Olukotun, Amarasinghe and Kjolstad, Compilation of Sparse Array Programming
Models, 2021; the documentation of formats lists the differences.
"""

from math import inf
from typing import Any

Fill = float | int | bool | complex


def decided(function: str, position: int, fill: Any) -> tuple[Any, Any]:
    """Whether one operand's fill decides a call for all finite values of the other operands, and the result.

    Args:
        function: a name of index notation, `mul`.
        position: position of the operand among the arguments.
        fill: a number, or an array of fills, for array results.

    `where` is excluded: its condition selects the operand to read.

    >>> decided("sub", 1, float("inf")), decided("add", 0, 0.0)[0]
    ((True, -inf), False)
    """
    match function, position:
        case ("mul" | "dot_bfloat16" | "dot_uint8_int8", _) | ("div", 0):
            return fill == 0, fill
        case ("add", _) | ("sub", 0):
            return _is_infinite(fill), fill
        case "sub", 1:
            return _is_infinite(fill), 0.0 - fill
        case "pow", 1:
            return fill == 0, (fill == 0) * 1.0
        case "min", _:
            return fill == -inf, fill
        case "max", _:
            return fill == inf, fill
        case "logical_and", _:
            return fill == 0, fill
        case "logical_or", _:
            return fill != 0, fill != 0
    return False, fill


def _is_infinite(fill: Any) -> Any:
    return (fill == inf) | (fill == -inf)


def is_kept(monoid: str, fill: Fill) -> bool:
    """Whether a reduction over any number of unstored entries alone gives the fill.

    >>> is_kept("sum", 0.0), is_kept("max", -1.0), is_kept("sum", 1.0)
    (True, True, False)
    """
    match monoid:
        case "min" | "max" | "or" | "and":
            return True
        case "sum":
            return fill == 0 or bool(_is_infinite(fill))
        case "prod":
            return fill in (0, 1)
    return False


def same(first: Fill, second: Fill) -> bool:
    """Whether two fills are equal; NaN equals NaN."""
    return first == second or (first != first and second != second)
