"""Parts of large operands, to time kernels without a whole call.

In: `Y[i,k] = sum(j, A[i,j] * T[j,k])` with an expected time of 240 ms, and A and T. Out: four ranges of rows of A, in
sum a 24th of all rows, and T unchanged: the rows of T read by a kernel have the same distances as in a whole call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import torch

from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.storage.tensor import SparseTensor

Operands = tuple[torch.Tensor, ...]
# Target time of all parts; calls expected to take less than LEAST_PARTS times as long are timed whole.
PART_US: Final = 10_000.0
LEAST_PARTS: Final = 4
# Number of evenly spread ranges of contiguous rows, and the minimum rows of each.
RANGES: Final = 4
LEAST_ROWS: Final = 512


@dataclass(frozen=True)
class Parts:
    """Operands of a statement for ranges of one index.

    Attributes:
        share: share of the index covered by all ranges, 1 for the whole.
        operands: operands of a call for each range.
    """

    share: float
    operands: tuple[Operands, ...]


def parts_of(step: GeneratedStep, operands: Operands, expected_us: float) -> Parts:
    """The ranges for timing a statement; the whole for a short call, or without a divisible index.

    Args:
        operands: operands of a whole call, in the order of `step.operands`.
        expected_us: expected time of a whole call.
    """
    undivided = Parts(1.0, (operands,))
    index = divisible(step, operands) if expected_us >= LEAST_PARTS * PART_US else None
    if index is None:
        return undivided
    modes = modes_of(step, index)
    extent = next(o.shape[m] for o, m in zip(operands, modes, strict=True) if m is not None)
    rows = max(LEAST_ROWS, ceil(extent * PART_US / expected_us / RANGES))
    if 2 * RANGES * rows > extent:
        return undivided
    begins = [number * extent // RANGES for number in range(RANGES)]
    return Parts(RANGES * rows / extent, tuple(range_of(operands, modes, begin, rows) for begin in begins))


def divisible(step: GeneratedStep, operands: Sequence[torch.Tensor]) -> str | None:
    """The index with the most entries that is the outermost mode of all of its operands.

    `i` in `Y[i,k] = sum(j, A[i,j] * T[j,k])` with A by rows, `j` with A by columns.
    """
    entries: dict[str, int] = {}
    divided: set[str] = set()
    for name, operand in zip(step.program.inputs, operands, strict=True):
        declared = step.program.declaration(name)
        indices = [declared.extents[mode] for mode in declared.format.ordering]
        divided.update(indices[1:])
        if name in step.twins or len(set(indices)) < len(indices):
            divided.update(indices)
        count = operand.nnz if isinstance(operand, SparseTensor) else operand.numel()
        for index in indices[:1]:
            entries[index] = entries.get(index, 0) + count
    fitting = [index for index in entries if index not in divided and index not in dict(step.program.extents)]
    return max(fitting, key=entries.__getitem__, default=None)


def modes_of(step: GeneratedStep, index: str) -> list[int | None]:
    """The mode of an index in each operand; None for operands without the index."""
    declared = [step.program.declaration(name).extents for name in step.program.inputs]
    return [extents.index(index) if index in extents else None for extents in declared]


def range_of(operands: Operands, modes: Sequence[int | None], begin: int, rows: int) -> Operands:
    """The operands of neighbouring rows."""
    pairs = zip(operands, modes, strict=True)
    return tuple(o if mode is None else o.narrow(mode, begin, rows) for o, mode in pairs)
