"""Structures: sets of entries pruned together, and the selection of sets to keep.

In: scores [4, 8] and `Structure(block=(2, 2))`. Out: the scores of the 2 x 4 blocks, and masks of entries from masks of
blocks. Groups n:m are not pruned as sets: each group keeps a fixed count of entries.
"""

from dataclasses import dataclass, replace
from math import lcm

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsify.errors import ShapeError
from sparsify.recipe import Prune
from sparsify.sparsification.rules.grouped import grouped_mask
from sparsify.sparsification.rules.largest import (
    block_sums,
    largest,
    largest_in_groups,
    largest_in_rows,
    magnitudes,
    spread,
)


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure of the zeros of a weight; unstructured by default.

    Attributes:
        block: the extents of blocks pruned as a whole.
        is_by_row: whether all entries of an output are pruned as a whole.
        keep, of: `keep` of every `of` neighbours stay.
        group: number of blocks in a chunk with a shared pattern, for n:m:g; 0 for n:m.
        mode: mode of the groups.
    """

    block: tuple[int, ...] = ()
    is_by_row: bool = False
    keep: int = 0
    of: int = 0
    group: int = 0
    mode: int = -1

    @staticmethod
    def asked_by(prune: Prune) -> "Structure":
        """The structure for the `pattern` of a rule."""
        pattern = prune.pattern
        if pattern is None:
            return Structure()
        if pattern.nm is None:
            return Structure(pattern.block or (), is_by_row=pattern.row)
        group = pattern.nm
        if group.group is not None:
            mode = 1 if prune.dim in ("in", 1, -1) else 0
        else:
            mode = prune.dim if isinstance(prune.dim, int) else 0 if prune.dim == "out" else -1
        return Structure(keep=group.keep, of=group.of, group=group.group or 0, mode=mode)

    @property
    def is_grouped(self) -> bool:
        """Whether each group of neighbours keeps a fixed count (n:m or n:m:g)."""
        return self.of > 0

    @property
    def is_along_inputs(self) -> bool:
        """Whether n:m groups lie along the inputs of a matrix [outputs, inputs]."""
        return self.is_grouped and self.mode in (1, -1) and not self.group

    def sets(self, shape: torch.Size) -> tuple[int, ...]:
        """The extents of the sets of a weight, () for single entries."""
        return (1, *shape[1:]) if self.is_by_row and shape else self.block

    def join(self, scores: Tensor) -> Tensor:
        """The scores of sets: sums over the entries of each set."""
        sets = self.sets(scores.shape)
        return block_sums(scores, sets) if sets else scores

    def join_magnitudes(self, entries: Tensor) -> Tensor:
        """The magnitudes of sets: sums over the entries of each set; unchanged entries where these are the sets."""
        return self.join(magnitudes(entries)) if self.sets(entries.shape) else entries

    def alive(self, mask: Tensor) -> Tensor:
        """Sets with at least one entry in a mask."""
        return self.join(mask.to(torch.uint8)) > 0 if self.sets(mask.shape) else mask

    def spread(self, mask: Tensor, shape: torch.Size) -> Tensor:
        """The mask of entries for a mask of sets."""
        return spread(mask, self.sets(shape))

    def require_fit(self, shape: torch.Size) -> None:
        """Raises if groups or blocks do not divide a weight."""
        if self.of and not self.group:
            if not -len(shape) <= self.mode < len(shape):
                raise ShapeError(
                    f"a weight {list(shape)} has no mode {self.mode}; another `dim`, or `ignore`"
                )
            if shape[self.mode] % self.of:
                raise ShapeError(
                    f"groups of {self.of} do not divide {list(shape)}; another pattern, or `ignore`"
                )
        sets = self.sets(shape)
        if sets and (len(sets) != len(shape) or any(n % size for n, size in zip(shape, sets, strict=True))):
            sizes = " x ".join(map(str, sets))
            raise ShapeError(f"blocks of {sizes} do not divide {list(shape)}; another `block`, or `ignore`")

    def select_in_groups(self, scores: Tensor, density: float) -> Tensor:
        """The largest entries of each group: `keep`, or more while a schedule has a larger density.

        For n:m:g: the entries of the mask with `keep`, and the largest other entries of each block.

        Args:
            scores: scores of entries, -inf for dead entries.
            density: the share of entries.

        Raises:
            ShapeError: groups do not divide the weight.
        """
        count = max(self.keep, round(self.of * density))
        if not self.group:
            return largest_in_groups(scores, count, self.of, self.mode)
        if count >= self.of:
            return torch.ones(scores.shape, dtype=torch.bool)
        last = grouped_mask(
            scores.clamp(min=0), self.keep, self.of, self.group, along=self.mode, alive=scores > -torch.inf
        )
        return last if count == self.keep else self._with_next(scores, last, count)

    def _with_next(self, scores: Tensor, mask: Tensor, count: int) -> Tensor:
        """The mask of n:m:g and of the largest other entries of each block, `count` in all."""
        first = scores.masked_fill(mask, torch.inf).flatten(1)
        lines = first if self.mode == 0 else first.t()
        padded = pad(lines, (0, 0, 0, -len(lines) % self.of), value=-torch.inf)
        chosen = largest_in_groups(padded, count, self.of, 0)[: len(lines)]
        return (chosen if self.mode == 0 else chosen.t()).reshape(scores.shape)

    def select(self, scores: Tensor, sparsity: float, *, by_row: bool) -> Tensor:
        """The mask of the largest scores; ties go to the first entries.

        Args:
            scores: [outputs, inputs].
            sparsity: the share of zeros; ignored for groups n:m.
            by_row: whether counts hold for each row of sets, or for the whole weight.

        Raises:
            ShapeError: groups or blocks do not divide the weight.
        """
        self.require_fit(scores.shape)
        if self.is_grouped:
            return self.select_in_groups(scores, 0.0)
        sums = self.join(scores)
        if by_row and sums.shape[1] > 1:
            mask = largest_in_rows(sums, round(sums.shape[1] * (1 - sparsity)), 1)
        else:
            mask = largest(sums, 1 - sparsity)
        return self.spread(mask, scores.shape)

    def columns_at_once(self, least: int, shape: torch.Size) -> int:
        """The least number of columns, at least `least`, divisible into whole groups and sets of a matrix."""
        unit = lcm(self.of if self.of and self.mode in (1, -1) else 1, (self.sets(shape) or (1, 1))[1])
        return -(-least // unit) * unit

    def in_matrix(self, shape: torch.Size, is_transposed: bool) -> tuple[Tensor | None, "Structure"]:
        """The structure of a weight as a matrix [outputs, inputs].

        Args:
            shape: shape of the weight; modes after the second one count as inputs.
            is_transposed: whether the weight is [inputs, outputs].

        Returns:
            The permutation of the inputs that makes groups contiguous (None for the identity), and the structure of
            the matrix.

        Raises:
            ShapeError: the weight lacks the mode of the groups, or cannot have blocks.
        """
        if self.block and len(shape) != 2:
            raise ShapeError(
                f"blocks of two modes are not for a weight {list(shape)}; `ignore` it, or no block"
            )
        if self.is_by_row:
            block = (shape[1:].numel(), 1) if is_transposed else (1, shape[1:].numel())
            return None, Structure(block)
        if self.block:
            return None, Structure(self.block[::-1] if is_transposed else self.block)
        if not self.is_grouped:
            return None, self
        if not -len(shape) <= self.mode < len(shape):
            raise ShapeError(f"a weight {list(shape)} has no mode {self.mode}; another `dim`, or `ignore`")
        mode = self.mode % len(shape)
        order = None
        if mode > 0 and len(shape) > 2 and not self.group:
            numbers = torch.arange(shape[1:].numel()).view(shape[1:])
            order = numbers.movedim(mode - 1, -1).flatten()
        return order, replace(self, mode=int((mode == 0) == is_transposed))
