"""Schedules for row-wise chains over blocks that hold some columns of a row at a time, not the row.

In:  `S = scores of Q and K where M is stored; m max= S; P = exp(S - m); d += P; Y += P V / d`, M in blocks of 64 x 64.
Out: `..; order S: h, io, jo, ir, jt, it, is, js; ..; rescale m at ir; precompute S at ir in thread; ..`, or with
     `recompute S after m` in the place of `rescale`.

A chunk is what a block has of the rows of a strip. Of rows there are numbers and sums, for all rows of a block.
"""

from dataclasses import dataclass, replace

from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.recompute import AGAIN
from sparsify.compiler.schedule.rescale import NEXT, PART, SCALE
from sparsify.compiler.schedule.row_chain import Nest, RowChain
from sparsify.compiler.schedule.strips import Loops, Strips, kinds
from sparsify.compiler.schedule.two_passes import TwoPasses

Steps = list[d.Directive]


def with_copies(chain: RowChain, passes: TwoPasses) -> tuple[Steps, RowChain]:
    """The chain with the nests that `recompute` copies, and what copies them."""
    copies: list[Nest] = []
    for nest in chain.nests[: passes.end]:
        if nest.result in passes.again:
            target = replace(nest.assign.target, tensor=chain.fresh(nest.result + AGAIN))
            summed = chain.fresh(nest.summed + AGAIN) if nest.summed else ""
            copies.append(replace(nest, assign=replace(nest.assign, target=target), summed=summed))
    end = passes.end + 1
    nests = (*chain.nests[:end], *copies, *chain.nests[end:])
    held = (*chain.held, *(copy.result for copy in copies))
    steps: Steps = [d.Recompute(name, chain.nests[passes.end].result) for name in passes.again]
    return steps, replace(chain, nests=nests, held=held)


def held(chain: RowChain, chunk: str, rows: str) -> Steps:
    """Entries of a chunk in scratch inside one loop, numbers and sums of rows inside another one."""
    entries = {nest.result for nest in chain.nests if nest.kind in ("scores", "entries")}
    names = [nest.result for nest in chain.nests if nest.result in (*chain.held, *chain.collected)]
    return [
        *(d.Precompute(name, "thread", at=chunk) for name in names if name in entries),
        *(d.Precompute(name, "thread", at=rows) for name in names if name not in entries),
    ]


@dataclass(frozen=True, slots=True)
class Chunks:
    """The loops of strips, cut into chunks.

    Attributes:
        strips: what decides the tiles.
        passes: where the chain is cut.
    """

    strips: Strips
    passes: TwoPasses

    def recomputed(self) -> d.Schedule:
        """Two passes over the chunks of a row, of which the second computes again what it needs of the first."""
        steps, chain = with_copies(self.strips.chain, self.passes)
        return self._schedule(steps, chain, "")

    def online(self) -> d.Schedule:
        """One pass over the chunks of a row, sums rescaled where its maximum grows."""
        chain = self.strips.chain
        return self._schedule([], chain, chain.nests[self.passes.end].result)

    def _schedule(self, first: Steps, chain: RowChain, maximum: str) -> d.Schedule:
        """The schedule of a chain whose maximum is rescaled, "" for none."""
        strips = replace(self.strips, chain=chain)
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
        for nest in self.strips.chain.nests:
            steps += self.strips.packed(nest, loops)
        for nest in chain.nests:
            steps += _kinds(nest, loops, chain, maximum)
        return d.Schedule((*steps, strips.shared()))


def _order(nest: Nest, loops: Loops, chunk: tuple[str, ...]) -> d.Order:
    """The loops of a nest in their order."""
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
    """The sums of a nest in registers, over a chunk."""
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
    """What is written out and what runs in lanes."""
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
