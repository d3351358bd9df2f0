"""Reductions over unstored coordinates: counted, not visited.

In: `m[i] = max(j, A[i,j])`, A compressed by row with fill 0.
Out: `m[i] = max(max(j, where(stored(A[i,j]), A[i,j], -inf)), where(n / extent(j) == 1, -inf, 0))`, where `n` is
`sum(j, where(stored(A[i,j]), 1, 0))`.

The work is then proportional to the stored entries: without the rewrite a reduction visits every coordinate if its
identity differs from the value at unstored coordinates.

A product of operands with other modes, `C[i,j] = max(k, A[i,k] * B[k,j])`, is stored where both operands are: a row of
one operand and a column of the other are counted instead of all products, and the reduction over stored entries is a
separate tensor, `w`, whose entries mark the coordinates to look at.

Source: Henry, Hsu, Yadav, Chou, Olukotun, Amarasinghe and Kjolstad, Compilation of Sparse Array Programming Models,
2021, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import Final, cast

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.dtype import kind_of
from sparsify.compiler.einsum.infer.format import dense_format, infer_format
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Cast,
    Const,
    Declaration,
    Expr,
    Extent,
    Index,
    Program,
    Reduce,
    Stored,
)
from sparsify.compiler.einsum.rename import all_indices, fresh
from sparsify.compiler.ir.dtypes import FLOATING, INTEGER, category
from sparsify.compiler.ir.node import Node, find, holds, walk
from sparsify.compiler.ir.rewrite import bottom_up
from sparsify.compiler.loops.lower.declared import DeclaredTensors
from sparsify.compiler.loops.lower.lattice import Point, expression_regions, prune
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.fill import decided

# Combining a value with itself gives the value.
IDEMPOTENT: Final = frozenset({"min", "max"})
# Most coordinates of a dense count: in all, or for each stored entry.
SMALL: Final = 1 << 16
ROOM: Final = 16


def count_unstored(program: Program, sizes: Sizes) -> Program:
    """`program` with reductions over stored entries, if all unstored terms are equal; else the same object."""
    declarations = {declared.name: declared for declared in program.declarations}
    tensors, taken = DeclaredTensors(declarations), {*declarations, *all_indices(program.statements)}
    statements: list[Assign] = []
    for statement in program.statements:
        rule = _Rule(tensors, sizes, taken, free_indices(statement.target))
        value = cast(Expr, bottom_up(statement.value, rule))
        statements += [*rule.apart, replace(statement, value=value)]
        declarations |= rule.counts
    if tuple(statements) == program.statements:
        return program
    declared = tuple(declarations.values())
    return infer_format(replace(program, statements=tuple(statements), declarations=declared))


@dataclass(frozen=True, slots=True)
class _Rule:
    """`max(j, e) -> max(w, where(n / extent(j) == 1, -inf, c))`, with `c` the value of `e` at unstored coordinates.

    Attributes:
        taken: used names of tensors and index variables.
        order: index variables of the result.
        apart: statements of reductions stored as separate tensors, in order of creation.
        counts: declarations of the counts.
    """

    tensors: DeclaredTensors
    sizes: Sizes
    taken: set[str]
    order: tuple[str, ...]
    apart: list[Assign] = field(default_factory=list)
    counts: dict[str, Declaration] = field(default_factory=dict)

    def __call__(self, node: Node) -> Node | None:
        if not isinstance(node, Reduce) or node.monoid not in (*IDEMPOTENT, "sum"):
            return None
        apart = {statement.target.tensor for statement in self.apart}
        if holds(node.body, Reduce) or any(access.tensor in apart for access in find(node.body, Access)):
            return None
        roots = self._roots(node)
        extents = self._extents(node, roots)
        if not roots or extents is None:
            return None
        outside = prune(node.body, roots, self.tensors)
        dtype = kind_of(node.body, self.tensors.kinds).dtype
        start = MONOIDS[node.monoid].identity(dtype)
        # A fill cannot be the largest integer, the identity of `min`.
        has_fills = category(dtype) == FLOATING or (category(dtype) == INTEGER and start == 0)
        if set(free_indices(outside)) & set(node.indices) or not has_fills:
            return None
        if isinstance(outside, Const) and (
            outside.value == start or decided(MONOIDS[node.monoid].combine, 0, outside.value)[0]
        ):
            return None
        points = self._points(node.body, roots)
        if frozenset() in points:
            return None
        if len(points) == 1 and node.monoid in IDEMPOTENT:
            factors = sorted(*points, key=str)
            if self._is_product(node, factors):
                return self._counted_each(node, factors, outside, Const(start), extents)
        return _counted(node, points, outside, Const(start), extents, dtype)

    def _is_product(self, node: Reduce, factors: Sequence[Access]) -> bool:
        """Whether some factor lacks a mode of the result, and each factor is small enough for a dense count."""
        free = frozenset(free_indices(node))
        kept = [[self._extent(root, name) for name in index_names(root) if name in free] for root in factors]
        if all(len(extents) == len(free) for extents in kept):
            return False
        for root, extents in zip(factors, kept, strict=True):
            known = [self.sizes.extents.get(extent) for extent in extents]
            room = prod(size for size in known if size is not None)
            few = max(SMALL, ROOM * self.sizes.stored.get(root.tensor, 0))
            if room > few or (None in known and len(known) > 1):
                return False
        return True

    def _counted_each(
        self, node: Reduce, factors: Sequence[Access], outside: Expr, start: Expr, extents: Sequence[str]
    ) -> Expr:
        """The reduction over entries stored in all factors, combined with the unstored value if a term is unstored."""
        stored = _any_of(frozenset({frozenset(factors)}))
        inside = self._apart("w", replace(node, body=Call("where", (stored, node.body, start))))
        full = []
        for root in factors:
            count = self._apart("n", _count(node, Stored(root)))
            modes = tuple(self._extent(root, name) for name in index_names(count))
            self.counts[count.tensor] = Declaration(count.tensor, modes, dense_format(len(modes)), "int64")
            full.append(_is_full(count, extents))
        rest = Call("where", (_joined("logical_and", full), start, outside))
        both = Call(MONOIDS[node.monoid].combine, (inside, rest))
        return Call("where", (Stored(inside), both, outside))

    def _apart(self, name: str, value: Reduce) -> Access:
        """The reduction as a separate tensor, with modes in the order of the result."""
        name = fresh(name, self.taken)
        self.taken.add(name)
        free = sorted(
            free_indices(value), key=lambda n: self.order.index(n) if n in self.order else len(self.order)
        )
        target = Access(name, tuple(map(Index, free)))
        self.apart.append(Assign(target, None, value))
        return target

    def _extent(self, root: Access, name: str) -> str:
        """The extent of an index variable of a tensor."""
        return self.tensors.declarations[root.tensor].extents[index_names(root).index(name)]

    def _roots(self, node: Reduce) -> frozenset[Access]:
        """The candidate patterns of the reduction: sparse, plainly indexed, and with all reduced index variables."""
        found = set()
        for part in walk(node.body):
            access = part.access if isinstance(part, Stored) else part
            if isinstance(access, Access) and set(free_indices(access)) & set(node.indices):
                root = self.tensors.root_of(access)
                is_sparse = not self.tensors.declarations[root.tensor].format.is_dense
                if is_sparse and _is_plain(root) and set(node.indices) <= set(index_names(root)):
                    found.add(root)
        return frozenset(found)

    def _extents(self, node: Reduce, roots: frozenset[Access]) -> tuple[str, ...] | None:
        """The extents of the reduced index variables; `None` if one is known to be 0."""
        for root in roots:
            names = tuple(self._extent(root, index) for index in node.indices)
            return names if all(self.sizes.extents.get(name) != 0 for name in names) else None
        return None

    def _points(self, body: Expr, roots: frozenset[Access]) -> frozenset[Point]:
        """The minimal lattice points with a relevant value: sets of patterns stored together."""
        regions = expression_regions(body, roots, self.tensors, frozenset(), {})
        if regions.background is None:
            return frozenset(frozenset({root}) for root in roots)
        return frozenset(p for p in regions.points if not any(other < p for other in regions.points))


def _counted(
    node: Reduce, points: frozenset[Point], outside: Expr, start: Expr, extents: Sequence[str], dtype: str
) -> Expr:
    """The reduction over stored entries, combined with the unstored value if a term is unstored."""
    stored = _any_of(points)
    inside = Reduce(node.monoid, node.indices, Call("where", (stored, node.body, start)))
    count = _count(node, stored)
    if node.monoid not in IDEMPOTENT:
        others: Expr = Call("sub", (_joined("mul", [Extent(name) for name in extents]), count))
        if dtype == "float64":  # a constant times an integer would be promoted to float32 only
            others = Cast(dtype, others)
        outside = Call("mul", (outside, others))
    return Call(
        MONOIDS[node.monoid].combine, (inside, Call("where", (_is_full(count, extents), start, outside)))
    )


def _count(node: Reduce, stored: Expr) -> Reduce:
    """The number of stored coordinates along the index variables of a reduction."""
    return Reduce("sum", node.indices, Call("where", (stored, Const(1), Const(0))))


def _is_full(count: Expr, extents: Sequence[str]) -> Expr:
    """Whether the count covers all coordinates."""
    # The product of many extents overflows an integer; in float64 the quotient is 1 only if all are counted.
    room = _joined("mul", [Cast("float64", Extent(name)) for name in extents])
    return Call("eq", (Call("div", (Cast("float64", count), room)), Const(1.0)))


def _any_of(points: frozenset[Point]) -> Expr:
    """The disjunction over lattice points of the conjunctions of their stored patterns."""
    each = (
        _joined("logical_and", [Stored(root) for root in sorted(point, key=str)])
        for point in sorted(points, key=lambda point: sorted(map(str, point)))
    )
    return _joined("logical_or", list(each))


def _joined(function: str, parts: Sequence[Expr]) -> Expr:
    """`f(f(a, b), c)`."""
    return reduce(lambda left, right: Call(function, (left, right)), parts)


def _is_plain(access: Access) -> bool:
    """Whether all indices are distinct index variables."""
    names = [index.name for index in access.indices if isinstance(index, Index)]
    return len(set(names)) == len(access.indices)
