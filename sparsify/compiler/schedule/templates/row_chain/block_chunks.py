"""Schedules for row-wise chains over blocks that hold a chunk of columns of a row at a time, not the row.

In:  `S = scores of Q and K where M is stored; m max= S; P = exp(S - m); d += P; Y += P V / d`, M in blocks of 64 x 64.
Out: `..; order S: h, io, jo, ir, jt, it, is, js; ..; rescale m at ir; precompute S at ir in thread; ..`, or with
     `recompute S after m` in the place of `rescale`.

A chunk is the part of a block in the rows of a strip. Numbers and sums of rows are held for all rows of a block.
"""

from dataclasses import dataclass, replace

from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.directives.rescale import NEXT, PART, SCALE
from sparsify.compiler.schedule.templates.row_chain.block_rows import Loops, Strips, kinds
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain
from sparsify.compiler.schedule.templates.row_chain.chunks import Chunks, Steps, held


@dataclass(frozen=True, slots=True)
class StripChunks(Chunks[Strips]):
    """The loops of strips, cut into chunks."""

    def schedule(self, first: Steps, chain: RowChain, maximum: str) -> d.Schedule:
        """The schedule of a chain, prefixed by `first`; `maximum` names the rescaled maximum, "" for none."""
        strips = replace(self.whole, chain=chain)
        tiled, loops = strips.tiled()
        steps = [*first, *tiled]
        around = len(chain.leading) + 1
        chunk = (*loops.around[:around], loops.listed, *loops.around[around:])
        steps += [_order(nest, loops, chunk) for nest in chain.nests]
        if maximum:
            steps.append(d.Rescale(maximum, chunk[-1]))
        for nest in chain.nests:
            steps += _collected(nest, loops, chain, maximum)
        steps += held(chain, chunk[-1], chain.outer)
        for nest in self.whole.chain.nests:
            steps += self.whole.packed(nest, loops)
        for nest in chain.nests:
            steps += _kinds(nest, loops, chain, maximum)
        return d.Schedule((*steps, strips.shared()))


def _order(nest: Nest, loops: Loops, chunk: tuple[str, ...]) -> d.Order:
    """The loop order of a nest."""
    part, lane, tile, member = loops.part, loops.lane, loops.tile, loops.member
    outer, inner = loops.free.get(nest.lane, ("", ""))
    match nest.kind:
        case "scores":
            return d.Order((*chunk, part, tile, member, lane), nest.result)
        case "entries":
            return d.Order((*chunk, tile, part, member, lane), nest.result)
        case "reduction":
            return d.Order((*chunk, tile, member, part, lane), nest.result)
        case "product":
            return d.Order((*chunk, outer, *loops.tiles, part, lane, loops.within, inner), nest.result)
    if not inner:
        return d.Order((*loops.around, tile, member), nest.result)
    return d.Order((*loops.around, outer, *loops.tiles, loops.within, inner), nest.result)


def _collected(nest: Nest, loops: Loops, chain: RowChain, maximum: str) -> Steps:
    """The register accumulators of a nest, over a chunk."""
    name = chain.fresh
    match nest.kind:
        case "scores":
            return [
                d.Precompute(nest.summed, "register", at=loops.tile),
                d.Order((nest.inner, loops.member, loops.lane), nest.summed),
            ]
        case "reduction":
            row, lanes = name(f"row_{nest.result}"), name(f"lanes_{nest.result}")
            source = name(nest.result + PART) if maximum else nest.result
            return [
                d.Precompute(row, "register", at=loops.member, source=source),
                d.Precompute(lanes, "register", source=row, over=loops.lane),
            ]
        case "product" if maximum:
            return [d.Precompute(name(nest.result + PART), "register", at=loops.tiles[-1])]
        case "product":
            collected = name(f"sum_{nest.result}")
            return [d.Precompute(collected, "register", at=loops.tiles[-1], source=nest.result)]
    return []


def _kinds(nest: Nest, loops: Loops, chain: RowChain, maximum: str) -> Steps:
    """Unrolled and vectorized loops."""
    name = chain.fresh
    match nest.kind:
        case "reduction":
            lanes = [name(f"lanes_{nest.result}"), name(f"row_{nest.result}")]
            steps: Steps = [d.Vector(loops.lane, each) for each in lanes]
            rows = [nest.result, *(name(maximum + end) for end in (NEXT, SCALE) if nest.result == maximum)]
            return [*steps, *(d.Vector(loops.member, each) for each in rows if maximum)]
        case "product":
            inner = loops.free[nest.lane][1]
            summed = name(nest.result + PART) if maximum else name(f"sum_{nest.result}")
            return [
                kind
                for each in (summed, nest.result)
                for kind in (d.Unroll(loops.within, each), d.Vector(inner, each))
            ]
    return kinds(nest, loops, chain)
