"""The scalar functions of einsum programs.

In: a name, `tanh`. Out: arity, notation, numpy implementation and derivative as index notation over the arguments `x`,
`y`, `z` and the result `f`: `1 - square(f)`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sparsify.compiler.einsum.counter_random import uniform
from sparsify.compiler.einsum.packed_numbers import dot_bfloat16, dot_uint8_int8

Evaluate = Callable[..., Any]

COMPARISON: Final = 1
SUM: Final = 2
PRODUCT: Final = 3
NEGATION: Final = 4
POWER: Final = 5
ATOM: Final = 6

ROUNDINGS: Final = ("round", "floor", "ceil", "trunc")
NOT_OF_BOOL: Final = frozenset(
    {"sub", "neg", "abs", "relu", "mod", "pow", "conj", "real", "uniform", *ROUNDINGS}
)
# Complex numbers have no order, and these have no complex extension in torch.
NOT_OF_COMPLEX: Final = frozenset(
    {
        *("lt", "le", "gt", "ge", "min", "max", "relu", "sign", "heaviside", "mod"),
        *("atan2", "cbrt", "erf", "gelu", "gelu_tanh", "uniform", *ROUNDINGS),
    }
)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of scalars.

    Attributes:
        evaluate: implementation on numpy arrays.
        derivative: partial derivative for each argument as index notation over `x`, `y`, `z` and the result `f`; `None`
            if zero everywhere or for a discrete argument.
        symbol: infix or prefix operator, "" for the notation of a call.
        precedence: binding strength of the operator; a call binds tightest.
        result: "promote" for the common dtype of the arguments, "float" to convert integers to floats, "bool",
            "float32" or "int32" for functions of integers only.
        body: definition of a user-registered function as index notation over its arguments.
        operands: dtype of the arguments of a function of integers only, "" for other functions.
    """

    name: str
    arity: int
    evaluate: Evaluate
    derivative: tuple[str | None, ...]
    symbol: str = ""
    precedence: int = ATOM
    result: str = "promote"
    body: str = ""
    operands: str = ""

    @property
    def of_bool(self) -> bool:
        """Whether torch defines the function for truth values."""
        return self.name not in NOT_OF_BOOL

    @property
    def of_integers(self) -> bool:
        """Whether the function takes integers only, of one dtype, and returns another."""
        return bool(self.operands)

    @property
    def is_random(self) -> bool:
        """Whether the function draws random numbers."""
        return self.name == "uniform"

    @property
    def of_complex(self) -> bool:
        """Whether torch defines the function for complex numbers."""
        return self.name not in NOT_OF_COMPLEX

    def __post_init__(self) -> None:
        if len(self.derivative) != self.arity:
            raise ValueError(f"{self.name} of {self.arity} arguments needs as many derivatives")


def argument_names(arity: int) -> tuple[str, ...]:
    """The names of the arguments in the derivatives of a function, `("x", "y", "z")`."""
    return ("x", "y", "z")[:arity]


def _infix(
    name: str, symbol: str, precedence: int, evaluate: Evaluate, x: str | None, y: str | None
) -> Function:
    result = {"/": "float"}.get(symbol, "bool" if precedence == COMPARISON else "promote")
    return Function(name, 2, evaluate, (x, y), symbol, precedence, result)


def _unary(name: str, evaluate: Evaluate, derivative: str | None, result: str = "float") -> Function:
    return Function(name, 1, evaluate, (derivative,), result=result)


def _binary(name: str, evaluate: Evaluate, x: str | None, y: str | None, result: str = "promote") -> Function:
    return Function(name, 2, evaluate, (x, y), result=result)


def _power(x: Any, y: Any) -> Any:
    """`x ** y`; for integers with a negative exponent 0, unless x is 1 or -1."""
    if np.asarray(x).dtype.kind not in "iu" or np.asarray(y).dtype.kind not in "iu":
        return np.power(x, y)
    inverse = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2, -1, 1), 0))
    return np.where(y < 0, inverse, np.power(x, np.where(y < 0, 0, y)))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


GELU_SLOPE = "0.5 * (1 + erf(x * 0.7071067811865476)) + x * exp(-0.5 * square(x)) * 0.3989422804014327"
GELU_TANH_INNER = "tanh(0.7978845608028654 * (x + 0.044715 * x * square(x)))"
GELU_TANH_SLOPE = (
    f"0.5 * (1 + {GELU_TANH_INNER}) + 0.3989422804014327 * x * (1 - square({GELU_TANH_INNER}))"
    " * (1 + 0.134145 * square(x))"
)


def _sign(x: Any) -> Any:
    """-1, 0 or 1; 0 for NaN, as in torch."""
    return np.sign(np.where(np.isnan(x), 0, x)).astype(np.asarray(x).dtype)


def _rounded(function: Evaluate) -> Evaluate:
    """A rounding function of floating-point numbers, the identity on integers."""

    def evaluate(x: Any) -> Any:
        x = np.asarray(x)
        return x if x.dtype.kind in "iub" else function(x)

    return evaluate


