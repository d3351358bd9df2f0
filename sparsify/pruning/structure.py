"""The zeros of one weight as a matrix [outputs, inputs]: how many, and which entries live and die together.

In: scores [4, 8] and `Structure(share=0.5)`. Out: a mask of the same shape, `True` where an entry is kept.
"""

from dataclasses import dataclass
from math import lcm

import torch
from torch import Tensor

from sparsify.errors import ShapeError
from sparsify.sparsification.grouped import grouped_mask
from sparsify.sparsification.largest import (
    block_sums,
    largest,
    largest_in_groups,
    largest_in_rows,
    spread,
)


@dataclass(frozen=True)
class Structure:
    """The zeros of a matrix.

    Attributes:
        share: of zeros; groups have their own.
        keep, of: of every `of` neighbours `keep` stay; 0 of 0 without groups.
        mode: along which groups lie, 0 outputs, 1 inputs.
        group: of n:m:g, 0 without.
        block: entries that live and die together, rows and columns.
    """

    share: float = 0.0
    keep: int = 0
    of: int = 0
    mode: int = 1
    group: int = 0
    block: tuple[int, int] = (1, 1)

    def require_fit(self, shape: torch.Size) -> None:
        """Raises where groups or blocks do not divide a matrix."""
        if self.of and not self.group and shape[self.mode] % self.of:
            raise ShapeError(f"groups of {self.of} do not divide {list(shape)}; another pattern, or `ignore`")
        if any(extent % size for extent, size in zip(shape, self.block, strict=True)):
            raise ShapeError(
                "blocks of {} x {} do not divide {}; another `block`, or `ignore`".format(
                    *self.block, list(shape)
                )
            )

    def select(self, scores: Tensor, *, by_row: bool) -> Tensor:
        """Where the largest scores are, the first ones among equals; counts hold for each row of blocks, or overall."""
        self.require_fit(scores.shape)
        if self.group:
            return grouped_mask(scores, self.keep, self.of, self.group, along=self.mode)
        if self.of:
            return largest_in_groups(scores, self.keep, self.of, self.mode)
        sums = block_sums(scores, self.block) if self.block != (1, 1) else scores
        if by_row:
            return spread(largest_in_rows(sums, round(sums.shape[1] * (1 - self.share)), 1), self.block)
        return spread(largest(sums, 1 - self.share), self.block)

    def columns_at_once(self, wanted: int) -> int:
        """The least number of columns, at least `wanted`, in which groups and blocks are whole."""
        unit = lcm(self.of if self.of and self.mode == 1 else 1, self.block[1])
        return -(-wanted // unit) * unit
