"""Programs whose statements become one kernel: row-wise chains, where the cost model expects that to be faster.

In:  `S = Q K where M is stored; m max= S; P = exp(S - m); d += P; Y += P V / d`, the sizes of the operands.
Out: `Fusion(chain, fused_us=2700, apart_us=21_000)`: one kernel.

A fused chain moves operands and results alone, and both of its products run in register tiles.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import dropwhile
from math import prod
from typing import Final

from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.nodes import Program
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.lane_width import lane_bytes, lanes
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule.cost.machine import scaled
from sparsify.compiler.schedule.cost.matmul import kernel_us
from sparsify.compiler.schedule.cost.statement import known_extents, statement_us, tensor_bytes
from sparsify.compiler.schedule.rewrite.apply import apply
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.block_cost import chain_us
from sparsify.compiler.schedule.templates.row_chain.chain import RowChain, row_chain
from sparsify.compiler.schedule.templates.row_chain.entry_cost import EntryCost
from sparsify.compiler.schedule.templates.row_chain.strategies import RowWay, row_ways
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError
from sparsify.options import current
from sparsify.runtime.threads import count

WAYS: Final = {
    "strip": "as a strip in scratch",
    "online": "by chunks, sums rescaled",
    "recomputed": "by chunks, computed again",
}


@dataclass(frozen=True, slots=True)
class Fusion:
    """A chain as one kernel and as a kernel for each statement.

    Attributes:
        chain: what is computed.
        results: of the statements, in order.
        fused_us, apart_us: the expected times of a call; `None` where sizes are not known.
        moved: bytes that the temporaries take, which one kernel does not move.
        ways: to hold a row, the best first, each with the time of one kernel.
    """

    chain: RowChain
    results: tuple[str, ...]
    fused_us: float | None = None
    apart_us: float | None = None
    moved: int = 0
    ways: tuple[tuple[RowWay, float], ...] = ()

    @property
    def is_faster(self) -> bool:
        """Whether one kernel is expected to be faster; it is where nothing is known."""
        return self.fused_us is None or self.apart_us is None or self.fused_us <= self.apart_us

    def __str__(self) -> str:
        names = ", ".join(self.results)
        if self.fused_us is None or self.apart_us is None:
            return f"{names}: one kernel, row by row, since sizes are not known"
        times = f"one kernel {self.fused_us:,.0f} us, a kernel each {self.apart_us:,.0f} us"
        held = f"{self.moved:,} bytes of temporaries stay with their rows"
        return f"{names}: {times}; " + (held if self.is_faster else "cut, since one kernel loses")

    def held(self) -> list[str]:
        """A line for each way to hold a row, the one that is taken first."""
        lines = (f"rows {WAYS[way.name]}: {us:,.0f} us; {way.why}" for way, us in self.ways)
        return list(dict.fromkeys(lines))


def fusion(program: Program, sizes: Sizes) -> Fusion | None:
    """The chain that all statements of `program` are, with what it costs; `None` when they are none.

    Args:
        program: with every operand as it is stored.
        sizes: of the operands.
    """
    if len(program.statements) < 2:
        return None
    inferred = infer_format(program)
    if all(inferred.declaration(s.target.tensor).format.is_dense for s in inferred.statements):
        return None
    try:
        plain = concretize(inferred)
    except UnsupportedProgramError:
        return None
    chain = row_chain(plain)
    if chain is None:
        return None
    width, item_bytes = lanes(plain, target.vector_bytes(current())), lane_bytes(plain)
    ways = row_ways(chain, width, item_bytes, sizes)
    if not ways:
        return None
    results = tuple(statement.target.tensor for statement in inferred.statements)
    extents = known_extents(inferred, sizes.extents)
    names = {name for declared in inferred.declarations for name in declared.extents}
    if chain.mask.name not in sizes.stored or not names <= extents.keys():
        return Fusion(chain, results) if _legal(plain, ways) else None
    if ways[0].extra_us is None:
        ways = row_ways(chain, width, item_bytes, replace(sizes, extents=extents))
    found = _priced(inferred, chain, results, extents, sizes.stored, ways, item_bytes)
    if not found.is_faster:
        return found  # nobody asks for its loops
    held = dict(found.ways)
    legal = _legal(plain, ways)
    return replace(found, ways=tuple((way, held[way]) for way in legal)) if legal else None


def _legal(plain: Notation, ways: tuple[RowWay, ...]) -> tuple[RowWay, ...]:
    """The ways to hold a row, from the best one on that the loops can become: plain ones are slower than no fusion."""

    def is_refused(way: RowWay) -> bool:
        try:
            apply(plain, way.schedule)
        except (ScheduleError, DiscordantError, UnsupportedProgramError):
            return True
        return False

    return tuple(dropwhile(is_refused, ways))


def _priced(
    program: Program,
    chain: RowChain,
    results: tuple[str, ...],
    extents: Mapping[str, int],
    stored: Mapping[str, int],
    ways: tuple[RowWay, ...],
    item_bytes: int,
) -> Fusion:
    """The chain with the times of one kernel and of a kernel for each statement, priced alike."""
    # As it is assumed: what becomes one kernel must not depend on a busy minute.
    machine = scaled(count(current()), target.vector_bytes(current()))
    around = prod(extents[name] for name in chain.leading)
    sparse = [d for d in program.declarations if not d.format.is_dense and d.name not in stored]
    counts = {**stored, **{declared.name: around * stored[chain.mask.name] for declared in sparse}}
    given = [d for d in program.declarations if d.name in (*program.inputs, *program.outputs)]
    inside = [d for d in program.declarations if d.name not in (*program.inputs, *program.outputs)]
    moved = 0
    if chain.within_row:
        moved = sum(tensor_bytes(declared, extents, counts) for declared in given)
        busy = chain_us(program, chain, extents, counts, machine, item_bytes)
        apart = sum(statement_us(program, s, extents, counts, machine) for s in program.statements)
    else:  # what both forms move is a part of their loops
        cost = EntryCost.of(program, chain, extents, stored[chain.mask.name], machine, item_bytes)
        busy = cost.fused_us()
        apart = sum(kernel_us(cost.apart_us(nest), moved, machine) for nest in chain.nests)
    held = sum(tensor_bytes(declared, extents, counts) for declared in inside)
    held_us = tuple((way, kernel_us(busy + (way.extra_us or 0.0), moved, machine)) for way in ways)
    # How a row is held counts among the ways alone: apart, no more than the bytes of temporaries are counted.
    return Fusion(chain, results, kernel_us(busy, moved, machine), apart, held, held_us)
