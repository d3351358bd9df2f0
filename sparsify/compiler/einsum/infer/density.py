"""Expected densities: the fraction of coordinates at which an expression is stored, for independent uniform entries.

In: `sum(j, A[i,j] * B[j,k])`, densities `{"A": 0.1, "B": 0.1}`, extents `{"j": 100}`. Out: `1 - (1 - 0.01)^100 = 0.63`.

| expression | density |
|---|---|
| number, dense tensor | 1 |
| sparse tensor, `stored(A[i,j])` | the given density of the tensor or of the owner of its pattern, else 0 |
| `a * b`, and other calls with annihilating arguments | the product over the annihilating arguments |
| `a + b`, and calls without annihilating arguments | the sum over the sparse arguments, at most 1 |
| `where(c, a, b)` | the sum of c and the branch of an unstored c; for a dense c the sum of a and b |
| `sum(j, a)`, any reduction | `1 - (1 - d)^n`, n coordinates of the reduced variables of a's sparse tensors |

A pattern read twice at the same indices counts once. A factor without reduced variables stays outside of the power:
`sum(k, A[i,j] * Q[i,k] * K[j,k])` is as dense as A.
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
    """The expected fraction of coordinates at which `expr` is stored, from 0 to 1.

    Args:
        expr: expression over declared tensors.
        declarations: declarations of the tensors, by name.
        densities: densities of sparse tensors, by name; a missing one counts as 0.
        extents: extents of index variables, or of modes by the names of declarations; a missing one counts as 1.

    >>> from sparsify.compiler.einsum.text.parse import parse
    >>> from sparsify.storage.format import Format
    >>> A = Declaration("A", ("i", "j"), Format("csr"), "float32")
    >>> value = parse("C[i,k] = sum(j, A[i,j] * A[j,k])")[0].value
    >>> round(expected_density(value, {"A": A}, {"A": 0.1}, {"j": 100}), 2)
    0.63
    """
    return prod(share.density for share in _Densities(declarations, densities, extents).shares(expr))


@dataclass(frozen=True, slots=True)
class _Share:
    """An independent condition on an entry.

    Attributes:
        density: probability of the condition.
        names: index variables of the condition.
        key: equal for equal conditions.
    """

    density: float
    names: frozenset[str]
    key: Hashable


@dataclass(frozen=True, slots=True)
class _Densities:
    """Inputs of the density estimate."""

    declarations: Mapping[str, Declaration]
    densities: Mapping[str, float]
    extents: Mapping[str, int]

    def shares(self, expr: Expr) -> tuple[_Share, ...]:
        """The conditions that hold together at stored entries of `expr`; none for a dense expression or a number."""
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
        """The condition that an entry of a tensor, or of the owner of its pattern, is stored."""
        pattern = infer_sparsity(access, self.declarations).pattern
        root, indices = (access.tensor, access.indices) if pattern is None else pattern
        density = self.densities.get(access.tensor, self.densities.get(root, 0.0))
        names = {name for index in indices for name in free_indices(index)}
        return _Share(min(1.0, max(0.0, density)), frozenset(names), (root, indices))

    def _reduced(
        self, expr: Reduce, indices: Sequence[str], shares: tuple[_Share, ...]
    ) -> tuple[_Share, ...]:
        """The condition that at least one reduced entry is stored: `1 - (1 - d)^n`."""
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
    """The condition that one of several parts is stored: the sum of densities, at most 1; equal parts count once."""
    found = {frozenset(share.key for share in part): part for part in parts}
    if len(found) == 1:
        return parts[0]
    total = sum(prod(share.density for share in part) for part in found.values())
    names = frozenset[str]().union(*(share.names for part in parts for share in part))
    return (_Share(min(1.0, total), names, expr),)


def _distinct(shares: Iterable[_Share]) -> tuple[_Share, ...]:
    """Each condition once."""
    return tuple({share.key: share for share in shares}.values())
