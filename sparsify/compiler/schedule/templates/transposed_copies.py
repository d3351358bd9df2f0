"""Products of a sparse operand with dense ones strided along the lanes: tiles are copied transposed.

In:  `Y[b,m,n] = sum(k, X[b,m,k] * W[b,k,n])`, W `dense, dense, compressed`, 64 rows `m`.
Out: `split m mo mi 64 masked; order b, mo, k, n, mi; precompute tile_Y = Y at mo in thread; order Y: b, mo, mi, n;
     pack X_copy = X[k, mi] at mo in thread; transpose k mi in X_copy; transpose mi n in Y; vector mi in tile_Y;
     parallel b dynamic W`

Lanes run along an index variable of the result missing from the sparse operand. Dense operands with another last index
variable are copied tile by tile, so that a stored entry is multiplied with whole vectors; a result with another last
one is collected in a tile and transposed when written. Copies belong to the loops common to all copied operands and
the result.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from math import inf, prod
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Declaration, Expr, Index, Reduce
from sparsify.compiler.ir.node import find, holds
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.cost.matmul import (
    LIST,
    LIST_VECTOR,
    SINGLE,
    STORED,
    TURNED,
    VECTOR,
    WRITTEN,
)
from sparsify.compiler.schedule.nests import downward, loop_names, loops_to_assignment
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.sparse_linear import tile_rows

# Most bytes of the copies and the tile of the result, which fit the second-level cache.
COPY_BYTES: Final = 1 << 19
# Fewest iterations of a parallel outermost loop, below which threads share parts of the result's next loop; the number
# of parts.
FEW: Final = 2
PARTS: Final = 8
# Largest fraction of the time for copies, if every part makes private copies.
COPIED_SHARE: Final = 0.25
# Costs in vectors' times: a stored entry and a vector of sums added to memory; a vector of strided lanes.
ADDED: Final = 2.0
GATHERED: Final = 1.0
# Least gain over loops without copies.
MARGIN: Final = 1.25


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes along `name`, in tiles of `size`.

    Attributes:
        name: index variable.
        size: iterations of a tile.
        copied: operands copied transposed.
        first: loops around the copies.
        leading: inner loops of the result, before the first sum.
        after: other loops, without the lanes.
        part: size of the parts of the first `leading` loop shared by threads; 0 for the whole.
        is_shared: whether threads instead share the first `leading` loop inside the copies.
        cost: cost in multiply-adds of a vector.
    """

    name: str
    size: int
    copied: tuple[Access, ...]
    first: tuple[str, ...]
    leading: tuple[str, ...]
    after: tuple[str, ...]
    part: int
    is_shared: bool
    cost: float


