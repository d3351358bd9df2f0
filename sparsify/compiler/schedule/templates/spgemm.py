"""Sums scattered into rows of unknown pattern: a workspace a row, whose entries in use become those of the result.

In: `forall i: forall k: forall j: Y[i,k] += A[i,j] * B[j,k]`, all compressed by row.
Out: `order i, j, k; precompute row_Y = Y at i in thread listed; prefetch B 2; parallel i dynamic A`

Source: Gustavson, Two Fast Algorithms for Sparse Matrices, 1978.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations, takewhile
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, Let, Notation
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.nests import downward
from sparsify.compiler.schedule.sizes import Sizes

# Coordinates covered by one test of marks, see `loops/bitset.py`; tests that a row always affords, and tests that cost
# as much as a product.
WIDTH: Final = 256
# Prefetch distance in rows: the work of a row takes about the latency of the last-level cache.
AHEAD: Final = 2
FEW_LOOKS: Final = 64
LOOKS_A_PRODUCT: Final = 4
# Most sums of which all orders are tried.
MOST_SUMS: Final = 3


@dataclass(frozen=True, slots=True)
class Scattered:
    """A sum with an assembled result.

    Attributes:
        rows: loops over all modes of the result but the last level's, outermost first.
        sums: summed loops, concordant with the levels of the operands if possible.
        column: loop over the last level's mode.
        collected: target of the sum, the result or a temporary.
        is_temporary: whether the target is a temporary.
        by: operand whose rows balance the threads.
        factors: sparse operands.
        scattered: sparse operands whose rows are gathered by a summed coordinate and scattered.
        has_rows: whether dense levels of the result form rows assembled independently.
    """

    rows: tuple[str, ...]
    sums: tuple[str, ...]
    column: str
    collected: str
    is_temporary: bool
    by: str
    factors: tuple[Declaration, ...]
    scattered: tuple[str, ...]
    has_rows: bool

    def schedules(self, sizes: Sizes, order: tuple[str, ...] = ()) -> Iterator[d.Schedule]:
        """Schedules with threads over the rows, then without; entries marked if cheap, else in a list.

        If `order` puts the sums inside all levels, every entry is first summed in a register and appended. Other orders
        of the sums serve operands that allow nothing else.
        """
        sums = sorted(self.sums, key=lambda name: order.index(name) if name in order else len(order))
        is_known = sorted(order) == sorted((*self.rows, self.column, *sums))
        if is_known and sums and order.index(self.column) < order.index(sums[0]):
            yield from self._appended(sums)
        if is_known and sums and self._is_scattered(order, order.index(sums[0])):
            yield from self._hashed(order)
        is_cheap = self.has_rows and self._is_cheap(sizes)
        for marked in (True, False) if is_cheap else (False, True) if self.has_rows else (False,):
            yield from self._workspace(sums, marked)
        if len(sums) <= MOST_SUMS:
            for other in list(permutations(sums))[1:]:
                yield from self._workspace(list(other), False)
                yield from self._appended(list(other))
        if sums:
            yield from self._appended(sums)

    def _workspace(self, sums: list[str], marked: bool) -> Iterator[d.Schedule]:
        name = self.collected if self.is_temporary else f"row_{self.collected}"
        source = "" if self.is_temporary else self.collected
        scope, at = ("thread", self.rows[-1]) if self.rows else ("memory", "")
        steps = [
            d.Order((*self.rows, *sums, self.column), self.collected if self.is_temporary else ""),
            d.Precompute(name, scope, at=at, source=source, listed=not marked, marked=marked),
            *(d.Prefetch(found, AHEAD) for found in self.scattered),
        ]
        if self.rows:
            yield d.Schedule((*steps, d.Parallel(self.rows[0], "dynamic" if self.by else "static", self.by)))
        yield d.Schedule(tuple(steps))

    def _is_scattered(self, order: tuple[str, ...], first: int) -> bool:
        """Whether the first sum encloses loops other than an innermost loop over the last level."""
        is_inside = order.index(self.column) > first and order[-1] != self.column
        return is_inside or any(order.index(row) > first for row in self.rows)

    def _hashed(self, order: tuple[str, ...]) -> Iterator[d.Schedule]:
        """The modes inside of the first sum in a hash table, read in the order of the result's levels."""
        around = tuple(takewhile(self.rows.__contains__, order))
        name = self.collected if self.is_temporary else f"table_{self.collected}"
        source = "" if self.is_temporary else self.collected
        scope, at = ("thread", around[-1]) if around else ("memory", "")
        steps = (
            d.Order(order, self.collected if self.is_temporary else ""),
            d.Precompute(name, scope, at=at, source=source, listed=True),
        )
        if around:
            yield d.Schedule((*steps, d.Parallel(around[0], "dynamic" if self.by else "static", self.by)))
        yield d.Schedule(steps)

    def _is_cheap(self, sizes: Sizes) -> bool:
        """Whether a row has enough products to make the tests of its marks negligible."""
        extent = sizes.extents.get(self.column)
        products = 1.0
        for declared in self.factors:
            outermost = sizes.extents.get(declared.extents[declared.format.ordering[0]])
            products *= sizes.stored.get(declared.name, 0) / max(1, outermost or 1)
        return extent is not None and extent <= WIDTH * (FEW_LOOKS + LOOKS_A_PRODUCT * products)

    def _appended(self, sums: list[str]) -> Iterator[d.Schedule]:
        """Each entry of the result is summed in a register and appended."""
        name = self.collected if self.is_temporary else f"sum_{self.collected}"
        source = "" if self.is_temporary else self.collected
        steps = (
            d.Order((*self.rows, self.column, *sums), self.collected if self.is_temporary else ""),
            d.Precompute(name, "register", at=self.column, source=source),
        )
        if self.rows:
            yield d.Schedule((*steps, d.Parallel(self.rows[0], "dynamic" if self.by else "static", self.by)))
        yield d.Schedule(steps)