_OPERATORS = (
    _infix("eq", "==", COMPARISON, np.equal, None, None),
    _infix("ne", "!=", COMPARISON, np.not_equal, None, None),
    _infix("lt", "<", COMPARISON, np.less, None, None),
    _infix("le", "<=", COMPARISON, np.less_equal, None, None),
    _infix("gt", ">", COMPARISON, np.greater, None, None),
    _infix("ge", ">=", COMPARISON, np.greater_equal, None, None),
    _infix("add", "+", SUM, np.add, "1", "1"),
    _infix("sub", "-", SUM, np.subtract, "1", "-1"),
    _infix("mul", "*", PRODUCT, np.multiply, "y", "x"),
    _infix("div", "/", PRODUCT, np.true_divide, "1 / y", "-(f / y)"),
    _infix("pow", "**", POWER, _power, "where(y == 0, 0, y * x ** (y - 1))", "where(x == 0, 0, f * log(x))"),
    Function("neg", 1, np.negative, ("-1",), "-", NEGATION),
)

_UNARY = (
    _unary("exp", np.exp, "f"),
    _unary("log", np.log, "1 / x"),
    _unary("log10", np.log10, "0.4342944819032518 / x"),
    _unary("sqrt", np.sqrt, "0.5 / f"),
    # Root of a sum of squares: a norm or distance of 0 has the gradient 0, as in torch.
    _unary("root", np.sqrt, "where(f == 0, 0, 0.5 / f)"),
    _unary("cbrt", np.cbrt, "1 / (3 * square(f))"),
    _unary("abs", np.abs, "sign(x)", "promote"),
    _unary("sign", _sign, None, "promote"),
    # The identity, with a zero derivative.
    _unary("detach", _rounded(np.positive), None, "promote"),
    # To the nearest integer, ties to even, as torch.round does.
    _unary("round", _rounded(np.rint), None, "promote"),
    _unary("floor", _rounded(np.floor), None, "promote"),
    _unary("ceil", _rounded(np.ceil), None, "promote"),
    _unary("trunc", _rounded(np.trunc), None, "promote"),
    _unary("square", np.square, "2 * x", "promote"),
    _unary("reciprocal", lambda x: np.true_divide(1, x), "-square(f)"),
    _unary("sin", np.sin, "cos(x)"),
    _unary("cos", np.cos, "-sin(x)"),
    _unary("tan", np.tan, "1 + square(f)"),
    _unary("asin", np.arcsin, "1 / sqrt(1 - square(x))"),
    _unary("acos", np.arccos, "-1 / sqrt(1 - square(x))"),
    _unary("atan", np.arctan, "1 / (1 + square(x))"),
    _unary("sinh", np.sinh, "cosh(x)"),
    _unary("cosh", np.cosh, "sinh(x)"),
    _unary("tanh", np.tanh, "1 - square(f)"),
    _unary("asinh", np.arcsinh, "1 / sqrt(square(x) + 1)"),
    _unary("acosh", np.arccosh, "1 / sqrt(square(x) - 1)"),
    _unary("atanh", np.arctanh, "1 / (1 - square(x))"),
    _unary("relu", lambda x: np.maximum(x, 0), "where(f > 0, 1, 0)", "promote"),
    _unary("sigmoid", _sigmoid, "f * (1 - f)"),
    _unary("gelu", lambda x: 0.5 * x * (1 + _erf(x * 0.7071067811865476)), GELU_SLOPE),
    _unary("gelu_tanh", _gelu_tanh, GELU_TANH_SLOPE),
    _unary("silu", lambda x: x * _sigmoid(x), "sigmoid(x) * (1 + x * (1 - sigmoid(x)))"),
    _unary("erf", _erf, "1.1283791670955126 * exp(-square(x))"),
    _unary("logical_not", np.logical_not, None, "bool"),
    # The gradients of these two, and of abs, are not products with a derivative: see `gradient/rules.py`.
    _unary("conj", np.conj, "1", "promote"),
    _unary("real", np.real, "1", "promote"),
)

_CALLS = (
    # Equal arguments take half of the gradient each, as in torch.maximum.
    _binary(
        "min", np.minimum, "where(x == y, 0.5, where(x < y, 1, 0))", "where(x == y, 0.5, where(y < x, 1, 0))"
    ),
    _binary(
        "max", np.maximum, "where(x == y, 0.5, where(x > y, 1, 0))", "where(x == y, 0.5, where(y > x, 1, 0))"
    ),
    _binary("atan2", np.arctan2, "y / (square(x) + square(y))", "-x / (square(x) + square(y))", "float"),
    _binary("mod", np.mod, "1", "(f - x) / y"),
    _binary("heaviside", np.heaviside, None, "where(x == 0, 1, 0)"),
    _binary("logical_and", np.logical_and, None, None, "bool"),
    _binary("logical_or", np.logical_or, None, None, "bool"),
    _binary("logical_xor", np.logical_xor, None, None, "bool"),
    # Counter-based random numbers, of a seed, a row and a column.
    Function("uniform", 3, uniform, (None, None, None), result="float32", operands="int64"),
    # Products of numbers packed in an int32, added up: of pairs of bfloat16, and of four bytes.
    Function("dot_bfloat16", 2, dot_bfloat16, (None, None), result="float32", operands="int32"),
    Function("dot_uint8_int8", 2, dot_uint8_int8, (None, None), result="int32", operands="int32"),
    Function("where", 3, np.where, (None, "where(x, 1, 0)", "where(x, 0, 1)")),
)

FUNCTIONS: dict[str, Function] = {f.name: f for f in _OPERATORS + _UNARY + _CALLS}


def function(name: str) -> Function:
    """The function called `name`."""
    return FUNCTIONS[name]
