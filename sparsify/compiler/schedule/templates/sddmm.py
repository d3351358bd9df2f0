"""Schedules for sums at stored entries of an operand: sampled products of dense matrices.

In:  `forall i: forall j: let w: (forall k: w += Q[i,k] * K[j,k]); S[i,j] = A[i,j] * w`, A compressed by row.
Out: `pos j p A; split p po pi 4 tail 2 1; precompute w at po in register; split k ko ki 16 tail 8;
     order w: ko, pi, ki; precompute lanes = w over ki in register; unroll pi; vector ki; parallel i dynamic A;
     prefetch K 16`: four entries at a time share the row of Q, and their sums are reduced together.

Lanes run along the sum. Operands with the sum in another mode, `G[k,i] * X[k,j]`, are first copied transposed, as a
whole, if expected to be faster than strided reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Let, Notation, Sequence, Split
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.rewrite.nests import loop_chain, loop_names
from sparsify.compiler.schedule.sizes import NARROW_BYTES, NEAR_BYTES, Sizes

# Entries summed in parallel: each has one or two accumulators, enough to hide the latency of an fma.
TOGETHER = 4
# Prefetch distance in stored positions, for gathered rows of tables larger than twice a near cache.
AHEAD = 16
NEAR_TABLE = 2 * NEAR_BYTES
# Costs of a copied entry, and of a product of strided elements, in vectors' times.
COPIED = 3.0
APART = 3.0
# Most bytes of copies that stay in cache: larger copies are made and used in parts along the sum, each of at least four
# vectors.
COPY_BYTES = NEAR_BYTES
VECTORS = 4


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sum `temporary` over `sums`, computed for `target` at each stored entry of `mask`, with the loops `levels`."""

    temporary: str
    target: str
    sums: tuple[str, ...]
    mask: Declaration
    levels: tuple[str, ...]
    reads: tuple[Access, ...]
    taken: frozenset[str]
    has_several_masks: bool = False

    def name(self, text: str) -> str:
        """An unused name."""
        while text in self.taken:
            text += "_"
        return text

    def schedules(self, lanes: int, item_bytes: int, sizes: Sizes) -> Iterator[d.Schedule]:
        """The schedules, the best first for operands of these sizes; the last one always lowers."""
        share = d.Parallel(self.levels[0], "dynamic", self.mask.name)
        order = [d.Order(self.levels)] if len(self.levels) > 1 else []
        if lanes > 1 and (copied := self.copied(lanes, item_bytes, sizes)):
            size = self.chunk(copied, lanes, item_bytes, sizes)
            if size < sizes.extents[self.sums[-1]]:
                yield self._in_chunks(copied, lanes, size)
            yield self._with_copies(copied, lanes)
        if lanes > 1 and self.lane is not None and not self.mask.format.levels[-1].level.is_branchless:
            yield d.Schedule(
                (*order, *self._together(self.lane, lanes), share, *self._ahead(self.lane, item_bytes, sizes))
            )
        yield from self.one_at_a_time()

    def one_at_a_time(self) -> Iterator[d.Schedule]:
        """The schedules with a sum in a register for each stored entry; they always lower."""
        order = [d.Order(self.levels)] if len(self.levels) > 1 else []
        alone = d.Precompute(self.temporary, "register", at=self.levels[-1])
        yield d.Schedule((*order, alone, d.Parallel(self.levels[0], "dynamic", self.mask.name)))
        yield d.Schedule((*order, alone))

    @property
    def lane(self) -> str | None:
        """The summed index variable along which all dense operands are contiguous."""
        reads = [access for access in self.reads if set(index_names(access)) & set(self.sums)]
        last = {index_names(access.indices[-1]) for access in reads}
        return self.sums[-1] if last == {(self.sums[-1],)} else None

    def copied(self, lanes: int, item_bytes: int, sizes: Sizes) -> tuple[Access, ...]:
        """The operands to copy transposed, so that lanes run along the last sum; empty if slower."""
        reads = [access for access in self.reads if set(index_names(access)) & set(self.sums)]
        names = {name for access in reads for name in index_names(access)}
        stored, extents = sizes.stored.get(self.mask.name), sizes.extents
        across = tuple(access for access in reads if index_names(access)[-1:] != self.sums[-1:])
        tensors = [access.tensor for access in self.reads]
        is_plain = all(_is_plain(access) and tensors.count(access.tensor) == 1 for access in across)
        if not across or not is_plain or not all(self.sums[-1] in index_names(access) for access in reads):
            return ()
        if self.mask.format.levels[-1].level.is_branchless or type(stored) is not int:
            return ()
        if any(type(extents.get(name)) is not int for name in names):
            return ()
        entries = [prod(extents[name] for name in index_names(access)) for access in across]
        products = stored * prod(extents[name] for name in self.sums)
        with_copies = products / lanes + COPIED * sum(entries)
        return across if with_copies < products * APART else ()

    def chunk(self, copied: tuple[Access, ...], lanes: int, item_bytes: int, sizes: Sizes) -> int:
        """Width of the part of the last sum copied at a time: as much as stays in cache."""
        entries = [prod(sizes.extents[name] for name in index_names(access)) for access in copied]
        row = max(entries) // max(1, sizes.extents[self.sums[-1]]) * item_bytes
        step = 2 * lanes
        return max(COPY_BYTES // max(1, row) // step, VECTORS * lanes // step) * step

    def _with_copies(self, copied: tuple[Access, ...], lanes: int) -> d.Schedule:
        """Operands copied as a whole, by all threads, then lanes along the sum."""
        lane = self.sums[-1]
        names = {access: self.name(f"{access.tensor}_copy") for access in copied}
        step, within = self.name(f"{lane}o"), self.name(f"{lane}i")
        packs = [
            d.Pack(copy, access.tensor, (*_others(access, lane), lane), "", "memory")
            for access, copy in names.items()
        ]
        order = [d.Order(self.levels, self.target)] if len(self.levels) > 1 else []
        *steps, vector = self._together(lane, lanes)
        copies = self._copies(names, lane, step, within)
        share = d.Parallel(self.levels[0], "dynamic", self.mask.name, nest=self.target)
        return d.Schedule((*order, *packs, *steps, *copies, vector, share))

    def _in_chunks(self, copied: tuple[Access, ...], lanes: int, size: int) -> d.Schedule:
        """Chunks of the sum around all other loops: the copies of a chunk stay in cache while all entries read them."""
        lane = self.sums[-1]
        names = {access: self.name(f"{access.tensor}_copy") for access in copied}
        chunk, part = self.name(f"{lane}s"), self.name(f"{lane}p")
        step, within = self.name(f"{lane}o"), self.name(f"{lane}i")
        position, outer, inner, listed = self._places()
        collected = self.name(f"sum_{self.target}")
        return d.Schedule(
            (
                d.Distribute(self.temporary),
                d.Split(lane, chunk, part, size, masked=True),
                *listed,
                d.Split(position, outer, inner, TOGETHER, (2, 1)),
                d.Split(part, step, within, 2 * lanes),
                d.Order((chunk, *self.levels[:-1], outer, *self.sums[:-1], step, inner, within)),
                *(
                    d.Pack(copy, access.tensor, (*_others(access, lane), step, within), chunk, "memory")
                    for access, copy in names.items()
                ),
                d.Precompute(collected, "register", at=outer, source=self.target),
                d.Precompute(self.name("lanes"), "register", source=collected, over=within),
                d.Unroll(inner),
                *self._copies(names, lane, step, within),
                d.Vector(within),
                d.Parallel(self._outermost(outer), "dynamic", self.mask.name, nest=self.target),
            )
        )

    def _copies(
        self, names: Mapping[Access, str], lane: str, step: str, within: str
    ) -> Iterator[d.Directive]:
        """Copies made in square tiles transposed in registers, by all threads."""
        for access, copy in names.items():
            *others, row = _others(access, lane)
            yield d.Order((step, *others, row, within), copy)
            yield d.Transpose(row, within, copy)
            yield d.Parallel(step, "dynamic", nest=copy)

    def _outermost(self, position: str) -> str:
        """The loop shared by threads."""
        return self.levels[0] if len(self.levels) > 1 else position

    def _places(self) -> tuple[str, str, str, list[d.Directive]]:
        """The innermost loop by position, over groups of entries, inside a group; and the directives that create it."""
        position = self.levels[-1]
        listed: list[d.Directive] = []
        if not self.mask.format.levels[-1].level.is_full:
            position = self.name("p")
            listed.append(d.Pos(self.levels[-1], position, self.mask.name))
        return position, self.name(f"{position}o"), self.name(f"{position}i"), listed

    def _together(self, lane: str, lanes: int) -> list[d.Directive]:
        """The innermost loop in groups, their sums along the lanes."""
        position, outer, inner, steps = self._places()
        step, within = self.name(f"{lane}o"), self.name(f"{lane}i")
        return [
            *steps,
            d.Split(position, outer, inner, TOGETHER, (2, 1)),
            d.Precompute(self.temporary, "register", at=outer),
            d.Split(lane, step, within, 2 * lanes, (lanes,)),
            d.Order((*self.sums[:-1], step, inner, within), self.temporary),
            d.Precompute(self.name("lanes"), "register", source=self.temporary, over=within),
            d.Unroll(inner),
            d.Vector(within),
        ]

    def _ahead(self, lane: str, item_bytes: int, sizes: Sizes) -> list[d.Directive]:
        """Prefetches of rows gathered by the innermost stored coordinate, from distant memory."""
        # Each step along a wide row prefetches one line a row, which is cheap even if rows repeat soon.
        row_bytes = sizes.extents.get(lane, 0) * item_bytes
        is_wide = row_bytes > NARROW_BYTES
        is_far = sizes.is_far(self.levels[-1], lane, item_bytes, None if is_wide else self.mask)
        if not is_far or (is_wide and sizes.extents.get(self.levels[-1], 0) * row_bytes <= NEAR_TABLE):
            return []
        gathered = [a.tensor for a in self.reads if index_names(a)[:1] == (self.levels[-1],)]
        return [d.Prefetch(name, AHEAD) for name in dict.fromkeys(gathered)]


def sampled(program: Notation) -> Sampled | None:
    """`program` as one sampled sum, `None` for other programs."""
    chain, inner = loop_chain(program.body)
    if not isinstance(inner, Let) or not isinstance(inner.body, Sequence) or len(inner.temporaries) != 1:
        return None
    temporary, statements = inner.temporaries[0], inner.body.statements
    loops, summed = loop_chain(statements[0])
    written = statements[-1]
    if len(statements) != 2 or not isinstance(summed, Assign) or not isinstance(written, Assign):
        return None
    declared = {declaration.name: declaration for declaration in program.declarations}
    masks = {a for a in find(written, Access) if _is_mask(a, declared, program)}
    names = {_levels(program, declared[a.tensor], a) for a in masks}
    if len(names) != 1 or (levels := names.pop()) is None:
        return None
    if sorted(levels) != sorted(loop.index for loop in chain) or temporary.indices:
        return None
    mask = declared[next(iter(masks)).tensor]
    reads = tuple(find(summed.value, Access))
    taken = frozenset(loop_names(program)) | frozenset(declared)
    sums = tuple(loop.index for loop in loops)
    several = len({access.tensor for access in masks}) > 1
    return Sampled(
        temporary.name, written.target.tensor, sums, mask, levels, reads, taken, has_several_masks=several
    )


def _others(access: Access, lane: str) -> tuple[str, ...]:
    """The index variables of an access, without the lanes."""
    return tuple(name for name in index_names(access) if name != lane)


def _is_plain(access: Access) -> bool:
    """Whether all indices are distinct index variables."""
    names = [index.name for index in access.indices if isinstance(index, Index)]
    return len(set(names)) == len(access.indices)


def _is_mask(access: Access, declared: dict[str, Declaration], program: Notation) -> bool:
    found = declared.get(access.tensor)
    return found is not None and not found.format.is_dense and found.name in program.inputs


def _levels(program: Notation, declared: Declaration, access: Access) -> tuple[str, ...] | None:
    """The loop over each level of an operand, outermost first."""
    splits = {r.index: r for r in program.relations if isinstance(r, Split)}
    found = []
    for stored in declared.format.levels:
        index = access.indices[stored.expression.mode]
        if not isinstance(index, Index):
            return None
        kind, name = stored.expression.kind, index.name
        found.append(
            name if kind == "whole" else splits[name].outer if kind == "block" else splits[name].inner
        )
    return tuple(found)
