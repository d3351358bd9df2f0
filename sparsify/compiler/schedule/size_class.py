"""Classes of sizes: calls whose extents and patterns are of one class share a kernel and what follows from it.

In: an extent of 700. Out: the class of 512 to 1023, which holds extents from 448 to 1150 once it was met: sizes around
an end do not take turns between two kernels. Every kernel is right for all sizes, so classes decide speed alone.
"""

from dataclasses import dataclass
from typing import Final

from sparsify.storage.pattern import Pattern

# Extents up to this one are classes of their own, unless one that holds them was met: they may be numbers of lanes.
EXACT: Final = 64
# Numbers of stored entries up to this one are.
FEW_STORED: Final = 2
Range = tuple[int, int]


def octave(size: int, exact: int = EXACT) -> Range:
    """The lowest and the largest size of a class: a size by itself up to `exact`, else from a power of two to the next.

    >>> octave(64), octave(100), octave(128)
    ((64, 64), (64, 127), (128, 255))
    """
    if size <= exact:
        return size, size
    end = 1 << size.bit_length()
    return end // 2, end - 1


def held(size: int, exact: int = EXACT) -> Range:
    """The lowest and the largest size that a class holds once it was met: an eighth beyond both of its ends.

    >>> held(64), held(100)
    ((64, 64), (56, 142))
    """
    low, high = octave(size, exact)
    return (low, high) if low == high else (low - low // 8, high + high // 8)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PatternClass:
    """Patterns of about the same numbers of entries, level by level, and in the longest row."""

    ranges: tuple[Range, ...]

    def holds(self, counts: tuple[int, ...]) -> bool:
        """Whether a pattern with these numbers is one of them."""
        return all(low <= count <= high for count, (low, high) in zip(counts, self.ranges, strict=True))


class PatternClasses:
    """The classes of the patterns that one input of a kernel has met; each pattern keeps its class.

    Args:
        is_turned: whether the input reads patterns in the other order of their modes.
    """

    def __init__(self, is_turned: bool = False) -> None:
        self.is_turned = is_turned
        self.met: list[PatternClass] = []

    def of(self, pattern: Pattern) -> PatternClass:
        """The class of a pattern: the first that holds it, else a new one."""
        kept: PatternClass | None = pattern.recall(self)
        return pattern.keep(self, self._find(pattern)) if kept is None else kept

    def _find(self, pattern: Pattern) -> PatternClass:
        counts = pattern.counts(self.is_turned)
        for known in self.met:
            if len(known.ranges) == len(counts) and known.holds(counts):
                return known
        made = PatternClass(tuple([held(count, FEW_STORED) for count in counts]))
        self.met.append(made)
        return made