@dataclass(frozen=True, slots=True)
class TransposedCopies:
    """A sum of products of one sparse operand and dense ones.

    Attributes:
        sparse: access to the sparse operand.
        dense: accesses to dense operands.
        target: target of the sum, the result or a temporary.
        result: result of the program.
        order: loop order without copies, outermost first.
        lane: lane loop without copies, if any.
        declarations: declarations of all tensors.
        taken: names not available for new loops and tensors.
    """

    sparse: Access
    dense: tuple[Access, ...]
    target: Access
    result: Access
    order: tuple[str, ...]
    lane: str | None
    declarations: Mapping[str, Declaration]
    taken: frozenset[str]

    def schedules(self, lanes: int, item_bytes: int, sizes: Sizes) -> Iterator[d.Schedule]:
        """The schedules, the best first, if expected to be faster than without copies; empty otherwise."""
        extents = self.extents(sizes)
        stored = sizes.stored.get(self.sparse.tensor)
        if lanes < 2 or type(stored) is not int or any(name not in extents for name in self.order):
            return
        if not stored or not all(extents.values()):
            return
        counts = _Counts(self, extents, stored, lanes, item_bytes)
        best = min(
            map(counts.lanes_along, self.free), key=lambda way: inf if way is None else way.cost, default=None
        )
        if best is None or best.cost * MARGIN > counts.without_copies():
            return
        yield self.schedule(best, lanes)
        yield self.schedule(best, lanes, in_registers=False)

    @property
    def is_ordered_for_copies(self) -> bool:
        """Whether the innermost loop is contiguous in no operand: an order that is good with copies only."""
        return self.lane is None and len(self.order) > 1 and self.order[-1] in self.free

    @property
    def free(self) -> list[str]:
        """The candidate index variables for lanes."""
        return [name for name in index_names(self.target) if name not in index_names(self.sparse)]

    def extents(self, sizes: Sizes) -> dict[str, int]:
        """The known extents of index variables."""
        found: dict[str, int] = {}
        for access in (self.sparse, *self.dense, self.result):
            shape = self.declarations[access.tensor].extents
            for name, extent in zip(index_names(access), shape, strict=True):
                size = sizes.extents.get(extent, sizes.extents.get(name))
                if type(size) is int:
                    found[name] = size
        return found

    def levels(self) -> list[str]:
        """The loop over each level of the sparse operand."""
        names = index_names(self.sparse)
        return [names[mode] for mode in self.declarations[self.sparse.tensor].format.ordering]

    def listed(self) -> set[str]:
        """The loops over stored coordinates."""
        stored = self.declarations[self.sparse.tensor].format.levels
        return {name for name, s in zip(self.levels(), stored, strict=True) if not s.level.is_full}

    def is_across(self, name: str) -> bool:
        """Whether the result is strided along `name`."""
        return index_names(self.target)[-1] != name or index_names(self.result)[-1] != name

    def schedule(self, way: Lanes, lanes: int, *, in_registers: bool = True) -> d.Schedule:
        """The directives; `in_registers` transposes square tiles in registers."""
        outer, inner = self._name(f"{way.name}o"), self._name(f"{way.name}i")
        tiled = {way.name: outer}
        first, leading = [tiled.get(n, n) for n in way.first], list(way.leading)
        steps: list[d.Directive] = [d.Split(way.name, outer, inner, way.size, masked=True)]
        if way.part:
            parts, inside = self._name(f"{leading[0]}s"), self._name(f"{leading[0]}p")
            steps.append(d.Split(leading[0], parts, inside, way.part))
            tiled[leading[0]] = leading[0] = inside
            first = [parts, *first]
        loops = [*first, *leading, *way.after]
        kept = [tiled.get(n, n) for n in index_names(self.target) if n != way.name]
        steps.append(d.Order((*loops, inner)))
        last = tiled.get(index_names(self.result)[-1], index_names(self.result)[-1])
        collected, across = self.target.tensor, self.is_across(way.name)
        is_result = collected == self.result.tensor
        is_ordered = not set(way.after) & set(kept)
        around = [*first, *takewhile(lambda name: name != last, leading)]
        if across or not is_ordered:
            rest = [name for name in kept if name not in around and name != last]
            columns = [inner, last] if across else [last, inner]
            columns = [inner] if last == outer else columns
            ordered = d.Order((*around, *rest, *columns), self.result.tensor)
            if is_result:
                tile = self._name(f"tile_{collected}")
                steps += [d.Precompute(tile, "thread", at=around[-1], source=collected), ordered]
                collected = tile
            else:
                steps += [ordered, d.Precompute(collected, "thread", at=around[-1])]
        else:
            tile = collected
            if not is_result:
                steps.append(d.Precompute(collected, "register", at=loops[len(first) + len(leading) - 1]))
        nests = [collected]
        sums_at = max([loops.index(n) for n in loops if n in kept or n in first], default=0)
        is_held = is_result or across or not is_ordered
        if is_held and sums_at < len(loops) - 1:
            sums = self._name("sums")
            steps.append(d.Precompute(sums, "register", at=loops[sums_at], source=collected))
            nests.insert(0, sums)
        for access in way.copied:
            steps += self._copy(access, way, loops, first, inner, tiled, in_registers)
        if across and in_registers:
            steps.append(d.Transpose(inner, last, self.result.tensor))
        elif not across and self.result.tensor not in nests:
            nests.append(self.result.tensor)
        steps += [d.Vector(inner, nest) for nest in nests]
        if way.is_shared:
            return d.Schedule((*steps, replace(self._parallel(leading[0]), nest=self.result.tensor)))
        return d.Schedule((*steps, self._parallel(loops[0])))

    def _copy(
        self,
        access: Access,
        way: Lanes,
        loops: Sequence[str],
        first: Sequence[str],
        inner: str,
        tiled: Mapping[str, str],
        in_registers: bool,
    ) -> list[d.Directive]:
        """An operand copied inside the loops `first`, in its reading order."""
        names = [tiled.get(n, n) for n in index_names(access) if n != way.name]
        inside = [n for n in loops if n in names and n not in first]
        copy, scope = self._name(f"{access.tensor}_copy"), "memory" if way.is_shared else "thread"
        steps: list[d.Directive] = [d.Pack(copy, access.tensor, (*inside, inner), first[-1], scope)]
        if in_registers and names[-1] == inside[-1]:
            steps.append(d.Transpose(names[-1], inner, copy))
        elif in_registers and names[-1] in inside:
            others = [n for n in inside if n != names[-1]]
            steps += [d.Order((*others, names[-1], inner), copy), d.Transpose(names[-1], inner, copy)]
        return steps

    def _parallel(self, outermost: str) -> d.Parallel:
        """Threads over the outermost loop, balanced by stored entries for the first level."""
        if outermost == self.levels()[0]:
            return d.Parallel(outermost, "dynamic", self.sparse.tensor)
        return d.Parallel(outermost, "dynamic", chunks=4)

    def _name(self, text: str) -> str:
        """An unused name."""
        while text in self.taken:
            text += "_"
        return text


