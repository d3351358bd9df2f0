"""Schedules for row-wise chains over single entries: a row at a time, its entries by position in scratch.

In:  `S = scores of Q and K where M is stored; m max= S; P = exp(S - m); d += P; Y += P V / d`, M compressed by row.
Out: `pos j p M; split p po pi 8; split k ko ki 16 tail 8; split pi ps pt 4 tail 2 1; join pi in m; ..;
     order S: i, po, ps, pt; precompute w at ps in register; ..; precompute S at i in thread; ..; parallel i dynamic M`

Four scores at a time share the row of Q, and their sums are reduced together; eight entries fill a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain

# Accumulator vectors for a tile of a result row.
ROW_VECTORS: Final = 8
# Vectors of a sum read at a time for each entry; the coordinate is loaded once for all.
SUM_VECTORS: Final = 2
# The same for a long sum along an index variable that is also the lane of a result row: fewer dependent accumulations.
BOTH_VECTORS: Final = 4
# Lanes of a vector on machines with 32 registers.
WIDE_LANES: Final = 16
# Scores computed at a time, and the pieces of a remainder.
SCORES: Final = 4
SCORES_TAIL: Final = (2, 1)


@dataclass(frozen=True, slots=True)
class EntryRows:
    """The chain, and the parameters of the loops over its entries.

    Attributes:
        chain: matched chain.
        lanes: lanes of a vector.
        sizes: sizes of the operands.
    """

    chain: RowChain
    lanes: int
    sizes: Sizes

    def schedules(self) -> Iterator[d.Schedule]:
        """The schedule for single entries; empty for blocks, scalar code, or keys along the lanes."""
        turned = [nest.turned for nest in self.chain.nests if nest.kind == "scores"]
        if self.chain.adds_to_columns or any(nest.kind == "total" for nest in self.chain.nests):
            return
        if not self.chain.within_row and self.lanes > 1 and None not in turned:
            yield self.schedule()

    def schedule(self) -> d.Schedule:
        """Entries in groups of a vector, the loop order of each nest, shared temporaries in scratch."""
        chain, name = self.chain, self.chain.fresh
        position = name("p")
        group, member = name(f"{position}o"), name(f"{position}i")
        steps: list[d.Directive] = [
            *chain.fused(),
            d.Pos(chain.listed, position, chain.mask.name),
            d.Split(position, group, member, self.lanes),
        ]
        made, splits = self.splits()
        steps += made
        summed = [nest.result for nest in chain.nests if nest.kind == "scores"]
        some, one = (name("ps"), name("pt")) if summed and self.lanes > SCORES else (group, member)
        if one != member:
            steps.append(d.Split(member, some, one, SCORES, SCORES_TAIL))
            others = [n for n in chain.nests if n.kind in ("entries", "reduction", "product")]
            steps += [d.Join(member, nest.result) for nest in others]
        around = self.around()
        for nest in chain.nests:
            if nest.kind == "scores":
                loops = (*around, group, some, one) if one != member else (*around, group, member)
                steps += _summed(nest, loops, splits, chain)
            else:
                steps += _ordered(nest, around, (*around, group, member), splits, chain)
        steps += [d.Precompute(held, "thread", at=around[-1]) for held in chain.held]
        for nest in chain.nests:
            steps += _kinds(nest, one if nest.kind == "scores" else member, splits, chain)
        return d.Schedule((*steps, self.shared()))

    def around(self) -> tuple[str, ...]:
        """The loops around the entries of a row."""
        chain = self.chain
        if chain.is_row_first:
            return (chain.outer, *chain.leading)
        return (*chain.around(self.sizes), chain.outer)

    def shared(self) -> d.Parallel:
        """The parallel loop."""
        chain = self.chain
        if chain.is_row_first or chain.shares_rows(self.sizes):
            return d.Parallel(chain.outer, "dynamic", chain.balance)
        return d.Parallel(self.around()[0], "dynamic")

    def splits(self) -> tuple[list[d.Directive], dict[str, tuple[str, str]]]:
        """The split loops along rows of results and along sums, and their directives; sums decide for shared ones."""
        name = self.chain.fresh
        tail = tuple(self.lanes * count for count in (4, 2, 1))
        steps: list[d.Directive] = []
        made: dict[str, tuple[str, str]] = {}
        rows = self.chain.lanes()
        sums = dict.fromkeys(nest.inner for nest in self.chain.nests if nest.inner)
        for free in dict.fromkeys((*rows, *sums)):
            made[free] = outer, inner = name(f"{free}o"), name(f"{free}i")
            size, pieces = (SUM_VECTORS, tail[2:]) if free in sums else (ROW_VECTORS, tail)
            is_long = self.sizes.extents.get(free, 0) >= BOTH_VECTORS * self.lanes
            if free in sums and free in rows and is_long and self.lanes >= WIDE_LANES:
                size, pieces = BOTH_VECTORS, tail[1:]
            steps.append(d.Split(free, outer, inner, size * self.lanes, pieces))
        return steps, made


def _summed(
    nest: Nest, entries: tuple[str, ...], splits: dict[str, tuple[str, str]], chain: RowChain
) -> list[d.Directive]:
    """The loop order of scores, and their accumulators."""
    some, one = entries[-2:]
    outer, inner = splits[nest.inner]
    return [
        d.Order(entries, nest.result),
        d.Precompute(nest.summed, "register", at=some),
        d.Order((outer, one, inner), nest.summed),
        d.Precompute(chain.fresh(f"lanes_{nest.summed}"), "register", source=nest.summed, over=inner),
    ]


def _ordered(
    nest: Nest,
    around: tuple[str, ...],
    entries: tuple[str, ...],
    splits: dict[str, tuple[str, str]],
    chain: RowChain,
) -> list[d.Directive]:
    """The loop order of a nest, and its accumulators."""
    group, member = entries[-2:]
    outer, inner = splits.get(nest.lane or nest.inner, ("", ""))
    match nest.kind:
        case "entries":
            return [d.Order(entries, nest.result)]
        case "reduction":
            lanes = chain.fresh(f"lanes_{nest.result}")
            return [
                d.Order(entries, nest.result),
                d.Precompute(lanes, "register", source=nest.result, over=member),
            ]
        case "product":
            source = "" if nest.result in chain.collected else nest.result
            name = chain.fresh(f"sum_{nest.result}") if source else nest.result
            order = d.Order((*around, outer, group, member, inner), nest.result)
            collected = d.Precompute(name, "register", at=outer, source=source)
            # The consumers of a sum get the same loops before the join.
            rows = [
                d.Order((*around, outer, inner), n.result) for n in chain.nests if n.kind == "rows" and n.lane
            ]
            return [order, *rows, collected]
    return [] if inner else [d.Order(around, nest.result)]


def _kinds(nest: Nest, member: str, splits: dict[str, tuple[str, str]], chain: RowChain) -> list[d.Directive]:
    """Unrolled and vectorized loops."""
    _, inner = splits.get(nest.lane or nest.inner, ("", ""))
    match nest.kind:
        case "scores":
            lanes = chain.fresh(f"lanes_{nest.summed}")
            written = [d.Unroll(member, name) for name in (lanes, nest.summed, nest.result)]
            return [*written, *(d.Vector(inner, name) for name in (lanes, nest.summed))]
        case "entries":
            return [d.Vector(member, nest.result)]
        case "reduction":
            return [d.Vector(member, chain.fresh(f"lanes_{nest.result}")), d.Vector(member, nest.result)]
        case "product" if nest.result not in chain.collected:
            return [d.Vector(inner, chain.fresh(f"sum_{nest.result}")), d.Vector(inner, nest.result)]
    return [d.Vector(inner, nest.result)] if inner else []
