"""Modes of a shape: counted from 0, in another order, with the strides of a contiguous tensor.

In: mode -1 of 3. Out: 2.
"""

from collections.abc import Sequence
from operator import index
from typing import Any


def mode_of(mode: Any, rank: int) -> int:
    """A mode counted from 0, from a mode possibly counted from the end; errors as in torch."""
    if isinstance(mode, bool) or not hasattr(mode, "__index__"):
        raise TypeError(f"a mode is an integer, not {mode!r}")
    number = index(mode)
    if not -rank <= number < rank:
        message = f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {mode})"
        raise IndexError(message)
    return number % rank


def inverse(modes: Sequence[int]) -> tuple[int, ...]:
    """The inverse of the permutation `modes`."""
    return tuple(sorted(range(len(modes)), key=lambda n: modes[n]))


def strides(shape: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor, limited to the range of integers."""
    result, step = [], 1
    for extent in reversed(shape):
        result.append(step)
        step = min(step * max(extent, 1), 2**62)
    return result[::-1]