@dataclass(frozen=True, slots=True)
class _Counts:
    """The iteration counts of the loops, and their costs.

    Attributes:
        product: matched sum.
        extents: extents of all index variables.
        stored: entries of the sparse operand.
        lanes: lanes of a vector.
        item_bytes: bytes of a lane.
    """

    product: TransposedCopies
    extents: Mapping[str, int]
    stored: int
    lanes: int
    item_bytes: int

    def without_copies(self) -> float:
        """The cost of the loops without copies, in vectors' times."""
        lane = self.product.lane
        entries = self.iterations(lane or "")
        if lane is None:
            return entries * SINGLE
        reads = [a for a in self.product.dense if lane in index_names(a)]
        written = [self.product.target] if lane in index_names(self.product.target) else []
        apart = sum(index_names(a)[-1] != lane for a in (*reads, *written))
        vectors = -(-self.extents[lane] // self.lanes)
        return entries * (STORED + vectors * (VECTOR + apart * GATHERED * self.lanes))

    def iterations(self, lane: str) -> float:
        """Iterations of the loops without `lane`: stored entries times the extents of other index variables."""
        own = {*index_names(self.product.sparse), lane}
        return float(self.stored * prod(self.extents[name] for name in self.product.order if name not in own))

    def lanes_along(self, name: str) -> Lanes | None:
        """Lanes along an index variable; `None` if nothing is to be copied or copies exceed the caches."""
        product = self.product
        copied = tuple(a for a in product.dense if name in index_names(a)[:-1])
        across = product.is_across(name)
        tensors = [access.tensor for access in product.dense]
        if (not copied and not across) or any(tensors.count(a.tensor) > 1 for a in copied):
            return None
        order = [loop for loop in product.order if loop != name]
        kept = index_names(product.target)
        inside = {index_names(access)[-1] for access in copied} | {kept[-1], index_names(product.result)[-1]}
        shared = [
            n for n in order if n in kept and n not in inside and all(n in index_names(a) for a in copied)
        ]
        order = downward([*shared, *(n for n in order if n not in shared)], pairwise(product.levels()))
        first = list(takewhile(lambda loop: loop in shared, order))
        rest = order[len(first) :]
        leading = list(takewhile(lambda loop: loop in kept, rest))
        after = rest[len(leading) :]
        size = self.tile(name, copied, first, across)
        if not size:
            return None
        tiles = -(-self.extents[name] // size)
        first = [name, *first] if first and self.extents[first[0]] < min(FEW, tiles) else [*first, name]
        is_added = bool(after) and after[-1] in kept
        others = max(0, len(product.dense) - 1)
        vectors = size / self.lanes * (VECTOR * (1 + others / 2) + is_added * (ADDED - 1) * VECTOR)
        lists = 0.0 if is_added else prod(self.extents[n] for n in kept if n != name)
        cost = self.iterations(name) * (STORED + vectors) + lists * (LIST + LIST_VECTOR * size / self.lanes)
        cost *= tiles
        copies = TURNED * sum(prod(self.extents[n] for n in index_names(a)) for a in copied)
        written = WRITTEN * across * prod(self.extents[n] for n in kept)
        part, parts = self.part(first, leading, tiles, cost / max(copies, 1.0))
        written_last = index_names(product.result)[-1] if across else ""
        is_shared = self.has_few(first, tiles) and not part and leading[:1] not in ([], [written_last])
        cost += copies * parts + written
        loops = tuple(first), tuple(leading), tuple(after)
        return Lanes(name, size, copied, *loops, part, is_shared, cost)

    def tile(self, name: str, copied: Sequence[Access], first: Sequence[str], across: bool) -> int:
        """The lanes of a tile, 0 if its copies exceed the caches."""
        around = {*first, name}
        row = sum(prod(self.extents[n] for n in index_names(a) if n not in around) for a in copied)
        row += across * prod(self.extents[n] for n in index_names(self.product.target) if n not in around)
        most = COPY_BYTES // (max(row, 1) * self.item_bytes) // self.lanes * self.lanes
        return min(most, tile_rows(self.extents[name], self.lanes, self.item_bytes))

    def has_few(self, first: Sequence[str], tiles: int) -> bool:
        """Whether the outermost loop has too few iterations for threads."""
        return (tiles if len(first) == 1 else self.extents[first[0]]) < FEW

    def part(self, first: Sequence[str], leading: Sequence[str], tiles: int, worth: float) -> tuple[int, int]:
        """The size and number of the parts of a loop shared by threads: 0 and 1 for none."""
        if not self.has_few(first, tiles) or not leading or leading[0] in self.product.listed():
            return 0, 1
        parts = min(PARTS, int(worth * COPIED_SHARE) or 1, self.extents[leading[0]] // 2)
        if parts < FEW:
            return 0, 1
        return -(-self.extents[leading[0]] // parts), parts


def transposed_copies(program: Notation, order: Sequence[str], lane: str | None) -> TransposedCopies | None:
    """`program` as a sum with candidates for copies, `None` for other programs.

    Args:
        program: notation before its schedule.
        order: loop order of the sum without copies.
        lane: lane loop without copies.
    """
    declared = {declaration.name: declaration for declaration in program.declarations}
    assigns = find(program.body, Assign)
    if len(program.outputs) != 1 or len(assigns) > 2 or assigns[0].monoid != "sum" or program.relations:
        return None
    summed, result = assigns[0], assigns[-1].target
    reads = factors(summed.value, declared)
    if reads is None or any(a.tensor not in program.inputs for a in reads):
        return None
    sparse = [access for access in reads if not declared[access.tensor].format.is_dense]
    dense = tuple(access for access in reads if declared[access.tensor].format.is_dense and access.indices)
    plain = (*reads, summed.target, result)
    if len(sparse) != 1 or not all(_is_plain(access) for access in plain) or not result.indices:
        return None
    wanted = set(index_names(result))
    if set(index_names(summed.target)) != wanted or not declared[sparse[0].tensor].format.is_short:
        return None
    if not all(_is_in_order(declared[access.tensor]) for access in (*dense, result)):
        return None
    if sorted(order) != sorted(
        loop.index for loop in loops_to_assignment(program.body, summed.target.tensor) or ()
    ):
        return None
    taken = frozenset(loop_names(program)) | frozenset(declared) | {summed.target.tensor}
    return TransposedCopies(sparse[0], dense, summed.target, result, tuple(order), lane, declared, taken)


def factors(value: Expr, declared: Mapping[str, Declaration]) -> list[Access] | None:
    """The accesses of a product of sparse operands and functions of dense ones; `None` for other values."""
    match value:
        case Call("mul", (left, right)):
            parts = factors(left, declared), factors(right, declared)
            return None if parts[0] is None or parts[1] is None else [*parts[0], *parts[1]]
        case Access() | Const():
            return [value] if isinstance(value, Access) else []
    found = find(value, Access)
    is_dense = all(a.tensor in declared and declared[a.tensor].format.is_dense for a in found)
    return found if is_dense and not holds(value, Reduce) else None


def _is_plain(access: Access) -> bool:
    """Whether all indices are distinct index variables."""
    names = [index.name for index in access.indices if isinstance(index, Index)]
    return len(set(names)) == len(access.indices)


def _is_in_order(declared: Declaration) -> bool:
    """Whether a tensor is dense with its modes in order."""
    return declared.format.is_dense and declared.format.ordering == tuple(range(len(declared.extents)))
