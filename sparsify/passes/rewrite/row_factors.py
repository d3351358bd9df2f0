"""Factors and summands that are the same along a row: what follows from vectors alone is computed once.

In:  `(P[n,o,p] + d[o] - m[o]) / sqrt(v[o] + eps) * g[o] + h[o]`, vectors d, m, v, g and h.
Out: `s[o] * P[n,o,p] + b[o]`, and `s[o] = 1 / sqrt(v[o] + eps) * g[o]; b[o] = (d[o] - m[o]) / sqrt(v[o] + eps) * g[o]
     + h[o]`.

A normalisation by known statistics is such an expression, and so are scalings, biases and layer scales.

Source: Ioffe and Szegedy, Batch Normalization, 2015, algorithm 1 for known means and variances.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite

from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr
from sparsify.compiler.node import map_children
from sparsify.passes.rewrite.inline import LOGIC

ONE, MINUS_ONE = Const(1), Const(-1)


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum(factor * term) + shift`.

    Attributes:
        terms: each with its factor; these follow from vectors and numbers, terms do not.
        shift: None for 0.
    """

    terms: tuple[tuple[Expr, Expr], ...] = ()
    shift: Expr | None = None

    def plus(self, other: "Affine") -> "Affine":
        """The sum of two."""
        return Affine(self.terms + other.terms, added(self.shift, other.shift))

    def times(self, factor: Expr) -> "Affine":
        """A multiple."""
        terms = tuple((term, multiplied(own, factor)) for term, own in self.terms)
        return Affine(terms, None if self.shift is None else multiplied(self.shift, factor))

    def over(self, divisor: Expr) -> "Affine":
        """A quotient."""
        terms = tuple((term, divided(own, divisor)) for term, own in self.terms)
        return Affine(terms, None if self.shift is None else divided(self.shift, divisor))


@dataclass
class RowFactors:
    """The law, with the vectors that it has found.

    Attributes:
        rows: the tensors that are vectors, or one number.
        indices: of vectors.
        vectors: by the expression of a vector its name.
    """

    rows: frozenset[str]
    indices: tuple[Expr, ...]
    vectors: dict[Expr, str] = field(default_factory=dict)

    def __call__(self, expr: Expr) -> Expr:
        """`(x * f + c) * g + d -> s * x + b` with `s = f * g` and `b = c * g + d`, wherever it holds."""
        return self.written(self.affine(expr))

    def affine(self, expr: Expr) -> Affine:
        """An expression as terms with factors."""
        if self.is_row(expr):
            return Affine(shift=expr)
        match expr:
            case Call("add", (left, right)):
                return self.affine(left).plus(self.affine(right))
            case Call("sub", (left, right)):
                return self.affine(left).plus(self.affine(right).times(MINUS_ONE))
            case Call("neg", (value,)):
                return self.affine(value).times(MINUS_ONE)
            case Call("mul", (value, factor)) if self.is_row(factor):
                return self.affine(value).times(factor)
            case Call("mul", (factor, value)) if self.is_row(factor):
                return self.affine(value).times(factor)
            case Call("div", (value, divisor)) if self.is_row(divisor) and not is_zero(divisor):
                return self.affine(value).over(divisor)
        return Affine(((self.within(expr), ONE),))

    def within(self, expr: Expr) -> Expr:
        """An expression whose arguments the law was applied to; sums of products stay as they are."""
        if not isinstance(expr, Call | Cast):
            return expr
        found = map_children(expr, self)  # type: ignore[arg-type]
        assert isinstance(found, Expr)
        return found

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

    def written(self, found: Affine) -> Expr:
        """Terms with the names of their factors, those with the same factor together; the shift behind the first.

        What is computed comes before what is read, in whichever order they are added.
        """
        groups: dict[Expr, Expr | None] = {}
        value: Expr | None = None
        terms = sorted(found.terms, key=lambda one: isinstance(one[0], Access))
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
            if number == 0 and found.shift is not None:
                value = added(value, self.named(found.shift, "b"))
        return value or self.named(found.shift or Const(0), "b")

    def named(self, expr: Expr, letter: str) -> Expr:
        """A number as it is, a vector under its name."""
        if isinstance(expr, Const):
            return expr
        if expr not in self.vectors:
            known = sum(name.startswith(letter) for name in self.vectors.values())
            self.vectors[expr] = f"{letter}{known or ''}"
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
    """A function of two numbers; `None` where one is none, or there is no finite result."""
    if not (isinstance(left, Const) and isinstance(right, Const)):
        return None
    found = function(left.value, right.value)
    return Const(found) if isfinite(found) else None


def is_zero(expr: Expr) -> bool:
    """Whether an expression is the number 0."""
    return isinstance(expr, Const) and expr.value == 0
