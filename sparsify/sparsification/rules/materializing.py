"""Materializing sparsifiers: the kept entries are determined by all entries together.

In: `ScalarFraction(0.9)` and a weight [3072, 768]. Out: a mask with 235,930 of 2,359,296 entries, of the largest
magnitude.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, table 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparsify.errors import ShapeError, SparsifierError
from sparsify.sparsification.rules.largest import block_sums, largest, largest_of, magnitudes, spread
from sparsify.sparsification.rules.sparsifier import Sparsifier
from sparsify.sparsification.rules.streaming import require_fraction
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor, values_at


@dataclass(frozen=True, slots=True)
class ScalarFraction(Sparsifier):
    """Drops the share of entries of the smallest magnitude, exactly; the first ones among equals stay.

    Args:
        fraction: the share of zeros, 0 to 1; `round(n * (1 - fraction))` of `n` entries stay.

    Raises:
        SparsifierError: an invalid share.

    Source: STen, table 1, scalar fraction (magnitude): 2 passes, O(nnz) memory, materializing; Han, Pool, Tran and
    Dally, Learning both Weights and Connections for Efficient Neural Networks, 2015.

    >>> ScalarFraction(0.5)(torch.tensor([[1.0, -3.0], [2.0, 0.5]]), "csr").values()
    tensor([-3.,  2.])
    """

    fraction: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", require_fraction("ScalarFraction", self.fraction))

    def mask(self, tensor: Tensor) -> Tensor:
        """The places of the largest entries."""
        return largest(magnitudes(tensor), 1.0 - self.fraction)

    def stored_mask(self, tensor: SparseTensor) -> Tensor:
        """The mask of the largest stored entries: unstored ones are 0, and dropped first."""
        count = round(tensor.numel() * (1.0 - self.fraction))
        return largest_of(magnitudes(tensor.values()), count)


@dataclass(frozen=True, slots=True)
class BlockFraction(Sparsifier):
    """Drops the share of blocks of the smallest sum of magnitudes, exactly; the first ones among equals stay.

    Args:
        fraction: the share of dropped blocks, 0 to 1.
        block: entries of a block along each mode, divisors of the extents.

    Raises:
        SparsifierError: an invalid share or block.
        ShapeError: when used, blocks that do not divide the tensor.

    Source: STen, table 1, block-wise fraction (block magnitude): 2 passes, O(nnz) memory, materializing.

    >>> BlockFraction(0.5, (1, 2))(torch.tensor([[1.0, 1.0, 0.0, 3.0]]), "bcsr(1, 2)").values()
    tensor([0., 3.])
    """

    fraction: float
    block: tuple[int, ...] = (4, 4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", require_fraction("BlockFraction", self.fraction))
        is_block = isinstance(self.block, Sequence) and all(
            isinstance(size, int) and size > 0 for size in self.block
        )
        if not is_block or not self.block:
            raise SparsifierError(
                f"BlockFraction: block={self.block!r}", "the entries along each mode, (4, 4)"
            )
        object.__setattr__(self, "block", tuple(self.block))

    def mask(self, tensor: Tensor) -> Tensor:
        """The places of the largest blocks."""
        return spread(largest(block_sums(magnitudes(tensor), self.block), 1.0 - self.fraction), self.block)


class SameFormat(Sparsifier):
    """Keeps the stored entries of a reference, by default in the format of the reference.

    Args:
        reference: a `SparseTensor` of the same shape; the pattern is shared, the values are not kept.

    Raises:
        SparsifierError: a dense reference.
        ShapeError: when used, a tensor of another shape.

    Source: STen's code, `SameFormatSparsifier`: gradients and updated weights keep the entries of a weight.

    >>> from sparsify.storage.interop.tensors import tensor
    >>> SameFormat(tensor(torch.eye(2), "csr"))(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).values()
    tensor([1., 4.])
    """

    passes: ClassVar[int] = 1
    memory: ClassVar[str] = "O(1)"

    def __init__(self, reference: SparseTensor) -> None:
        if not isinstance(reference, SparseTensor):
            raise SparsifierError(
                f"SameFormat({type(reference).__name__})", "a SparseTensor, whose entries stay"
            )
        self.pattern = reference.pattern

    def __repr__(self) -> str:
        return f"SameFormat({self.pattern})"

    def mask(self, tensor: Tensor) -> Tensor:
        """The mask of the entries of the reference."""
        self._require_shape(tensor)
        ones = SparseTensor(self.pattern, torch.ones(self.pattern.nnz, dtype=torch.bool))
        return ones.to_dense()

    def store(self, tensor: Tensor, format: Format | str | None) -> SparseTensor:
        """The tensor on the shared pattern of the reference."""
        self._require_shape(tensor)
        dense = tensor
        if isinstance(tensor, SparseTensor) and not tensor.pattern.equals(self.pattern):
            dense = tensor.to_dense()
        result = SparseTensor(self.pattern, values_at(dense, self.pattern))
        return result if format is None else result.to(format=format)

    def _require_shape(self, tensor: Tensor) -> None:
        """Raises for a tensor of another shape than the reference's."""
        if tuple(tensor.shape) != tuple(self.pattern.shape):
            raise ShapeError(
                f"{self} for a tensor {list(tensor.shape)}", f"one of the shape {list(self.pattern.shape)}"
            )


class Movement(Sparsifier):
    """Drops the exact share of entries moving most towards 0: scores are `-value * gradient`, summed over steps.

    Args:
        fraction: the share of zeros, 0 to 1.
        scores: of the shape of the tensor, larger ones stay; by default the scores of one step by `tensor.grad`.

    Raises:
        SparsifierError: an invalid share; when used, neither scores nor a gradient.
        ShapeError: when used, scores of another shape.

    Source: STen, table 1, complex weight sparsifiers: materializing; Sanh, Wolf and Rush, Movement Pruning: Adaptive
    Sparsity by Fine-Tuning, 2020, equation 4.

    >>> weight = torch.tensor([[1.0, 2.0]], requires_grad=True)
    >>> (weight * torch.tensor([[-1.0, 1.0]])).sum().backward()
    >>> Movement(0.5)(weight, "csr").values().tolist()  # the first one grows
    [1.0]
    """

    def __init__(self, fraction: float, scores: Tensor | None = None) -> None:
        self.fraction = require_fraction("Movement", fraction)
        if scores is not None and not isinstance(scores, Tensor):
            raise SparsifierError(f"Movement: scores of type {type(scores).__name__}", "a tensor, or None")
        self.scores = scores

    def __repr__(self) -> str:
        return f"Movement({self.fraction}{'' if self.scores is None else ', scores=...'})"

    def mask(self, tensor: Tensor) -> Tensor:
        """The places of the largest scores."""
        return largest(self._scores(tensor), 1.0 - self.fraction)

    def stored_mask(self, tensor: SparseTensor) -> Tensor:
        """The places of the largest scores of stored entries."""
        count = round(tensor.numel() * (1.0 - self.fraction))
        return largest_of(values_at(self._scores(tensor), tensor.pattern), count)

    def _scores(self, tensor: Tensor) -> Tensor:
        """The given scores, or the scores of one step."""
        if self.scores is None:
            if not tensor.is_leaf or tensor.grad is None:
                raise SparsifierError(
                    "Movement without scores, of a tensor without a gradient",
                    "call it after backward(), or give the scores that were summed over steps",
                )
            return -(tensor.detach() * tensor.grad)
        if self.scores.shape != tensor.shape:
            raise ShapeError(
                f"scores {list(self.scores.shape)} for a tensor {list(tensor.shape)}", "one score an entry"
            )
        return self.scores.detach()
