"""Index arithmetic with constant folding during construction.

In: `plus(INT 0, k)`, `times(k, INT 1)`. Out: `k`, `k`.
"""

from sparsify.compiler.ir.dtypes import STORED_HALVES
from sparsify.compiler.loops.nodes import BOOL, INT, Convert, Expr, Literal, Op, Type

ZERO = Literal(0, INT)
ONE = Literal(1, INT)


def integer(value: int) -> Literal:
    """The constant `value` as a coordinate or position."""
    return Literal(value, INT)


def constant(expr: Expr) -> int | None:
    """The value of an integer constant, `None` for everything else."""
    return int(expr.value) if isinstance(expr, Literal) and expr.type.lanes == 1 else None


def plus(x: Expr, y: Expr) -> Expr:
    """`x + y`; `(z + 1) + 2 -> z + 3`."""
    a, b = constant(x), constant(y)
    if a is not None and b is not None:
        return integer(a + b)
    if a is not None:
        x, y, a, b = y, x, b, a
    if b == 0:
        return x
    match x:
        case Op("add", (inner, Literal() as c)) if b is not None:
            return plus(inner, integer(int(c.value) + b))
        case Op("add", (inner, Literal() as c)) if b is None:
            return plus(plus(inner, y), c)
    return Op("add", (x, y), INT)


def minus(x: Expr, y: Expr) -> Expr:
    """`x - y`."""
    a, b = constant(x), constant(y)
    if a is not None and b is not None:
        return integer(a - b)
    if x == y:
        return ZERO
    match x:
        case Op("add", (inner, Literal() as c)) if b is None:
            return plus(minus(inner, y), c)
    if b is not None:
        return plus(x, integer(-b)) if b <= 0 else Op("sub", (x, y), INT)
    return Op("sub", (x, y), INT)


def times(x: Expr, y: Expr) -> Expr:
    """`x * y`; the constant goes last."""
    a, b = constant(x), constant(y)
    if a is not None and b is not None:
        return integer(a * b)
    if a is not None:
        x, y, b = y, x, a
    if b == 0:
        return ZERO
    if b == 1:
        return x
    return Op("mul", (x, y), INT)


def quotient(x: Expr, y: Expr) -> Expr:
    """`x / y` rounded down, both at least 0."""
    a, b = constant(x), constant(y)
    if b == 1:
        return x
    if a is not None and b:
        return integer(a // b)
    return Op("floordiv", (x, y), INT)


def remainder(x: Expr, y: Expr) -> Expr:
    """`x mod y`, both at least 0."""
    a, b = constant(x), constant(y)
    if b == 1:
        return ZERO
    if a is not None and b:
        return integer(a % b)
    return Op("mod", (x, y), INT)


def smaller(x: Expr, y: Expr) -> Expr:
    """`min(x, y)`."""
    a, b = constant(x), constant(y)
    if a is not None and b is not None:
        return integer(min(a, b))
    return x if x == y else Op("min", (x, y), INT)


def larger(x: Expr, y: Expr) -> Expr:
    """`max(x, y)`."""
    a, b = constant(x), constant(y)
    if a is not None and b is not None:
        return integer(max(a, b))
    return x if x == y else Op("max", (x, y), INT)


def product(factors: tuple[Expr, ...] | list[Expr]) -> Expr:
    """The product of all factors, 1 for none."""
    result: Expr = ONE
    for factor in factors:
        result = times(result, factor)
    return result


def compare(function: str, x: Expr, y: Expr) -> Expr:
    """`x < y` and the like as a scalar bool."""
    return Op(function, (x, y), BOOL)


def both(x: Expr, y: Expr) -> Expr:
    """`x and y`."""
    return Op("logical_and", (x, y), BOOL)


def lanes_of(expr: Expr) -> int:
    """The number of lanes of a value."""
    type_: Type = expr.type  # type: ignore[attr-defined]
    return type_.lanes


def convert(value: Expr, dtype: str) -> Expr:
    """`value` in another dtype; to and from the 16-bit floats by way of float32."""
    kind: Type = value.type  # type: ignore[attr-defined]
    if kind.dtype == dtype:
        return value
    if kind.dtype in STORED_HALVES and dtype != "float32":
        return convert(Convert(value, Type("float32", kind.lanes)), dtype)
    if dtype in STORED_HALVES and kind.dtype != "float32" and not isinstance(value, Literal):
        value = Convert(value, Type("float32", kind.lanes))
    if isinstance(value, Literal):
        return Literal(value.value, Type(dtype, kind.lanes))
    return Convert(value, Type(dtype, kind.lanes))
