"""Roofline model: the least time of work on a machine, bound by arithmetic or by memory.

In: `Work(operations=27_000, streamed=1_460_000)`, a `Machine`. Out: `Limit(us=14.2, bound="L3")`.
"""

from dataclasses import dataclass

from sparsify.bench.environment import cache_sizes
from sparsify.compiler.schedule.cost.machine import Machine


@dataclass(frozen=True, slots=True)
class Work:
    """The least work of a call.

    Attributes:
        operations: multiplications and additions.
        streamed: bytes of operands and result, each counted once.
        gathered: bytes of rows gathered by stored coordinates, with repetitions.
        table: bytes of the gathered table.
    """

    operations: float
    streamed: float
    gathered: float = 0.0
    table: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """The least time, and the bound: `arithmetic`, `L1`, `L2`, `L3`, `memory` or `call`."""

    us: float
    bound: str


def limit(work: Work, machine: Machine) -> Limit:
    """The least time of a call on all threads, including the overhead of an empty call.

    Streamed bytes come from the nearest cache with room for all streamed bytes, gathered bytes from the nearest cache
    with room for the table.

    Source: the roofline model, Williams, Waterman and Patterson, 2009.
    """
    parts = (
        Limit(work.operations / machine.fma_all, "arithmetic"),
        Limit(work.streamed / machine.reads_all.at(work.streamed / machine.threads), level(work.streamed)),
        Limit(work.gathered / machine.reads_all.at(work.table), level(work.table)),
    )
    longest = max(parts, key=lambda part: part.us)
    bound = longest.bound if longest.us > machine.call_us else "call"
    return Limit(machine.call_us + longest.us, bound)


def level(size: float) -> str:
    """The nearest cache of a core with room for `size` bytes."""
    for name, kibibytes in sorted(cache_sizes().items()):
        if size <= 1024 * kibibytes:
            return name.removesuffix("_kib").upper()
    return "memory"
