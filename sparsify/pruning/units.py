"""Structures: which sets of entries live and die together.

In: scores [4, 8] and `Units("block", block=(2, 2))`. Out: the scores of the 2 x 4 blocks, and masks of entries from
masks of blocks. Groups n:m are no sets of this kind: each has its own count.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparsify.sparsification.grouped import grouped_mask
from sparsify.sparsification.largest import block_sums, largest_in_groups, spread

Kind = Literal["unstructured", "n:m", "n:m:g", "block", "row"]


@dataclass(frozen=True, slots=True)
class Units:
    """The structure of zeros of a rule.

    Attributes:
        kind: of the structure.
        block: rows and columns that live and die together.
        keep, of: of every `of` neighbours `keep` stay in the end.
        group: blocks of a chunk that share a pattern, of n:m:g.
        mode: along which groups lie.
    """

    kind: Kind = "unstructured"
    block: tuple[int, ...] = ()
    keep: int = 0
    of: int = 1
    group: int = 1
    mode: int = -1

    @property
    def is_grouped(self) -> bool:
        """Whether each group of neighbours has its own count."""
        return self.kind in ("n:m", "n:m:g")

    def join(self, scores: Tensor) -> Tensor:
        """The scores of the sets, each the sum over its entries."""
        match self.kind:
            case "block":
                return block_sums(scores, self.block)
            case "row":
                wide = scores if scores.dtype.is_floating_point else scores.long()
                return wide.flatten(1).sum(1) if scores.dim() > 1 else wide
        return scores

    def spread(self, mask: Tensor, shape: torch.Size) -> Tensor:
        """The mask of entries from that of sets."""
        match self.kind:
            case "block":
                return spread(mask, self.block)
            case "row":
                return mask.view(-1, *[1] * (len(shape) - 1)).expand(shape).clone()
        return mask

    def select_in_groups(self, scores: Tensor, density: float) -> Tensor:
        """The largest of each group: `keep`, and more of them while a schedule asks for a larger density.

        Raises:
            ShapeError: groups do not divide the weight.
        """
        if self.kind == "n:m:g":
            if density > self.keep / self.of + 1e-9 and round(self.of * density) >= self.of:
                return torch.ones(scores.shape, dtype=torch.bool)
            return grouped_mask(scores.clamp(min=0), self.keep, self.of, self.group, along=self.mode)
        return largest_in_groups(scores, max(self.keep, round(self.of * density)), self.of, self.mode)
