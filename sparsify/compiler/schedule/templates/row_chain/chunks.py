"""Schedules for row-wise chains that hold a chunk of a row at a time, not the row: the common parts.

In:  `S = scores of Q and K where M is stored; m max= S; P = exp(S - m); d += P; Y += P V / d`, and its loops by chunks.
Out: temporaries hold numbers and sums of rows, and entries of a chunk. Statements after `m` are rescaled chunk by
     chunk, or rematerialize `S`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.directives.recompute import AGAIN
from sparsify.compiler.schedule.templates.row_chain.block_rows import Strips
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain
from sparsify.compiler.schedule.templates.row_chain.entry_rows import EntryRows
from sparsify.compiler.schedule.templates.row_chain.two_pass import TwoPasses

Steps = list[d.Directive]
Whole = TypeVar("Whole", Strips, EntryRows)


@dataclass(frozen=True, slots=True)
class Chunks(ABC, Generic[Whole]):
    """The loops over whole rows, cut into chunks.

    Attributes:
        whole: loops that hold rows as a strip.
        passes: cut of the chain into two passes.
    """

    whole: Whole
    passes: TwoPasses

    def recomputed(self) -> d.Schedule:
        """Two passes over the chunks of a row, of which the second rematerializes entries of the first."""
        steps, chain = with_copies(self.whole.chain, self.passes)
        return self.schedule(steps, chain, "")

    def online(self) -> d.Schedule:
        """One pass over the chunks of a row; sums are rescaled when the running maximum grows."""
        chain = self.whole.chain
        return self.schedule([], chain, chain.nests[self.passes.end].result)

    @abstractmethod
    def schedule(self, first: Steps, chain: RowChain, maximum: str) -> d.Schedule:
        """The schedule of a chain, prefixed by `first`; `maximum` names the rescaled maximum, "" for none."""


def with_copies(chain: RowChain, passes: TwoPasses) -> tuple[Steps, RowChain]:
    """The chain with the nests copied by `recompute`, and the directives that copy them."""
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
