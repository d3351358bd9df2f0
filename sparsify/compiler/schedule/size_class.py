"""Size classes: calls with extents and patterns of one class share a kernel and all memoized decisions.

In: an extent of 700. Out: the class of 512 to 1023, which accepts extents from 448 to 1150 once created: sizes around a
boundary do not alternate between two kernels. Every kernel is correct for all sizes, so classes affect speed only.
"""

from dataclasses import dataclass
from itertools import count
from typing import Final

from sparsify.storage.pattern import Pattern

# Extents up to this one are classes of their own, unless an existing class accepts them: they may fit vector lanes.
EXACT: Final = 64
# Numbers of stored entries up to this one are classes of their own.
FEW_STORED: Final = 2
Range = tuple[int, int]


def octave(size: int, exact: int = EXACT) -> Range:
    """The smallest and the largest size of a class: a single size up to `exact`, else from a power of two to the next.

    >>> octave(64), octave(100), octave(128)
    ((64, 64), (64, 127), (128, 255))
    """
    if size <= exact:
        return size, size
    end = 1 << size.bit_length()
    return end // 2, end - 1


def held(size: int, exact: int = EXACT) -> Range:
    """The smallest and the largest size accepted by an existing class: an eighth beyond both of its ends.

    >>> held(64), held(100)
    ((64, 64), (56, 142))
    """
    low, high = octave(size, exact)
    return (low, high) if low == high else (low - low // 8, high + high // 8)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PatternClass:
    """Patterns with similar numbers of entries, level by level and in the longest row."""

    ranges: tuple[Range, ...]

    def holds(self, counts: tuple[int, ...]) -> bool:
        """Whether a pattern with these counts belongs to the class."""
        return all(low <= count <= high for count, (low, high) in zip(counts, self.ranges, strict=True))


_generation = count()
_current = [next(_generation)]


def renew() -> None:
    """Starts a new generation: later patterns form classes of their own, and kernels depend on these patterns only.

    Training calls `renew` with each change of masks: a resumed run takes the kernels of the uninterrupted one, which
    has encountered other patterns before.
    """
    _current[0] = next(_generation)


class PatternClasses:
    """The pattern classes of one input of a kernel; each pattern memoizes its class.

    Args:
        is_turned: whether the input reads patterns in transposed order.
    """

    def __init__(self, is_turned: bool = False) -> None:
        self.is_turned = is_turned
        self.met: list[PatternClass] = []
        self._generation = _current[0]

    def of(self, pattern: Pattern) -> PatternClass:
        """The class of a pattern: the first that accepts it, else a new one."""
        kept: PatternClass | None = pattern.recall(self)
        return pattern.keep(self, self._find(pattern)) if kept is None else kept

    def _find(self, pattern: Pattern) -> PatternClass:
        if self._generation != _current[0]:
            self._generation, self.met = _current[0], []
        counts = pattern.counts(self.is_turned)
        for known in self.met:
            if len(known.ranges) == len(counts) and known.holds(counts):
                return known
        made = PatternClass(tuple([held(number, FEW_STORED) for number in counts]))
        self.met.append(made)
        return made
