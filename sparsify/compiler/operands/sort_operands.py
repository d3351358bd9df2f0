"""Operands with ascending coordinates below each parent: loops co-iterate lists, search lists, and close rows.

In: a tensor in `coordinate(unordered), coordinate`. Out: the same entries in `coordinate, coordinate`.
"""

from dataclasses import replace
from typing import Any

from sparsify.storage.format import Format, StoredLevel
from sparsify.storage.level.levels import Compressed, Level
from sparsify.storage.tensor import SparseTensor


def ascending(operand: Any) -> Any:
    """The operand itself, or its sorted copy if a level of a sparse operand is unordered; differentiable."""
    if not isinstance(operand, SparseTensor):
        return operand
    pattern = operand._pattern
    wanted: Format = pattern.recall(ascending) or pattern.cached(ascending, lambda: ordered(pattern.format))
    return operand if wanted is pattern.format else operand.to(format=wanted)


def ordered(format: Format) -> Format:
    """The format with ordered levels in place of unordered ones; the same object if all are ordered.

    >>> str(ordered(Format("dense, compressed(unordered)")))
    'dense, compressed'
    """
    if not any(_is_unsorted(stored.level) for stored in format.levels):
        return format
    return Format([StoredLevel(stored.expression, _ordered_level(stored.level)) for stored in format.levels])


def _is_unsorted(level: Level) -> bool:
    """Whether a level lists coordinates in any order; hash levels are searched in the order that they have."""
    return isinstance(level, Compressed) and not level.is_ordered


def _ordered_level(level: Level) -> Level:
    return replace(level, ordered=True) if isinstance(level, Compressed) else level