def scattered(program: Notation) -> Scattered | None:
    """`program` as a sum scattered into rows, `None` for other programs."""
    if len(program.outputs) != 1:
        return None
    declarations = {declared.name: declared for declared in program.declarations}
    output = declarations[program.outputs[0]]
    assigns = find(program.body, Assign)
    summed = [assign for assign in assigns if assign.monoid is not None]
    if output.format.is_dense or output.pattern_of is not None or len(summed) != 1 or len(assigns) > 2:
        return None
    result = next(assign.target for assign in assigns if assign.target.tensor == output.name)
    modes = index_names(result)
    stored = [modes[level.expression.mode] for level in output.format.levels]
    if len(set(stored)) < len(stored) or set(index_names(summed[0].target)) != set(stored):
        return None
    loops = dict.fromkeys(n.index for n in find(program.body, Forall))
    levels = [
        [
            index.name
            for stored in declarations[a.tensor].format.levels
            if isinstance(index := a.indices[stored.expression.mode], Index)
        ]
        for a in find(summed[0].value, Access)
        if a.tensor in declarations and not declarations[a.tensor].format.is_dense
    ]
    edges = [edge for names in levels for edge in pairwise(names)]
    sums = downward([name for name in loops if name not in stored], edges)
    temporaries = {t.name for n in find(program.body, Let) for t in n.temporaries}
    target = summed[0].target.tensor
    by = (
        declared.name
        for access in find(summed[0].value, Access)
        if (declared := declarations.get(access.tensor)) is not None
        if declared.name in program.inputs and len(declared.format.levels) > 1
        if declared.format.levels[0].level.is_full and not declared.format.is_dense
        if access.indices[declared.format.ordering[0]] == Index(stored[0])
    )
    read = {n.tensor for n in find(summed[0].value, Access) if n.tensor in program.inputs}
    factors = tuple(declarations[name] for name in sorted(read) if not declarations[name].format.is_dense)
    gathered = (
        access.tensor
        for access in find(summed[0].value, Access)
        if access.tensor in read and len(access.indices) == 2
        if not declarations[access.tensor].format.is_dense
        if declarations[access.tensor].format.levels[0].level.is_full
        if access.indices[declarations[access.tensor].format.ordering[0]] in [*map(Index, sums)]
    )
    *above, last = [level.level for level in output.format.levels]
    return Scattered(
        tuple(stored[:-1]),
        tuple(sums),
        stored[-1],
        target,
        target in temporaries,
        next(by, ""),
        factors,
        tuple(dict.fromkeys(gathered)),
        last.can_append and not last.is_branchless and bool(above) and all(level.is_full for level in above),
    )
