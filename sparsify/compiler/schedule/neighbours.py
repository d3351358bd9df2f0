"""Neighbouring schedules, different in a single decision: candidates of autotuning.

In: `split k ko ki 128; order i, ko, j, ki; precompute w at ko in register; vector ki; parallel i dynamic A`. Out: the
same with tiles of 64, with `parallel i balanced A`, with tiles of 256, and with the tiles as the outermost loop,
`order ko, i, j, ki`: all rows of one tile of columns, whose operand stays in the cache, then those of the next.

Source of the outermost tiles: algorithm 3 of Yan, Root, Gale, Broman and Kjolstad, Scorch, 2024.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from sparsify.compiler.schedule.directives import (
    Directive,
    Order,
    Parallel,
    Precompute,
    Prefetch,
    Schedule,
    Split,
    Vector,
)

# Fewest iterations of a tile of lanes.
LEAST_TILE: Final = 16
POLICIES: Final = {"dynamic": "balanced", "balanced": "dynamic"}


def neighbours(schedule: Schedule, extents: Mapping[str, int]) -> Iterator[Schedule]:
    """The schedules with one decision changed, the most promising first; each is correct if it lowers.

    Args:
        schedule: schedule expected to be the best.
        extents: extents of index variables; no tile exceeds its loop.
    """
    lanes = {part.index for part in schedule.directives if isinstance(part, Vector)}

    def tile(size: Callable[[int], int]) -> Callable[[Directive], Directive | None]:
        def change(part: Directive) -> Directive | None:
            match part:
                case Split(index=index, inner=inner, size=now, tail=tail) if inner in lanes:
                    wanted = size(now)
                    if wanted < LEAST_TILE or (wanted > now and extents.get(index, 0) <= now):
                        return part
                    return replace(part, size=wanted, tail=tuple(piece for piece in tail if piece < wanted))
            return part

        return change

    def policy(part: Directive) -> Directive | None:
        if isinstance(part, Parallel) and part.policy in POLICIES:
            return replace(part, policy=POLICIES[part.policy])
        return part

    def unasked(part: Directive) -> Directive | None:
        return None if isinstance(part, Prefetch) else part

    seen = {schedule}
    outermost = _outermost_tiles(schedule, extents)
    for change in (tile(lambda size: size // 2), policy, tile(lambda size: size * 2), outermost, unasked):
        made = Schedule(tuple(new for part in schedule.directives if (new := change(part)) is not None))
        if made not in seen:
            seen.add(made)
            yield made


def _outermost_tiles(
    schedule: Schedule, extents: Mapping[str, int]
) -> Callable[[Directive], Directive | None]:
    """Moves the loop over several tiles of lanes to the outside: `order i, ko, j, ki -> order ko, i, j, ki`.

    Accumulators inside the tile's loop move inside the loop that preceded the tile's.
    """
    lanes = {part.index for part in schedule.directives if isinstance(part, Vector)}
    tiles = [
        part.outer
        for part in schedule.directives
        if isinstance(part, Split) and part.inner in lanes and extents.get(part.index, 0) > part.size
    ]

    def change(part: Directive) -> Directive | None:
        if isinstance(part, Order) and (moved := [name for name in part.indices if name in tiles]):
            rest = [name for name in part.indices if name not in moved]
            return replace(part, indices=(*moved, *rest))
        if isinstance(part, Precompute) and part.at in tiles:
            return replace(part, at=before.get(part.at, part.at))
        return part

    before = {
        name: part.indices[place]
        for part in schedule.directives
        if isinstance(part, Order)
        for place, name in enumerate(part.indices[1:])
        if name in tiles
    }
    return change
