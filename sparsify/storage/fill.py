"""The fill rules: what an unstored entry of a result is.

In: `result_fill("mul", (0.0, None))`. Out: `0.0`: zero times anything finite is zero, so the product of a sparse
and a dense operand is sparse.

An unstored entry is the fill. A result has a fill when the operator gives it for every finite value of the operands
that have none; otherwise the result is dense. Annihilators act without reading the other operand: a NaN or an
infinity that meets only unstored entries does not reach the result.

Source: Henry, Hsu, Yadav, Chou, Olukotun, Amarasinghe and Kjolstad, Compilation of Sparse Array Programming
Models, 2021; where they differ, ARCHITECTURE.md, decision 4.
"""

import math
from collections.abc import Callable, Sequence
from math import inf, isinf, nan

Fill = float | int | bool | complex
Evaluate = Callable[..., Fill]


def result_fill(function: str, fills: Sequence[Fill | None], evaluate: Evaluate | None = None) -> Fill | None:
    """The fill of `function(operands)`, `None` when the result is dense.

    Args:
        function: a name of index notation, `add`, `where`, `relu`.
        fills: per operand its fill, `None` for an operand without one (dense).
        evaluate: the function on scalars; `None`: the one of `SCALARS`.

    >>> result_fill("mul", (0.0, None)), result_fill("add", (0.0, None)), result_fill("exp", (0.0,))
    (0.0, None, 1.0)
    """
    decided = annihilated(function, fills)
    if decided is not None:
        return decided
    if any(fill is None for fill in fills):
        return None
    result = (evaluate or SCALARS[function])(*fills)
    return None if is_nan(result) else result


def annihilated(function: str, fills: Sequence[Fill | None]) -> Fill | None:
    """The result that some operands decide alone, whatever the finite values of the others; `None` if none does.

    >>> annihilated("where", (False, None, 2.0)), annihilated("sub", (None, float("inf")))
    (2.0, -inf)
    """
    match function, tuple(fills):
        case "where", (condition, yes, no) if condition is not None:
            return yes if condition else no
        case "where", (None, yes, no) if yes is not None and yes == no:
            return yes
        case "div", (a, _) if _is_zero(a):
            return a
        case "sub", (_, b) if _is_infinite(b) and b is not None and not isinstance(b, complex):
            return -b
        case "sub", (a, _) if _is_infinite(a):
            return a
        case "pow", (_, b) if _is_zero(b):
            return 1.0
    rule = ANNIHILATORS.get(function)
    if rule is None:
        return None
    return next((fill for fill in fills if fill is not None and rule(fill)), None)


def reduced_fill(monoid: str, fill: Fill | None) -> Fill | None:
    """The fill of a reduction over entries that may all be unstored, `None` when it depends on how many there are.

    >>> reduced_fill("sum", 0.0), reduced_fill("max", -1.0), reduced_fill("sum", 1.0)
    (0.0, -1.0, None)
    """
    match monoid:
        case "min" | "max" | "or" | "and":
            return fill
        case "sum":
            return fill if _is_zero(fill) or _is_infinite(fill) else None
        case "prod":
            return fill if fill is not None and fill in (0, 1) else None
    return None


def is_identity(monoid: str, fill: Fill | None) -> bool:
    """Whether unstored entries change nothing in a reduction.

    >>> is_identity("sum", 0), is_identity("max", 0)
    (True, False)
    """
    return fill is not None and fill == IDENTITIES.get(monoid, nan)


def is_nan(value: Fill) -> bool:
    """Whether a scalar is not a number."""
    return value != value


def same(first: Fill, second: Fill) -> bool:
    """Whether two fills are the same value; NaN is the same as NaN."""
    return first == second or (is_nan(first) and is_nan(second))


def _is_zero(fill: Fill | None) -> bool:
    return fill is not None and fill == 0


def _is_infinite(fill: Fill | None) -> bool:
    return fill is not None and not isinstance(fill, complex) and isinf(fill)


IDENTITIES: dict[str, Fill] = {"sum": 0, "prod": 1, "min": inf, "max": -inf, "or": False, "and": True}

ANNIHILATORS: dict[str, Callable[[Fill], bool]] = {
    "mul": _is_zero,
    "add": _is_infinite,
    "min": lambda fill: fill == -inf,
    "max": lambda fill: fill == inf,
    "logical_and": lambda fill: not fill,
    "logical_or": bool,
}


def _total(function: Callable[..., Fill], pole: Callable[..., Fill]) -> Evaluate:
    """A function of `math` with IEEE results where Python raises."""

    def evaluate(*args: Fill) -> Fill:
        try:
            return function(*args)
        except (ValueError, ZeroDivisionError, OverflowError):
            return pole(*args)

    return evaluate


def _to_nan(*_: Fill) -> Fill:
    return nan


def _to_infinity(*_: Fill) -> Fill:
    return inf


def _sign(x: Fill) -> Fill:
    return x if is_nan(x) else (x > 0) - (x < 0)  # type: ignore[operator]


def _quotient_pole(x: Fill, _: Fill) -> Fill:
    return nan if x == 0 or is_nan(x) else math.copysign(inf, x)  # type: ignore[arg-type]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else 1 - 1 / (1 + math.exp(x)) if x > -inf else 0.0


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x * 0.7071067811865476))


def _gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def _power(x: Fill, y: Fill) -> Fill:
    result: Fill = x**y
    return nan if isinstance(result, complex) and not isinstance(x, complex) else result


def _log(log: Callable[[float], float]) -> Evaluate:
    return _total(log, lambda x: -inf if x == 0 else nan)


SCALARS: dict[str, Evaluate] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": _total(lambda x, y: x / y, _quotient_pole),
    "pow": _total(_power, lambda x, y: math.copysign(inf, x) if y % 2 == 1 else inf),
    "neg": lambda x: -x,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "min": lambda x, y: nan if is_nan(x) or is_nan(y) else min(x, y),
    "max": lambda x, y: nan if is_nan(x) or is_nan(y) else max(x, y),
    "abs": abs,
    "sign": _sign,
    "square": lambda x: x * x,
    "reciprocal": _total(lambda x: 1 / x, lambda x: math.copysign(inf, x)),
    "relu": lambda x: x if is_nan(x) else max(x, 0),
    "exp": _total(math.exp, _to_infinity),
    "log": _log(math.log),
    "log10": _log(math.log10),
    "sqrt": _total(math.sqrt, _to_nan),
    "cbrt": math.cbrt,
    "sin": _total(math.sin, _to_nan),
    "cos": _total(math.cos, _to_nan),
    "tan": _total(math.tan, _to_nan),
    "asin": _total(math.asin, _to_nan),
    "acos": _total(math.acos, _to_nan),
    "atan": math.atan,
    "sinh": _total(math.sinh, lambda x: math.copysign(inf, x)),
    "cosh": _total(math.cosh, _to_infinity),
    "tanh": math.tanh,
    "asinh": math.asinh,
    "acosh": _total(math.acosh, _to_nan),
    "atanh": _total(math.atanh, lambda x: math.copysign(inf, x) if abs(x) == 1 else nan),
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * _sigmoid(x),
    "erf": math.erf,
    "atan2": math.atan2,
    "mod": _total(lambda x, y: x % y, _to_nan),
    "heaviside": lambda x, y: x if is_nan(x) else y if x == 0 else float(x > 0),
    "logical_and": lambda x, y: bool(x) and bool(y),
    "logical_or": lambda x, y: bool(x) or bool(y),
    "logical_xor": lambda x, y: bool(x) != bool(y),
    "logical_not": lambda x: not x,
    "where": lambda c, x, y: x if c else y,
}
