"""Schedules put together from single decisions, each directive where it applies.

In: `order i, k, j; parallel i` and `precompute a = Y at k in register`. Out: `order i, k, j; precompute a = Y at k in
register; parallel i`: tiles come first, then orders, temporaries, kinds of loops, threads, prefetches.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeGuard

from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.search.facts import Chain, Facts

RANKS: Final[Mapping[type[d.Directive], int]] = {
    d.Pos: 0,
    d.Split: 0,
    d.Order: 1,
    d.Precompute: 2,
    d.Merge: 5,
    d.Vector: 6,
    d.Unroll: 6,
    d.Parallel: 7,
    d.Prefetch: 8,
}
# The rank from which on directives of one rank may change places.
INDEPENDENT: Final = 3


def rank(directive: d.Directive) -> int:
    """The place of a directive among others: places of temporaries, then accumulators, then partial results."""
    if isinstance(directive, d.Precompute):
        return 4 if directive.over else 3 if directive.source else 2
    return RANKS[type(directive)]


def extended(schedule: d.Schedule, *more: d.Directive) -> d.Schedule:
    """The schedule with further directives, in the order in which they apply; independent ones by their text."""

    def place(directive: d.Directive) -> tuple[int, str]:
        own = rank(directive)
        return own, str(directive) if own >= INDEPENDENT else ""

    return d.Schedule(tuple(sorted((*schedule.directives, *more), key=place)))


def placed(schedule: d.Schedule, place: d.Precompute) -> d.Schedule:
    """The schedule with a temporary in a place; in a register, the temporary is its own accumulator."""
    parts: list[d.Directive] = []
    name = next((p.temporary for p in schedule.directives if _accumulates(p, place.temporary)), "")
    for part in schedule.directives:
        if place.scope != "register" or not name or not isinstance(part, d.Precompute):
            parts.append(part)
        elif part.temporary != name:
            parts.append(replace(part, source=place.temporary) if part.source == name else part)
    return extended(d.Schedule(tuple(parts)), place)


def _accumulates(part: d.Directive, name: str) -> TypeGuard[d.Precompute]:
    """Whether a directive introduces the accumulator of a temporary."""
    return isinstance(part, d.Precompute) and not part.over and part.source == name


def start(facts: Facts) -> d.Schedule:
    """Every chain in an order concordant with its operands."""
    return d.Schedule(tuple(d.Order(chain.loops, chain.nest) for chain in facts.chains))


def order_of(schedule: d.Schedule, number: int) -> tuple[str, ...]:
    """The loops of a chain: each chain has an order, in the order of the chains."""
    return [part for part in schedule.directives if isinstance(part, d.Order)][number].indices


def path(schedule: d.Schedule, facts: Facts, number: int) -> tuple[str, ...]:
    """All loops around the assignment of a chain, outermost first."""
    outer = facts.chains[number].outer
    above = path(schedule, facts, outer) if outer >= 0 else ()
    return above + order_of(schedule, number)


def with_order(schedule: d.Schedule, number: int, loops: tuple[str, ...]) -> d.Schedule:
    """The schedule with another order of a chain."""
    orders = [n for n, part in enumerate(schedule.directives) if isinstance(part, d.Order)]
    parts = list(schedule.directives)
    parts[orders[number]] = replace(parts[orders[number]], indices=loops)  # type: ignore[call-arg]
    return d.Schedule(tuple(parts))


def splits(schedule: d.Schedule) -> dict[str, d.Split]:
    """The tiles of a schedule by the name of both loops."""
    found = [part for part in schedule.directives if isinstance(part, d.Split)]
    return {name: part for part in found for name in (part.outer, part.inner)}


def root(schedule: d.Schedule, loop: str) -> str:
    """The index variable that a loop belongs to."""
    tiles = splits(schedule)
    positions = {part.position: part.index for part in schedule.directives if isinstance(part, d.Pos)}
    while loop in tiles or loop in positions:
        loop = tiles[loop].index if loop in tiles else positions[loop]
    return loop


def is_lane(schedule: d.Schedule, loop: str) -> bool:
    """Whether a loop runs in vector lanes or in registers side by side."""
    kinds = [part for part in schedule.directives if isinstance(part, d.Vector | d.Unroll)]
    return any(part.index == loop for part in kinds)


def accumulator(schedule: d.Schedule, chain: Chain) -> str:
    """The register that collects the sum of a chain, "" without one."""
    if chain.assign is None or chain.assign.monoid is None:
        return ""
    target = chain.assign.target.tensor
    for part in schedule.directives:
        if not isinstance(part, d.Precompute) or part.over or part.scope != "register":
            continue
        if target == (part.source or part.temporary):
            return part.temporary
    return ""


def accumulating(schedule: d.Schedule, facts: Facts, number: int) -> d.Precompute | None:
    """The accumulator of a chain's sum inside the loops of its result; `None` if a register cannot hold it."""
    chain = facts.chains[number]
    if chain.assign is None or chain.assign.monoid is None or is_assembled_by_rows(schedule, chain):
        return None
    own = set(index_names(chain.assign.target))
    loops = path(schedule, facts, number)
    inner = {tile.inner for tile in splits(schedule).values()}
    depth = next((n for n, loop in enumerate(loops) if root(schedule, loop) not in own), len(loops))
    if any(root(schedule, loop) in own and loop not in inner for loop in loops[depth:]):
        return None
    target = chain.assign.target.tensor
    above = [loop for loop in loops[:depth] if loop not in inner or not is_lane(schedule, loop)]
    return d.Precompute(f"sum_{target}", "register", at=above[-1] if above else "", source=target)


def collected(schedule: d.Schedule, facts: Facts, number: int) -> tuple[d.Schedule, str] | None:
    """The schedule with an accumulator of a chain's sum, and the accumulator; `None` without one."""
    if found := accumulator(schedule, facts.chains[number]):
        return schedule, found
    new = accumulating(schedule, facts, number)
    return None if new is None else (extended(schedule, new), new.temporary)


def is_assembled(chain: Chain, facts: Facts) -> bool:
    """Whether a chain writes a result whose pattern the kernel computes."""
    declared = facts.declared.get(chain.assign.target.tensor) if chain.assign is not None else None
    return declared is not None and declared.is_assembled


def is_assembled_by_rows(schedule: d.Schedule, chain: Chain) -> bool:
    """Whether the sum of a chain is scattered into a workspace."""
    target = "" if chain.assign is None else chain.assign.target.tensor
    kept = [part for part in schedule.directives if isinstance(part, d.Precompute)]
    return any((part.listed or part.marked) and target in (part.source, part.temporary) for part in kept)


def tidy(schedule: d.Schedule) -> d.Schedule:
    """The schedule without orders of single loops."""
    kept = [p for p in schedule.directives if not isinstance(p, d.Order) or len(p.indices) > 1]
    return d.Schedule(tuple(kept))
