"""Fusion of row-wise chains into one kernel, if the cost model expects it to be faster.

In:  `S = Q K where M is stored; m max= S; P = exp(S - m); d += P; Y += P V / d`, the sizes of the operands.
Out: `Fusion(chain, fused_us=2700, apart_us=21_000)`: one kernel.

A fused chain moves operands and results only, and both of its products run in register tiles.
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
from sparsify.compiler.schedule.directives import apply
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
    """A chain, priced as one kernel and as a kernel for each statement.

    Attributes:
        chain: the matched statements.
        results: results of the statements, in order.
        fused_us, apart_us: expected times of a fused and of a separate call; `None` for unknown sizes.
        moved: bytes of the temporaries, which the fused kernel does not move.
        ways: strategies for holding a row, the best first, each with the time of the fused kernel.
    """

    chain: RowChain
    results: tuple[str, ...]
    fused_us: float | None = None
    apart_us: float | None = None
    moved: int = 0
    ways: tuple[tuple[RowWay, float], ...] = ()

    @property
    def is_faster(self) -> bool:
        """Whether one kernel is expected to be faster; true for unknown sizes."""
        return self.fused_us is None or self.apart_us is None or self.fused_us <= self.apart_us

    def __str__(self) -> str:
        names = ", ".join(self.results)
        if self.fused_us is None or self.apart_us is None:
            return f"{names}: one kernel, row by row, since sizes are not known"
        times = f"one kernel {self.fused_us:,.0f} us, a kernel each {self.apart_us:,.0f} us"
        held = f"{self.moved:,} bytes of temporaries stay with their rows"
        return f"{names}: {times}; " + (held if self.is_faster else "cut, since one kernel loses")

    def held(self) -> list[str]:
        """A report line for each strategy for holding a row, the chosen one first."""
        lines = (f"rows {WAYS[way.name]}: {us:,.0f} us; {way.why}" for way, us in self.ways)
        return list(dict.fromkeys(lines))


def fusion(program: Program, sizes: Sizes) -> Fusion | None:
    """All statements of `program` as a row-wise chain, priced; `None` for other programs.

    Args:
        program: statements with every operand as stored.
        sizes: sizes of the operands.
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
        return found  # its loops are never lowered
    held = dict(found.ways)
    legal = _legal(plain, ways)
    return replace(found, ways=tuple((way, held[way]) for way in legal)) if legal else None


def _legal(plain: Notation, ways: tuple[RowWay, ...]) -> tuple[RowWay, ...]:
    """The strategies from the first one whose schedule applies: the plain loops before it are slower than no fusion."""

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
    """The chain with the times of the fused kernel and of separate kernels, from the same cost model."""
    # The assumed machine, not a measured one: fusion must not depend on the momentary load.
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
    else:  # the loop costs include the memory traffic of both forms
        cost = EntryCost.of(program, chain, extents, stored[chain.mask.name], machine, item_bytes)
        busy = cost.fused_us()
        apart = sum(kernel_us(cost.apart_us(nest), moved, machine) for nest in chain.nests)
    held = sum(tensor_bytes(declared, extents, counts) for declared in inside)
    held_us = tuple((way, kernel_us(busy + (way.extra_us or 0.0), moved, machine)) for way in ways)
    # The extra cost of a strategy ranks the strategies only: the separate kernels count no such cost either.
    return Fusion(chain, results, kernel_us(busy, moved, machine), apart, held, held_us)
