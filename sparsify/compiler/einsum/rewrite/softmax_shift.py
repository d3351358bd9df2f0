"""Cancelling shifts of exponents: the maximum subtracted by a softmax has no gradient.

In: `P[i,j] = exp(S[i,j] - m[i]); d[i] += P[i,j]; Y[i,l] = sum(j, P[i,j] * V[j,l]) / d[i]`.
Out: `m`: every entry of Y is the same for every m.

Each value is tracked as `v * exp(-m[i])^n` with a v independent of m: `P`, `d` and the sum have n = 1, the quotient
n = 0. Results with n = 0 do not depend on m at all, so that their derivative by m is zero, ties of a maximum or not. A
sum may be rescaled to another shift, `d[i] * exp(m[i] - n[i])`: if no output depends on the later shift, the later
shift counts as a constant for the earlier one.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr, Extent, Index, Stored
from sparsify.compiler.einsum.rename import replace
from sparsify.compiler.einsum.rewrite.one_reduction import Flat
from sparsify.compiler.ir.node import find

# The exponent of `exp(-m[row])` in a value, by row: `{(i,): 1}` for `P[i,j]`.
Powers = dict[tuple[Expr, ...], int]
KEEPING = ("sum", "max", "min", None)


class _Depends(Exception):
    """Raised for a value that is no power of `exp(-m)` times a value independent of m."""


def shifts(flats: Sequence[Flat], outputs: Collection[str]) -> frozenset[str]:
    """The tensors whose value cancels in all outputs: `exp(x - m) / sum(exp(x - m))`.

    Args:
        flats: statements.
        outputs: results with gradients.
    """
    found: dict[str, set[Expr]] = {}
    for flat in flats:
        for call in find(flat.body, Call):
            for access in _shifted(call):
                found.setdefault(access.tensor, set()).add(_shape(call, access))
    cancelled: set[str] = set()
    for name in reversed(found):
        if len(found[name]) == 1 and name not in outputs:
            following = _Following(name, _is_itself(*found[name]), cancelled)
            if following.cancels(flats, outputs):
                cancelled.add(name)
    return frozenset(cancelled)


def _shifted(call: Call) -> list[Access]:
    """`exp(x - c(m[i])) -> m[i]` for a c of m only."""
    match call:
        case Call("exp", (Call("sub", (_, shift)),)):
            accesses = set(find(shift, Access))
            names = {name for access in accesses for name in free_indices(access)}
            if len(accesses) == 1 and set(free_indices(shift)) == names:
                return list(accesses)
    return []


def _shape(call: Call, access: Access) -> Expr:
    """`c(m)` of `exp(x - c(m[i]))`, independent of index variables."""
    (difference,) = call.args
    assert isinstance(difference, Call), "a shift is subtracted"
    return replace(difference.args[1], access, Access(access.tensor, ()))


def _is_itself(shape: Expr) -> bool:
    """Whether `c(m)` is m, or `where(m == -inf, 0, m)`."""
    match shape:
        case Access():
            return True
        case Call("where", (Call("eq", (m, low)), Const(0), other)):
            return low == Const(-inf) and m == other and isinstance(m, Access)
    return False


class _Following:
    """Exponents of `exp(-m)` in the tensors of a program, for each tensor by the modes of the row.

    Args:
        name: name of m.
        is_itself: whether m itself is subtracted, and not a function of m.
        cancelled: shifts without influence on outputs, whatever their dependence on m.
    """

    def __init__(self, name: str, is_itself: bool, cancelled: Collection[str]) -> None:
        self.name, self.is_itself, self.cancelled = name, is_itself, cancelled
        self.powers: dict[str, Mapping[tuple[int, ...], int]] = {}
        self.exponentials: set[str] = set()
        self.totals: set[Access] = set()

    def cancels(self, flats: Sequence[Flat], outputs: Collection[str]) -> bool:
        """Whether all outputs are free of powers of `exp(-m)`."""
        try:
            for flat in flats:
                if flat.target.tensor not in self.cancelled:
                    self.enter(flat)
        except _Depends:
            return False
        return not any(self.powers.get(output) for output in outputs)

    def enter(self, flat: Flat) -> None:
        """Tracks a statement."""
        target, places = flat.target, list(flat.target.indices)
        if target.tensor == self.name:
            if self._is_touched(flat.body):
                raise _Depends
            return
        powers = self._powers(flat.body)
        if powers and flat.monoid not in KEEPING:
            raise _Depends
        if any(index not in places for row in powers for index in row):
            raise _Depends
        kept = {tuple(places.index(index) for index in row): power for row, power in powers.items()}
        if self.powers.setdefault(target.tensor, kept) != kept:
            raise _Depends
        match flat.body:
            case Call("exp") if kept:
                self.exponentials.add(target.tensor)
            case Access(tensor) if tensor in self.exponentials and flat.monoid == "sum":
                # Exponentials are nonnegative: a sum of 0 has only terms of 0.
                if set(powers) == {target.indices} and not flat.accumulates:
                    self.totals.add(target)

    def _is_touched(self, expr: Expr) -> bool:
        """Whether an expression depends on m."""
        return any(n.tensor == self.name or self.powers.get(n.tensor) for n in find(expr, Access))

    def _powers(self, expr: Expr) -> Powers:
        match expr:
            case Const() | Index() | Extent() | Stored():
                return {}
            case Cast(_, value) | Call("neg", (value,)):
                return self._powers(value)
            case Access(tensor, indices):
                if tensor == self.name:
                    raise _Depends
                modes = self.powers.get(tensor, {})
                return {tuple(indices[mode] for mode in row): power for row, power in modes.items()}
            case Call("exp", (Call("sub", (Access(tensor, row), other)),)) if (
                tensor == self.name and self.is_itself
            ):
                # For m = -inf all factors of this exponential are 0.
                if self._reads(other) or self._powers(other):
                    raise _Depends
                return {row: -1}
            case Call("exp", (Call("sub", (scores, _)),)) if _shifted(expr) and self._reads(expr):
                if self._powers(scores):
                    raise _Depends
                return {_shifted(expr)[0].indices: 1}
            case Call("mul", (left, right)):
                return _product(self._powers(left), self._powers(right), 1)
            case Call("div", (left, right)):
                return _product(self._powers(left), self._powers(right), -1)
            case Call("where", (Call("eq", (Access() as total, Const(0))), Const(), other)) if total == other:
                return self._of_total(total)
            case Call("where", (condition, yes, no)):
                if self._powers(condition):
                    raise _Depends
                return self._alike((yes, no))
            case Call("add" | "sub" | "min" | "max", args):
                return self._alike(args)
            case Call(_, args):
                if any(self._powers(arg) for arg in args):
                    raise _Depends
                return {}
        raise _Depends

    def _reads(self, expr: Expr) -> bool:
        return any(access.tensor == self.name for access in find(expr, Access))

    def _of_total(self, total: Access) -> Powers:
        """`where(d == 0, 1, d)`: the power of d for a nonzero d; for d = 0 all its dividends are 0."""
        powers = self._powers(total)
        if powers and not any(total.tensor == known.tensor for known in self.totals):
            raise _Depends
        return powers

    def _alike(self, args: Sequence[Expr]) -> Powers:
        """The common powers of all terms, except zeros, which have any power."""
        found = [self._powers(arg) for arg in args if arg != Const(0)]
        if any(powers != found[0] for powers in found):
            raise _Depends
        return found[0] if found else {}


def _product(left: Powers, right: Powers, sign: int) -> Powers:
    """The powers of a product, or of a quotient with the sign -1."""
    total = {row: left.get(row, 0) + sign * right.get(row, 0) for row in (*left, *right)}
    return {row: power for row, power in total.items() if power}
