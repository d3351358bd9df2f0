"""Factors and summands constant along a row: expressions of vectors alone are computed once.

In:  `(P[n,o,p] + d[o] - m[o]) / sqrt(v[o] + eps) * g[o] + h[o]`, vectors d, m, v, g and h.
Out: `s[o] * P[n,o,p] + b[o]`, and `s[o] = 1 / sqrt(v[o] + eps) * g[o]; b[o] = (d[o] - m[o]) * (1 / sqrt(v[o] + eps) *
g[o]) + h[o]`.

Normalisations by known statistics are of this form, and so are scalings, biases and layer scales.

Source: Ioffe and Szegedy, Batch Normalization, 2015, algorithm 1 for known means and variances.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite

from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr
from sparsify.compiler.ir.node import map_children
from sparsify.passes.rewrite.inline import LOGIC

ONE, MINUS_ONE = Const(1), Const(-1)


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum(factor * term) + sum(factor * row)`.

    Attributes:
        terms: terms with factors; factors depend on vectors and numbers alone, terms do not.
        rows: vectors and numbers, with factors: kept separate so that rounding equals the terms'.
    """

    terms: tuple[tuple[Expr, Expr], ...] = ()
    rows: tuple[tuple[Expr, Expr], ...] = ()

    @property
    def shift(self) -> Expr | None:
        """The sum of all rows, None for 0."""
        groups: dict[Expr, Expr | None] = {}
        for row, factor in self.rows:
            groups[factor] = added(groups.get(factor), row)
        total: Expr | None = None
        for factor, sum_of_rows in groups.items():
            assert sum_of_rows is not None, "groups have rows"
            total = added(total, multiplied(sum_of_rows, factor))
        return total

    def plus(self, other: "Affine") -> "Affine":
        """The sum of two."""
        return Affine(self.terms + other.terms, self.rows + other.rows)

    def times(self, factor: Expr) -> "Affine":
        """The product with a factor."""
        parts = [
            tuple((one, multiplied(coefficient, factor)) for one, coefficient in part)
            for part in (self.terms, self.rows)
        ]
        return Affine(*parts)

    def negative(self) -> "Affine":
        """The negation."""
        rows = tuple((multiplied(MINUS_ONE, row), factor) for row, factor in self.rows)
        return replace(self.times(MINUS_ONE), rows=rows)


@dataclass
class RowFactors:
    """The rewrite rule, with the vectors found by it.

    Attributes:
        rows: tensors that are vectors, or one number.
        indices: indices of vectors.
        vectors: name of each vector, by expression.
    """

    rows: frozenset[str]
    indices: tuple[Expr, ...]
    vectors: dict[Expr, str] = field(default_factory=dict)

    def __call__(self, expr: Expr) -> Expr:
        """`(x * f + c) * g + d -> s * x + b` with `s = f * g` and `b = c * g + d`, wherever applicable."""
        return self.written(self.affine(expr))

    def affine(self, expr: Expr) -> Affine:
        """An expression as terms with factors."""
        if self.is_row(expr):
            return Affine(rows=((expr, ONE),))
        match expr:
            case Call("add", (left, right)):
                return self.affine(left).plus(self.affine(right))
            case Call("sub", (left, right)):
                return self.affine(left).plus(self.affine(right).negative())
            case Call("neg", (value,)):
                return self.affine(value).negative()
            case Call("mul", (value, factor)) if self.is_row(factor):
                return self.affine(value).times(factor)
            case Call("mul", (factor, value)) if self.is_row(factor):
                return self.affine(value).times(factor)
            case Call("div", (value, divisor)) if self.is_row(divisor) and not is_zero(divisor):
                return self.affine(value).times(divided(ONE, divisor))
        return Affine(((self.within(expr), ONE),))

    def within(self, expr: Expr) -> Expr:
        """An expression with the rule applied to its arguments; sums of products are unchanged."""
        if not isinstance(expr, Call | Cast):
            return expr
        result = map_children(expr, self)  # type: ignore[arg-type]
        assert isinstance(result, Expr)
        return result

    def is_row(self, expr: Expr) -> bool:
        """Whether an expression follows from vectors and numbers alone."""
        match expr:
            case Const():
                return True
            case Access(tensor, _):
                return tensor in self.rows
            case Call(function, args) if function not in LOGIC:
                return all(map(self.is_row, args))
        return False

    def written(self, affine: Affine) -> Expr:
        """Terms with named factors, grouped by factor; the shift follows the first term.

        Computed terms precede accesses, independent of the order of addition.
        """
        groups: dict[Expr, Expr | None] = {}
        value, shift = None, affine.shift
        terms = sorted(affine.terms, key=lambda one: isinstance(one[0], Access))
        for term, factor in terms:
            if factor in (ONE, MINUS_ONE):
                continue
            groups[factor] = added(groups.get(factor), term)
        for number, (term, factor) in enumerate(terms):
            if factor in groups:
                term = groups.pop(factor) or term
                value = added(value, Call("mul", (self.named(factor, "s"), term)))
            elif factor == ONE:
                value = added(value, term)
            elif factor == MINUS_ONE:
                value = Call("neg", (term,)) if value is None else Call("sub", (value, term))
            if number == 0 and shift is not None:
                value = added(value, self.named(shift, "b"))
        return value or self.named(shift or Const(0), "b")

    def named(self, expr: Expr, letter: str) -> Expr:
        """A number unchanged, a vector by its name."""
        if isinstance(expr, Const):
            return expr
        if expr not in self.vectors:
            count = sum(name.startswith(letter) for name in self.vectors.values())
            self.vectors[expr] = f"{letter}{count or ''}"
        return Access(self.vectors[expr], self.indices)


def added(left: Expr | None, right: Expr | None) -> Expr | None:
    """`left + right`, `left - x` for `left + (-x)`; None is 0."""
    if left is None or right is None:
        return left or right
    match right:
        case Call("neg", (value,)):
            return Call("sub", (left, value))
    return of_numbers(left, right, lambda a, b: a + b) or Call("add", (left, right))


def multiplied(left: Expr, right: Expr) -> Expr:
    """`left * right`, `-x` for `-1 * x`."""
    if ONE in (left, right):
        return right if left == ONE else left
    number = of_numbers(left, right, lambda a, b: a * b)
    if number is None and MINUS_ONE in (left, right):
        return Call("neg", (right if left == MINUS_ONE else left,))
    return number or Call("mul", (left, right))


def divided(left: Expr, right: Expr) -> Expr:
    """`left / right`."""
    return of_numbers(left, right, lambda a, b: a / b) or Call("div", (left, right))


def of_numbers(left: Expr, right: Expr, function: Callable[[float, float], float]) -> Const | None:
    """A function of two numbers; `None` for other expressions, or without a finite result."""
    if not (isinstance(left, Const) and isinstance(right, Const)):
        return None
    number = function(left.value, right.value)
    return Const(number) if isfinite(number) else None


def is_zero(expr: Expr) -> bool:
    """Whether an expression is the number 0."""
    return isinstance(expr, Const) and expr.value == 0
