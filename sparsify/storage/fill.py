"""The fill rules: what an unstored entry of a result is.

In: `decided("mul", 0, 0.0)`. Out: `(True, 0.0)`: zero times anything finite is zero, so the product of a sparse and a
dense operand is sparse.

An unstored entry is the fill. A result has a fill when the operator gives it for every finite value of the operands
that have none; otherwise the result is dense. Annihilators act without reading the other operand: a NaN or an
infinity that meets only unstored entries does not reach the result. Fills that would decide it differently decide
nothing: inf and -inf, both unstored, add up to NaN. Interpreters, inference, lattices and what torch's
dispatcher asks for use these rules; numbers and arrays of numbers alike.

Source: Henry, Hsu, Yadav, Chou, Olukotun, Amarasinghe and Kjolstad, Compilation of Sparse Array Programming
Models, 2021; where they differ, the documentation of formats.
"""

from math import inf
from typing import Any

Fill = float | int | bool | complex


def decided(function: str, place: int, fill: Any) -> tuple[Any, Any]:
    """Whether an operand's fill decides a call alone, whatever the finite values of the others, and the result.

    Args:
        function: a name of index notation, `mul`.
        place: of the operand among the arguments.
        fill: a number, or an array of them, for which the results are arrays.

    `where` is not among them: its condition decides which of the others is read.

    >>> decided("sub", 1, float("inf")), decided("add", 0, 0.0)[0]
    ((True, -inf), False)
    """
    match function, place:
        case ("mul", _) | ("div", 0):
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
    """Whether a reduction over unstored entries alone gives the fill, however many there are.

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
    """Whether two fills are the same value; NaN is the same as NaN."""
    return first == second or (first != first and second != second)
