"""Affine forms of the indices of accesses.

In: `2*h + r - 1`. Out: `Affine((("h", 2), ("r", 1)), -1)`.
"""

from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Call, Const, Expr, Index


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum of factor * index, plus offset`; the factors are not zero."""

    terms: tuple[tuple[str, int], ...]
    offset: int = 0

    def scaled(self, factor: int) -> "Affine":
        """This form times a number."""
        if factor == 0:
            return Affine(())
        return Affine(tuple((name, factor * n) for name, n in self.terms), factor * self.offset)

    def plus(self, other: "Affine") -> "Affine":
        """The sum of two forms."""
        factors = dict(self.terms)
        for name, n in other.terms:
            factors[name] = factors.get(name, 0) + n
        return Affine(tuple((name, n) for name, n in factors.items() if n), self.offset + other.offset)

    def bounds(self, extents: dict[str, int]) -> tuple[int, int]:
        """The least and greatest value over the ranges of the index variables."""
        spans = [n * (extents[name] - 1) for name, n in self.terms]
        return self.offset + sum(min(s, 0) for s in spans), self.offset + sum(max(s, 0) for s in spans)


def affine(expr: Expr) -> Affine | None:
    """The affine form of an index expression, `None` when it has none."""
    match expr:
        case Const(value) if type(value) is int:
            return Affine((), value)
        case Index(name):
            return Affine(((name, 1),))
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
            if first is None or second is None or (first.terms and second.terms):
                return None
            return second.scaled(first.offset) if not first.terms else first.scaled(second.offset)
    return None
