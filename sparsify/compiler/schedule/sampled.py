"""Schedules for sums that are needed where an operand is stored: sampled products of dense matrices.

In:  `forall i: forall j: let w: (forall k: w += Q[i,k] * K[j,k]); S[i,j] = A[i,j] * w`, A compressed by row.
Out: `pos j p A; split p po pi 4 tail 2 1; precompute w at po in register; split k ko ki 16 tail 8;
     order w: ko, pi, ki; precompute lanes = w over ki in register; unroll pi; vector ki; parallel i dynamic A;
     prefetch K 16`: four entries at a time share the row of Q, and their sums are reduced together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Let, Notation, Sequence, Split
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.chains import loop_chain, loop_names
from sparsify.compiler.schedule.sizes import NARROW_BYTES, NEAR_BYTES, Sizes

# Entries whose sums run side by side: each keeps a register or two, and their number hides the latency of an fma.
TOGETHER = 4
# How many stored positions ahead gathered rows are asked for, of tables larger than twice a near cache.
AHEAD = 16
NEAR_TABLE = 2 * NEAR_BYTES


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sum `temporary` over `sums`, computed at each stored entry of `mask`, whose levels are `levels`."""

    temporary: str
    sums: tuple[str, ...]
    mask: Declaration
    levels: tuple[str, ...]
    reads: tuple[Access, ...]
    taken: frozenset[str]

    def name(self, text: str) -> str:
        """A name that no loop and no tensor has."""
        while text in self.taken:
            text += "_"
        return text

    def schedules(self, lanes: int, item_bytes: int, sizes: Sizes) -> Iterator[d.Schedule]:
        """The best one first for operands of these sizes; the last one always lowers."""
        share = d.Parallel(self.levels[0], "dynamic", self.mask.name)
        order = [d.Order(self.levels)] if len(self.levels) > 1 else []
        if lanes > 1 and self.lane is not None and not self.mask.format.levels[-1].level.is_branchless:
            yield d.Schedule(
                (*order, *self._together(self.lane, lanes), share, *self._ahead(self.lane, item_bytes, sizes))
            )
        alone = d.Precompute(self.temporary, "register", at=self.levels[-1])
        yield d.Schedule((*order, alone, share))
        yield d.Schedule((*order, alone))

    @property
    def lane(self) -> str | None:
        """The summed index variable along which all dense operands are contiguous."""
        reads = [access for access in self.reads if set(index_names(access)) & set(self.sums)]
        last = {index_names(access.indices[-1]) for access in reads}
        return self.sums[-1] if last == {(self.sums[-1],)} else None

    def _together(self, lane: str, lanes: int) -> list[d.Directive]:
        """The innermost loop in groups, their sums along the lanes."""
        position = self.levels[-1]
        steps: list[d.Directive] = []
        if not self.mask.format.levels[-1].level.is_full:
            position = self.name("p")
            steps.append(d.Pos(self.levels[-1], position, self.mask.name))
        outer, inner = self.name(f"{position}o"), self.name(f"{position}i")
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
        """Rows that the innermost stored coordinate picks, from memory too large to be near."""
        # Each step along a wide row asks for one line a row, which costs little even where rows come again soon.
        row_bytes = sizes.extents.get(lane, 0) * item_bytes
        is_wide = row_bytes > NARROW_BYTES
        is_far = sizes.is_far(self.levels[-1], lane, item_bytes, None if is_wide else self.mask)
        if not is_far or (is_wide and sizes.extents.get(self.levels[-1], 0) * row_bytes <= NEAR_TABLE):
            return []
        gathered = [a.tensor for a in self.reads if index_names(a)[:1] == (self.levels[-1],)]
        return [d.Prefetch(name, AHEAD) for name in dict.fromkeys(gathered)]


def sampled(program: Notation) -> Sampled | None:
    """The one sampled sum that `program` is, `None` when it is anything else."""
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
    return Sampled(temporary.name, tuple(loop.index for loop in loops), mask, levels, reads, taken)


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
