"""Products in expressions: their factors from left to right, and the product of factors.

In: `a * (b * c)`. Out: `[a, b, c]`.
"""

from collections.abc import Sequence
from functools import reduce

from sparsify.compiler.einsum.nodes import Access, Call, Const, Expr


def factors(expr: Expr) -> list[Expr]:
    """The factors of a product, with multiplicity; any other expression is its only factor."""
    match expr:
        case Call("mul", (left, right)):
            return [*factors(left), *factors(right)]
    return [expr]


def product(factors: Sequence[Expr]) -> Expr:
    """`[a, b, c] -> (a * b) * c`."""
    return reduce(lambda left, right: Call("mul", (left, right)), factors)


def multiplied(expr: Expr) -> list[Expr] | None:
    """The factors of a product of accesses and numbers, or the accesses of a dot product of packed numbers."""
    match expr:
        case Call("dot_bfloat16" | "dot_uint8_int8", (Access() as left, Access() as right)):
            return [left, right]
    return product_factors(expr)


def product_factors(expr: Expr) -> list[Expr] | None:
    """The factors of a product of accesses and numbers; `None` for other products."""
    found = factors(expr)
    return found if all(isinstance(factor, Access | Const) for factor in found) else None
