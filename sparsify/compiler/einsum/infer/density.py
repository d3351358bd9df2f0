"""Expected densities: the share of coordinates at which an expression is stored, entries taken to lie anywhere.

In: `sum(j, A[i,j] * B[j,k])`, densities `{"A": 0.1, "B": 0.1}`, extents `{"j": 100}`. Out: `1 - (1 - 0.01)^100 = 0.63`.

| expression | density |
|---|---|
| number, dense tensor | 1 |
| sparse tensor, `stored(A[i,j])` | what is given for it or the tensor whose pattern it shares, else 0 |
| `a * b`, and other calls that one argument annihilates | the product of those of the arguments that do |
| `a + b`, and calls that no argument annihilates | the sum of those of the sparse arguments, at most 1 |
| `where(c, a, b)` | that of c, and of what is chosen where c is not stored; of a dense c the sum of those of a and b |
| `sum(j, a)`, any reduction | `1 - (1 - d)^n`, n coordinates of the reduced variables that a's sparse tensors have |

A pattern that is read twice at the same indices counts once. A factor without the reduced variables stays outside of
the power: `sum(k, A[i,j] * Q[i,k] * K[j,k])` is as dense as A.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, inf, log1p, prod

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.sparsity import deciding, infer_sparsity
from sparsify.compiler.einsum.nodes import Access, Call, Cast, Declaration, Expr, Index, Reduce, Stored
from sparsify.compiler.ir.node import find


def expected_density(
    expr: Expr,
    declarations: Mapping[str, Declaration],
    densities: Mapping[str, float],
    extents: Mapping[str, int],
) -> float:
    """The share of coordinates at which `expr` is expected to be stored, from 0 to 1.

    Args:
        expr: an expression over declared tensors.
        declarations: of the tensors, by name.
        densities: of sparse tensors, by name; one that is missing counts as empty, so nothing is expected of it.
        extents: of index variables, or of modes by the names that declarations give them; one that is missing counts
            as 1.

    >>> from sparsify.compiler.einsum.parse import parse
    >>> from sparsify.storage.format import Format
    >>> A = Declaration("A", ("i", "j"), Format("csr"), "float32")
    >>> value = parse("C[i,k] = sum(j, A[i,j] * A[j,k])")[0].value
    >>> round(expected_density(value, {"A": A}, {"A": 0.1}, {"j": 100}), 2)
    0.63
    """
    return prod(share.density for share in _Densities(declarations, densities, extents).shares(expr))


@dataclass(frozen=True, slots=True)
class _Share:
    """A condition that an entry has to meet, independent of others.

    Attributes:
        density: how often it is met.
        names: the index variables that it depends on.
        key: equal for the same condition.
    """

    density: float
    names: frozenset[str]
    key: Hashable


@dataclass(frozen=True, slots=True)
class _Densities:
    """Facts that densities depend on."""

    declarations: Mapping[str, Declaration]
    densities: Mapping[str, float]
    extents: Mapping[str, int]

    def shares(self, expr: Expr) -> tuple[_Share, ...]:
        """The conditions that all are met where `expr` is stored; none for a dense one or a number."""
        sparsity = infer_sparsity(expr, self.declarations)
        if sparsity.fill is None or sparsity.is_number:
            return ()
        match expr:
            case Access() | Stored():
                return (self._of_tensor(expr if isinstance(expr, Access) else expr.access),)
            case Cast(_, value):
                return self.shares(value)
            case Reduce(_, indices, body):
                return self._reduced(expr, indices, self.shares(body))
            case Call(function, args):
                places, is_union = deciding(
                    function, [infer_sparsity(arg, self.declarations) for arg in args]
                )
                parts = [self.shares(args[place]) for place in places]
                return (
                    _union(expr, parts)
                    if is_union
                    else _distinct(part for shares in parts for part in shares)
                )
        return ()

    def _of_tensor(self, access: Access) -> _Share:
        """An entry of a tensor, or of the one whose pattern it shares."""
        pattern = infer_sparsity(access, self.declarations).pattern
        root, indices = (access.tensor, access.indices) if pattern is None else pattern
        density = self.densities.get(access.tensor, self.densities.get(root, 0.0))
        names = {name for index in indices for name in free_indices(index)}
        return _Share(min(1.0, max(0.0, density)), frozenset(names), (root, indices))

    def _reduced(
        self, expr: Reduce, indices: Sequence[str], shares: tuple[_Share, ...]
    ) -> tuple[_Share, ...]:
        """Some of the entries that are reduced is stored: `1 - (1 - d)^n`."""
        inside = [share for share in shares if share.names & set(indices)]
        if not inside:
            return shares
        names = frozenset[str]().union(*(share.names for share in inside))
        count = prod(self._extent(name, expr) for name in indices if name in names)
        density = prod(share.density for share in inside)
        some = -expm1(count * (log1p(-density) if density < 1 else -inf)) if count and density else 0.0
        outside = [share for share in shares if share not in inside]
        return (*outside, _Share(some, names - set(indices), expr))

    def _extent(self, name: str, expr: Expr) -> int:
        """The extent of an index variable of `expr`."""
        if name in self.extents:
            return self.extents[name]
        for access in find(expr, Access):
            for index, extent in zip(access.indices, self.declarations[access.tensor].extents, strict=True):
                if index == Index(name) and extent in self.extents:
                    return self.extents[extent]
        return 1


def _union(expr: Expr, parts: Sequence[tuple[_Share, ...]]) -> tuple[_Share, ...]:
    """One of several parts is stored: the sum of their densities, at most 1; parts of the same entries count once."""
    found = {frozenset(share.key for share in part): part for part in parts}
    if len(found) == 1:
        return parts[0]
    total = sum(prod(share.density for share in part) for part in found.values())
    names = frozenset[str]().union(*(share.names for part in parts for share in part))
    return (_Share(min(1.0, total), names, expr),)


def _distinct(shares: Iterable[_Share]) -> tuple[_Share, ...]:
    """Each condition once."""
    return tuple({share.key: share for share in shares}.values())
