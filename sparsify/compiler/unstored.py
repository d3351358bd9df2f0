"""Reductions over what is not stored: counted, not visited.

In: `m[i] = max(j, A[i,j])`, A compressed by row with fill 0.
Out: `m[i] = max(max(j, where(stored(A[i,j]), A[i,j], -inf)), where(n / extent(j) == 1, -inf, 0))`, where `n` is
`sum(j, where(stored(A[i,j]), 1, 0))`.

The work then follows the stored entries: without it a reduction visits every coordinate when what it starts with is
another value than it meets where nothing is stored.

Source: Henry, Hsu, Yadav, Chou, Olukotun, Amarasinghe and Kjolstad, Compilation of Sparse Array Programming Models,
2021, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, cast

from sparsify.compiler.dtypes import FLOATING, INTEGER, category
from sparsify.compiler.einsum.infer_dtype import kind_of
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import (
    Access,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    Index,
    Program,
    Reduce,
    Stored,
)
from sparsify.compiler.einsum.sums import free_indices
from sparsify.compiler.loops.lower.declared import DeclaredTensors
from sparsify.compiler.loops.lower.lattice import Point, expression_regions, prune
from sparsify.compiler.node import Node, holds, walk
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.rewrite import bottom_up
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.fill import decided

# Combining a value with itself gives the value.
IDEMPOTENT: Final = frozenset({"min", "max"})


def count_unstored(program: Program, sizes: Sizes) -> Program:
    """`program` with its reductions over stored entries where the others are all one value; the same object else."""
    rule = _Rule(
        program, DeclaredTensors({declared.name: declared for declared in program.declarations}), sizes
    )
    statements = tuple(
        replace(statement, value=cast(Expr, bottom_up(statement.value, rule)))
        for statement in program.statements
    )
    return program if statements == program.statements else replace(program, statements=statements)


@dataclass(frozen=True, slots=True)
class _Rule:
    """`max(j, e) -> max(w, where(n / extent(j) == 1, -inf, c))`, `c` the value of `e` where nothing is stored."""

    program: Program
    tensors: DeclaredTensors
    sizes: Sizes

    def __call__(self, node: Node) -> Node | None:
        if not isinstance(node, Reduce) or node.monoid not in (*IDEMPOTENT, "sum"):
            return None
        if holds(node.body, Reduce):
            return None
        roots = self._roots(node)
        extents = self._extents(node, roots)
        if not roots or extents is None:
            return None
        outside = prune(node.body, roots, self.tensors)
        dtype = kind_of(node.body, self.tensors.kinds).dtype
        start = MONOIDS[node.monoid].identity(dtype)
        # No fill is the largest integer, which least ones start with.
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
        return _counted(node, points, outside, Const(start), extents)

    def _roots(self, node: Reduce) -> frozenset[Access]:
        """The patterns that may confine the reduction: sparse, and with all of its index variables as plain indices."""
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
        """The extents of the index variables; `None` where one may be that of no coordinates."""
        for root in roots:
            declared = self.tensors.declarations[root.tensor].extents
            names = tuple(declared[index_names(root).index(index)] for index in node.indices)
            return names if all(self.sizes.extents.get(name) != 0 for name in names) else None
        return None

    def _points(self, body: Expr, roots: frozenset[Access]) -> frozenset[Point]:
        """Which patterns have to be stored at a coordinate that counts, the smallest sets of them."""
        regions = expression_regions(body, roots, self.tensors, frozenset(), {})
        if regions.background is None:
            return frozenset(frozenset({root}) for root in roots)
        return frozenset(p for p in regions.points if not any(other < p for other in regions.points))


def _counted(
    node: Reduce, points: frozenset[Point], outside: Expr, start: Expr, extents: Sequence[str]
) -> Expr:
    """The reduction over stored entries, combined with the value of the others where there are some."""
    stored = _any_of(points)
    inside = Reduce(node.monoid, node.indices, Call("where", (stored, node.body, start)))
    count = Reduce("sum", node.indices, Call("where", (stored, Const(1), Const(0))))
    # Of many modes the extents together are more than an integer holds; the quotient is 1 only for all of them.
    room = _joined("mul", [Cast("float64", Extent(name)) for name in extents])
    is_full = Call("eq", (Call("div", (Cast("float64", count), room)), Const(1.0)))
    if node.monoid not in IDEMPOTENT:
        others = Call("sub", (_joined("mul", [Extent(name) for name in extents]), count))
        outside = Call("mul", (outside, others))
    return Call(MONOIDS[node.monoid].combine, (inside, Call("where", (is_full, start, outside))))


def _any_of(points: frozenset[Point]) -> Expr:
    """Where all patterns of one of the points are stored."""
    each = (
        _joined("logical_and", [Stored(root) for root in sorted(point, key=str)])
        for point in sorted(points, key=lambda point: sorted(map(str, point)))
    )
    return _joined("logical_or", list(each))


def _joined(function: str, parts: Sequence[Expr]) -> Expr:
    """`f(f(a, b), c)`."""
    return reduce(lambda left, right: Call(function, (left, right)), parts)


def _is_plain(access: Access) -> bool:
    """Whether every index is an index variable, and each another one."""
    names = [index.name for index in access.indices if isinstance(index, Index)]
    return len(set(names)) == len(access.indices)
