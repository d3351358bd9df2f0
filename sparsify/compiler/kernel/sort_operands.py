"""Operands whose coordinates ascend below each parent: loops walk lists in step, search them, and close rows.

In: a tensor in `coordinate(unordered), coordinate`. Out: its entries in `coordinate, coordinate`.
"""

from dataclasses import replace
from typing import Any

from sparsify.storage.format import Format, StoredLevel
from sparsify.storage.levels import Compressed, Level
from sparsify.storage.tensor import SparseTensor


def ascending(operand: Any) -> Any:
    """The operand itself, unless it is sparse and a level of it is unordered: then its sorted twin, differentiable."""
    if not isinstance(operand, SparseTensor):
        return operand
    pattern = operand._pattern
    wanted: Format = pattern.recall(ascending) or pattern.cached(ascending, lambda: ordered(pattern.format))
    return operand if wanted is pattern.format else operand.to(format=wanted)


def ordered(format: Format) -> Format:
    """The format with ordered levels in place of unordered ones; itself when it has none.

    >>> str(ordered(Format("dense, compressed(unordered)")))
    'dense, compressed'
    """
    if all(stored.level.is_ordered for stored in format.levels):
        return format
    return Format([StoredLevel(stored.expression, _ordered_level(stored.level)) for stored in format.levels])


def _ordered_level(level: Level) -> Level:
    return replace(level, ordered=True) if isinstance(level, Compressed) else level
