"""Products of a sparse operand with dense ones that lie across the lanes: tiles of them are copied transposed.

In:  `Y[b,m,n] = sum(k, X[b,m,k] * W[b,k,n])`, W `dense, dense, compressed`, 64 rows `m`.
Out: `split m mo mi 64 masked; order b, mo, k, n, mi; precompute tile_Y = Y at mo in thread; order Y: b, mo, mi, n;
     pack X_copy = X[k, mi] at mo in thread; transpose k mi in X_copy; transpose mi n in Y; vector mi in tile_Y;
     parallel b dynamic W`

Lanes run along an index variable of the result that the sparse operand lacks. Dense operands that have other index
variables last are copied tile by tile, so that a stored entry is multiplied with whole vectors; a result that has
another one last is collected in a tile and transposed as it is written. Copies belong to the loops that all copied
operands and the result share.
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
from sparsify.compiler.schedule.rewrite.nests import downward, loop_names, loops_to_assignment
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.sparse_linear import tile_rows

# Bytes of the copies and the tile of the result at most: they stay in the second cache.
COPY_BYTES: Final = 1 << 19
# Iterations of the outermost loop, below which threads share parts of the result's next loop; the number of parts.
FEW: Final = 2
PARTS: Final = 8
# The part of the time that copies take at most where every part makes its own.
COPIED_SHARE: Final = 0.25
# A stored entry and a vector of sums that is added to memory, in vectors' times; a vector whose lanes are apart.
ADDED: Final = 2.0
GATHERED: Final = 1.0
# How much cheaper than without copies it has to be.
MARGIN: Final = 1.25


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes along `name`, in tiles of `size`.

    Attributes:
        name: the index variable.
        size: of a tile.
        copied: the operands that are copied transposed.
        first: the loops around the copies.
        leading: the loops of the result inside of them, before the first sum.
        after: the other loops, without the lanes.
        part: of the first one of `leading`, that threads share; 0 for the whole.
        is_shared: whether threads share the first one of `leading` inside of the copies instead.
        cost: in the time of a multiply and add of a vector.
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
        sparse: the access to the sparse operand.
        dense: the accesses to dense ones.
        target: what the sum is collected in, the result or a temporary that it is computed from.
        result: what the program computes.
        order: the loops as they run without copies, outermost first.
        lane: the loop that has the lanes then, if there is one.
        declarations: of all tensors.
        taken: names that new loops and tensors must not have.
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
        """The best one first, where it is expected to be faster than without copies; nothing otherwise."""
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
        """Whether the innermost loop has neighbours in memory nowhere: an order that only copies make a good one."""
        return self.lane is None and len(self.order) > 1 and self.order[-1] in self.free

    @property
    def free(self) -> list[str]:
        """The index variables that lanes may run along."""
        return [name for name in index_names(self.target) if name not in index_names(self.sparse)]

    def extents(self, sizes: Sizes) -> dict[str, int]:
        """The extents of index variables, as far as they are known."""
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
        """Whether neighbours along `name` lie apart in the result."""
        return index_names(self.target)[-1] != name or index_names(self.result)[-1] != name

    def schedule(self, way: Lanes, lanes: int, *, in_registers: bool = True) -> d.Schedule:
        """The directives; `in_registers` transposes square tiles there."""
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
        """An operand copied inside the loops `first`, in the order in which it is read there."""
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
        """Threads over the outermost loop, by stored entries where that is the first level."""
        if outermost == self.levels()[0]:
            return d.Parallel(outermost, "dynamic", self.sparse.tensor)
        return d.Parallel(outermost, "dynamic", chunks=4)

    def _name(self, text: str) -> str:
        """A name that nothing has."""
        while text in self.taken:
            text += "_"
        return text


@dataclass(frozen=True, slots=True)
class _Counts:
    """The number of times the loops run, and what that costs.

    Attributes:
        product: the sum.
        extents: of all index variables.
        stored: entries of the sparse operand.
        lanes: of a vector.
        item_bytes: of a lane.
    """

    product: TransposedCopies
    extents: Mapping[str, int]
    stored: int
    lanes: int
    item_bytes: int

    def without_copies(self) -> float:
        """The cost of the loops as they run without copies, in vectors' times."""
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
        """Iterations of the loops without `lane`: one for each stored entry and all other index variables."""
        own = {*index_names(self.product.sparse), lane}
        return float(self.stored * prod(self.extents[name] for name in self.product.order if name not in own))

    def lanes_along(self, name: str) -> Lanes | None:
        """Lanes along an index variable; `None` where nothing is to be copied or copies would not stay near."""
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
        """The lanes of a tile, 0 where its copies would not stay near."""
        around = {*first, name}
        row = sum(prod(self.extents[n] for n in index_names(a) if n not in around) for a in copied)
        row += across * prod(self.extents[n] for n in index_names(self.product.target) if n not in around)
        most = COPY_BYTES // (max(row, 1) * self.item_bytes) // self.lanes * self.lanes
        return min(most, tile_rows(self.extents[name], self.lanes, self.item_bytes))

    def has_few(self, first: Sequence[str], tiles: int) -> bool:
        """Whether the outermost loop has too few iterations for threads to share."""
        return (tiles if len(first) == 1 else self.extents[first[0]]) < FEW

    def part(self, first: Sequence[str], leading: Sequence[str], tiles: int, worth: float) -> tuple[int, int]:
        """The size of the parts of a loop that threads share, and how many there are: 0 and 1 for none."""
        if not self.has_few(first, tiles) or not leading or leading[0] in self.product.listed():
            return 0, 1
        parts = min(PARTS, int(worth * COPIED_SHARE) or 1, self.extents[leading[0]] // 2)
        if parts < FEW:
            return 0, 1
        return -(-self.extents[leading[0]] // parts), parts


def transposed_copies(program: Notation, order: Sequence[str], lane: str | None) -> TransposedCopies | None:
    """The sum that `program` is, `None` when it is anything else.

    Args:
        program: before its schedule.
        order: the loops of the sum as they run without copies.
        lane: the one of them that has the lanes then.
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
    """The accesses of a product of sparse operands and what is computed of dense ones; `None` for other values."""
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
    """Whether every index is an index variable, and each another one."""
    names = [index.name for index in access.indices if isinstance(index, Index)]
    return len(set(names)) == len(access.indices)


def _is_in_order(declared: Declaration) -> bool:
    """Whether a tensor is dense with its modes in order."""
    return declared.format.is_dense and declared.format.ordering == tuple(range(len(declared.extents)))
