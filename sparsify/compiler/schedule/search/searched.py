"""Searched schedules of a program, when a search pays, and a memo of them.

In: the notation of a program without a template, its sizes, its default schedules. Out: the best schedules of the
search, the estimates of the best and of the default, and the number of estimated schedules:

    searched 14 schedules, estimated 184 us, default 349 us
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from sparsify.compiler.ir.memo import recall, remember
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule.directives import Schedule
from sparsify.compiler.schedule.search.beam import MOST, completed, estimate, search
from sparsify.compiler.schedule.search.facts import facts_of
from sparsify.compiler.schedule.sizes import Sizes

# Least estimated time of the default for which a search pays: it takes tens of milliseconds, once.
LEAST_US: Final = 100.0
# The share of the default's estimate below which a searched schedule comes first: estimates are no measurements.
GAIN: Final = 0.8
# Estimated schedules: one for each so many microseconds of the default, within bounds.
US_EACH: Final = 10.0
FEWEST: Final = 16
# Most searched schedules that are offered.
OFFERED: Final = 3


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search.

    Attributes:
        schedules: the best schedules, ascending by estimate.
        estimates: their estimated times in microseconds.
        default_us: the estimate of the default schedule.
        tried: number of estimated schedules.
    """

    schedules: tuple[Schedule, ...]
    estimates: tuple[float, ...]
    default_us: float
    tried: int

    @property
    def better(self) -> tuple[Schedule, ...]:
        """The schedules whose estimates are well below that of the default."""
        pairs = zip(self.schedules, self.estimates, strict=True)
        return tuple(schedule for schedule, us in pairs if us <= GAIN * self.default_us)

    def said(self, schedule: Schedule) -> str:
        """The reason for a schedule; empty for a schedule that is not one of the search."""
        if schedule not in self.schedules:
            return ""
        us = self.estimates[self.schedules.index(schedule)]
        return f"searched {self.tried} schedules, estimated {us:.0f} us, default {self.default_us:.0f} us"


_NONE: Final = Searched((), (), inf, 0)
_memory: dict[Any, Searched] = {}


def searched(
    plain: Notation,
    lanes: int,
    item_bytes: int,
    sizes: Sizes,
    order: tuple[str, ...],
    defaults: Iterable[Schedule],
    least_us: float = LEAST_US,
) -> Searched | None:
    """The searched schedules of a program; `None` for unknown sizes, little work, and loops that are not counted.

    Args:
        plain: notation before its schedule.
        lanes: elements of the result's dtype in a vector register.
        item_bytes: bytes of such an element.
        sizes: sizes of the operands.
        order: loop order, if chosen by cost.
        defaults: schedules without a search; the first one that applies is the default.
        least_us: least estimate of the default for which a search is made.
    """
    key = (plain, lanes, item_bytes, order, least_us, _key(plain, sizes))
    found = recall(_memory, key)
    if found is None:
        found = _search(plain, lanes, item_bytes, sizes, order, defaults, least_us) or _NONE
        remember(_memory, key, found)
    return found if found.schedules else None


def _key(plain: Notation, sizes: Sizes) -> tuple[Any, ...]:
    """The sizes that determine a search; the reaches of operands decide which tables are prefetched."""
    distinct = tuple((name, tuple(sorted(sizes.distinct(name).items()))) for name in plain.inputs)
    stored = tuple((name, sizes.stored.get(name), sizes.reach(name)) for name in plain.inputs)
    return tuple(sorted(sizes.extents.items())), stored, distinct


def _search(
    plain: Notation,
    lanes: int,
    item_bytes: int,
    sizes: Sizes,
    order: tuple[str, ...],
    defaults: Iterable[Schedule],
    least_us: float,
) -> Searched | None:
    """A search that is not remembered."""
    if not sizes.extents or (facts := facts_of(plain, lanes, item_bytes, sizes, order)) is None:
        return None
    if any(name not in facts.extents for chain in facts.chains for name in chain.loops):
        return None
    default_us = next((us for one in defaults if (us := estimate(one, facts)) < inf), inf)
    if not least_us <= default_us < inf:
        return None
    found, tried = search(facts, int(min(MOST, max(FEWEST, default_us / US_EACH))))
    best = {completed(one.schedule, facts)[0]: one.us for one in reversed(found)}
    ordered = sorted(best, key=lambda schedule: (best[schedule], str(schedule)))[:OFFERED]
    return Searched(tuple(ordered), tuple(best[one] for one in ordered), default_us, tried)
