"""Affine forms of the indices of accesses.

In: `2*h + r - 1`. Out: `Affine((("h", 2), ("r", 1)), -1)`. `(p - r + 1) / 2` is a form with the divisor 2: a nonzero
remainder of the division puts the index out of bounds. `j - i + extent(i)` has `extent(i)` among its constants.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from sparsify.compiler.einsum.nodes import Call, Const, Expr, Extent, Index

Terms = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Affine:
    """`(sum of factor * index, plus offset) / divisor`; the factors are not zero, the divisor is positive.

    Attributes:
        terms: index variables with their factors.
        offset: constant term.
        divisor: common divisor of all terms.
        extents: names of extents with their factors, which are numbers once shapes are known.
    """

    terms: Terms
    offset: int = 0
    divisor: int = 1
    extents: Terms = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The index variables."""
        return tuple(name for name, _ in self.terms)

    @property
    def is_number(self) -> bool:
        """Whether the form is a compile-time constant."""
        return not self.terms and not self.extents

    def scaled(self, factor: int) -> "Affine":
        """The form times a number."""
        if factor == 0:
            return Affine(())
        terms, extents = (
            tuple((name, factor * n) for name, n in part) for part in (self.terms, self.extents)
        )
        return _reduced(terms, factor * self.offset, self.divisor, extents)

    def plus(self, other: "Affine") -> "Affine":
        """The sum of two forms."""
        common = self.divisor * other.divisor
        offset = self.offset * other.divisor + other.offset * self.divisor
        terms = _summed(self.terms, other.divisor, other.terms, self.divisor)
        extents = _summed(self.extents, other.divisor, other.extents, self.divisor)
        return _reduced(terms, offset, common, extents)

    def over(self, number: int) -> "Affine":
        """The form divided by a nonzero number."""
        sign = -1 if number < 0 else 1
        form = self.scaled(sign)
        return _reduced(form.terms, form.offset, form.divisor * sign * number, form.extents)

    def solved(self, name: str, value: str) -> "Affine":
        """The value of `name` at which the form equals `value`.

        >>> str(Affine((("h", 2), ("r", 1)), -1).solved("h", "p"))
        '(p - r + 1) / 2'
        """
        rest = Affine(tuple((n, f) for n, f in self.terms if n != name), self.offset, 1, self.extents)
        wanted = Affine(((value, self.divisor),)).plus(rest.scaled(-1))
        return wanted.over(dict(self.terms)[name])

    def substituted(self, name: str, form: "Affine") -> "Affine":
        """The form with another one substituted for `name`."""
        others = tuple((n, f) for n, f in self.terms if n != name)
        rest = Affine(others, self.offset, self.divisor, self.extents)
        factor = dict(self.terms).get(name, 0)
        return rest.plus(form.scaled(factor).over(self.divisor)) if factor else self

    def expression(self) -> Expr:
        """The form as an index, `2 * h + r - 1`."""
        total: Expr | None = None
        parts: list[tuple[Expr, int]] = [(Index(name), factor) for name, factor in self.terms]
        parts += [(Extent(name), factor) for name, factor in self.extents]
        for value, factor in sorted(parts, key=lambda part: part[1] < 0):
            size = abs(factor)
            part: Expr = value if size == 1 else Call("mul", (Const(size), value))
            if total is None:
                total = part if factor > 0 else Call("neg", (part,))
            else:
                total = Call("add" if factor > 0 else "sub", (total, part))
        if total is None:
            total = Const(self.offset)
        elif self.offset:
            total = Call("add" if self.offset > 0 else "sub", (total, Const(abs(self.offset))))
        return total if self.divisor == 1 else Call("div", (total, Const(self.divisor)))

    def __str__(self) -> str:
        return str(self.expression())

    def magnitude(self, extents: Mapping[str, int]) -> int:
        """Upper bound on all intermediate sums; unknown extents, such as symbols of a graph, count as 2."""
        known = {name: extent for name, extent in extents.items() if type(extent) is int}
        spans = [abs(n) * max(known.get(name, 2) - 1, 1) for name, n in self.terms]
        constants = [abs(n) * known.get(name, 2) for name, n in self.extents]
        return abs(self.offset) + self.divisor + sum(spans) + sum(constants)

    def bounds(self, extents: dict[str, int]) -> tuple[int, int]:
        """The least and greatest value over the ranges of the index variables, before the division."""
        spans = [n * (extents[name] - 1) for name, n in self.terms]
        offset = self.offset + sum(n * extents[name] for name, n in self.extents)
        return offset + sum(min(s, 0) for s in spans), offset + sum(max(s, 0) for s in spans)


def _summed(left: Terms, left_factor: int, right: Terms, right_factor: int) -> Terms:
    """The terms of a sum of two multiples."""
    factors = {name: n * left_factor for name, n in left}
    for name, n in right:
        factors[name] = factors.get(name, 0) + n * right_factor
    return tuple((name, n) for name, n in factors.items() if n)


def _reduced(terms: Terms, offset: int, divisor: int, extents: Terms) -> Affine:
    """A form in lowest terms."""
    common = gcd(divisor, offset, *(n for _, n in (*terms, *extents)))
    kept, constants = (tuple((name, n // common) for name, n in part) for part in (terms, extents))
    return Affine(kept, offset // common, divisor // common, constants)


def affine(expr: Expr) -> Affine | None:
    """The affine form of an index expression, `None` for other expressions."""
    match expr:
        case Const(value) if type(value) is int:
            return Affine((), value)
        case Index(name):
            return Affine(((name, 1),))
        case Extent(name):
            return Affine((), extents=((name, 1),))
        case Call("neg", (only,)):
            form = affine(only)
            return None if form is None else form.scaled(-1)
        case Call("add" | "sub" as function, (left, right)):
            first, second = affine(left), affine(right)
            if first is None or second is None:
                return None
            return first.plus(second.scaled(-1 if function == "sub" else 1))
        case Call("mul", (left, right)):
            first, second = affine(left), affine(right)
            if first is None or second is None or not (first.is_number or second.is_number):
                return None
            number, form = (first, second) if first.is_number else (second, first)
            return form.scaled(number.offset).over(number.divisor)
        case Call("div", (left, Const(number))) if type(number) is int and number != 0:
            form = affine(left)
            return None if form is None else form.over(number)
    return None
