"""Bags of rows of a table as a sparse operand: in `A[b,p,j]` the entry at place p is in bag b and names row j.

In: indices `[4, 2, 2, 9]` and offsets `[0, 3]` for a table of 10 rows. Out: a tensor [2, 4, 10] with ones at
(0, 0, 4), (0, 1, 2), (0, 2, 2), (1, 3, 9), whose arrays are copies of the offsets and the indices.

A bag may name a row twice and in any order, which a row of a matrix may not; with the places as a mode of its own no
call sorts or merges anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from sparsify.errors import InvalidTensorError
from sparsify.passes.operands.edge_slots import Aligned
from sparsify.storage.format import Format
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import wrap

BAGS: Final = Format("dense, compressed, singleton")


@dataclass(frozen=True)
class BagsOutput:
    """Bags among the outputs of a structure module.

    Attributes:
        indices, offsets: positions of the rows that are named, and of where bags begin.
        rows: how many the table has.
        has_last: whether the last offset is the end of the last bag.
        padding: the row that counts for nothing, None without one.
        dtype: of the values.
        is_weighted: whether the caller brings them; else they are 1.
    """

    indices: int
    offsets: int
    rows: int
    has_last: bool
    padding: int | None
    dtype: torch.dtype
    is_weighted: bool

    def align(self, raw: Sequence[Any]) -> Aligned:
        """The pattern of the bags, and which indices have a slot in it.

        Raises:
            InvalidTensorError: an index that is no row, or offsets that do not ascend from 0 within the indices.
        """
        # Copies: later writes of the caller's do not reach what kernels read.
        indices, kept = raw[self.indices].cpu().clone(memory_format=torch.contiguous_format), None
        require_rows(indices, self.rows)
        starts = starts_of(
            raw[self.offsets].cpu().clone(memory_format=torch.contiguous_format), len(indices), self.has_last
        )
        if self.padding is not None and bool((is_padding := indices == self.padding).any()):
            kept = torch.nonzero(~is_padding).squeeze(1)
            before = torch.cat([starts.new_zeros(1), (~is_padding).cumsum(0, dtype=starts.dtype)])
            indices, starts = indices[kept], before[starts.long()]
        places = torch.arange(len(indices), dtype=indices.dtype)
        shape = (len(starts) - 1, len(indices), self.rows)
        pattern = Pattern(
            BAGS, shape, (None, starts, None), (None, places, indices), is_private=True
        ).trusted()
        return Aligned(pattern, None, kept)

    def made(self, aligned: Aligned, raw: Sequence[Any]) -> Any:
        """The bags, on the device of their indices, or their pattern where the caller brings the values."""
        if self.is_weighted:
            return aligned
        return wrap(aligned.pattern, raw[self.indices].new_ones(aligned.pattern.nnz, dtype=self.dtype))


def require_rows(indices: torch.Tensor, rows: int) -> None:
    """Raises when an index names no row of the table."""
    if indices.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(indices))
    if low < 0 or high >= rows:
        wrong = low if low < 0 else high
        raise InvalidTensorError(
            f"an index of a bag is {wrong}, the table has {rows} rows", f"numbers from 0 to {rows - 1}"
        )


def starts_of(offsets: torch.Tensor, count: int, has_last: bool) -> torch.Tensor:
    """Where each bag begins among `count` indices, and where the last one ends.

    Raises:
        InvalidTensorError: offsets that do not ascend from 0, to `count` where they have the last end.
    """
    given = offsets.numpy()  # faster than torch for few bags, which may be new in every call
    starts = given if has_last else np.empty(len(given) + 1, given.dtype)
    if len(starts) < 2:
        return offsets.new_zeros(1)
    if not has_last:
        starts[:-1], starts[-1] = given, count
    first, last = int(given[0]), int(given[-1])
    if first == 0 and starts[-1] == count and (starts[1:] >= starts[:-1]).all():
        return offsets.contiguous() if has_last else torch.from_numpy(starts)
    if first != 0:
        complaint = f"begin with {first}"
    elif last > count or has_last:
        complaint = f"end with {last}, there are {count} indices"
    else:
        complaint = "do not ascend"
    whole = "the number of indices" if has_last else "at most the number of indices"
    raise InvalidTensorError(f"the offsets of bags {complaint}", f"they ascend from 0 to {whole}")
