"""Parts of large operands, on which kernels are timed in the place of a whole call.

In: `Y[i,k] = sum(j, A[i,j] * T[j,k])` that is expected to take 240 ms, with A and T. Out: four ranges of rows of A, in
sum a 24th of them, and T as it is: the rows that a kernel reads of it lie as far apart as in a whole call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import torch

from sparsify.compiler.kernel.statement_kernel import GeneratedStep
from sparsify.storage.tensor import SparseTensor

Operands = tuple[torch.Tensor, ...]
# Parts take about so long; calls that are expected to take not even so many times as long are timed whole.
PART_US: Final = 10_000.0
LEAST_PARTS: Final = 4
# Ranges of neighbouring rows, evenly spread, and the rows that each has at least.
RANGES: Final = 4
LEAST_ROWS: Final = 512


@dataclass(frozen=True)
class Parts:
    """Operands of a statement for ranges of one index.

    Attributes:
        share: of the index that all ranges cover together, 1 for the whole.
        operands: per range those of a call.
    """

    share: float
    operands: tuple[Operands, ...]


def parts_of(step: GeneratedStep, operands: Operands, expected_us: float) -> Parts:
    """The ranges on which a statement is timed; the whole where it is short, or no index divides its operands.

    Args:
        operands: of a whole call, in the order of `step.operands`.
        expected_us: of a whole call.
    """
    whole = Parts(1.0, (operands,))
    index = divisible(step, operands) if expected_us >= LEAST_PARTS * PART_US else None
    if index is None:
        return whole
    modes = modes_of(step, index)
    extent = next(o.shape[m] for o, m in zip(operands, modes, strict=True) if m is not None)
    rows = max(LEAST_ROWS, ceil(extent * PART_US / expected_us / RANGES))
    if 2 * RANGES * rows > extent:
        return whole
    begins = [number * extent // RANGES for number in range(RANGES)]
    return Parts(RANGES * rows / extent, tuple(range_of(operands, modes, begin, rows) for begin in begins))


def divisible(step: GeneratedStep, operands: Sequence[torch.Tensor]) -> str | None:
    """The index with the most entries that is the outermost mode of each operand that has it.

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
    """Per operand the mode that an index walks; None for those without it."""
    declared = [step.program.declaration(name).extents for name in step.program.inputs]
    return [extents.index(index) if index in extents else None for extents in declared]


def range_of(operands: Operands, modes: Sequence[int | None], begin: int, rows: int) -> Operands:
    """The operands of neighbouring rows."""
    found = zip(operands, modes, strict=True)
    return tuple(o if mode is None else o.narrow(mode, begin, rows) for o, mode in found)
