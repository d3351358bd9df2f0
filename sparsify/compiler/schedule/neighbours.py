"""Schedules that differ from one in a single decision: what is timed beside it.

In: `split k ko ki 128; order i, ko, j, ki; precompute w at ko in register; vector ki; parallel i dynamic A`. Out: the
same with tiles of 64, with `parallel i balanced A`, and with tiles of 256.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from sparsify.compiler.schedule.directives import Directive, Parallel, Prefetch, Schedule, Split, Vector

# Iterations of a tile of lanes at least.
LEAST_TILE: Final = 16
POLICIES: Final = {"dynamic": "balanced", "balanced": "dynamic"}


def neighbours(schedule: Schedule, extents: Mapping[str, int]) -> Iterator[Schedule]:
    """The schedules that differ in one decision, those first that pay most often; each is right where it lowers.

    Args:
        schedule: the one that is expected to be best.
        extents: of index variables; no tile is made larger than its loop.
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
    for change in (tile(lambda size: size // 2), policy, tile(lambda size: size * 2), unasked):
        made = Schedule(tuple(new for part in schedule.directives if (new := change(part)) is not None))
        if made not in seen:
            seen.add(made)
            yield made
