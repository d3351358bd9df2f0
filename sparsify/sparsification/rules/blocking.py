"""Blocking sparsifiers: the kept entries are determined by a few entries at a time.

In: `PerBlockFraction(2, 4)` and a weight [3072, 768]. Out: a mask with two of every four neighbours of a row.

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, table 1 and section 4.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from sparsify.compiler.evaluate import evaluate
from sparsify.compiler.plan.prepare.blockwise import COMPARED, Block
from sparsify.errors import ShapeError, SparsifierError
from sparsify.sparsification.rules.grouped import grouped_mask
from sparsify.sparsification.rules.largest import (
    largest_in_groups,
    largest_in_rows,
    largest_of,
    magnitudes,
    ordered,
)
from sparsify.sparsification.rules.sparsifier import (
    BY_KERNEL,
    Kind,
    Sparsifier,
    by_rank,
    is_listed,
    letters,
    narrowed,
)
from sparsify.storage.convert import index_dtype
from sparsify.storage.format import Format
from sparsify.storage.pattern import shared
from sparsify.storage.tensor import SparseTensor


def require_count(name: str, value: Any, least: int = 0) -> None:
    """Raises for a value that is no whole number, or too small."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SparsifierError(f"{name}={value!r}", f"a whole number, {least} or more")


class Blockwise(Sparsifier):
    """Decides within blocks of neighbours: a kernel compares the entries of a row while storing them."""

    @abstractmethod
    def block(self) -> Block | None:
        """The block of comparisons in a kernel; `None` if a mask is made first."""

    def store(self, tensor: Tensor, format: Format | str | None) -> SparseTensor:
        """The kept entries, by the copying kernel if the dtype is comparable."""
        block, rank = self.block(), tensor.dim()
        is_dense = not isinstance(tensor, SparseTensor) and tensor.numel() >= BY_KERNEL and rank > 1
        if block is None or not is_dense or not -rank <= block.mode < rank or tensor.dtype not in COMPARED:
            return super().store(tensor, format)
        target, (_, subscripts) = by_rank(format, rank), letters(rank)
        if not is_listed(target) or (block.size is not None and tensor.shape[block.mode] % block.size):
            return super().store(tensor, format)
        how: dict[str, Any] = {"T": tensor, "format": target, "sparsifier": self}
        return narrowed(evaluate(f"Y{subscripts} = T{subscripts}", **how))


@dataclass(frozen=True, slots=True)
class PerBlockFraction(Blockwise):
    """Keeps the `n` largest of every `m` neighbours, n:m; with `group`, n:m:g, blocks with few shared patterns.

    The first ones among equals stay. The format `nm(n, m)` stores the result of a matrix with `dim=-1` without padding.

    Args:
        n: number of kept entries of a block.
        m: entries of a block, a divisor of the extent of the mode.
        dim: mode along the blocks; the last one, with `group` the first one.
        group: number of blocks of a chunk with the same pattern; for matrices only, and the last blocks may be partial.

    Raises:
        SparsifierError: numbers unsuitable for n:m, a mode unsupported by n:m:g.
        ShapeError: when it is used, groups that do not divide a tensor, a tensor smaller than a chunk.

    Source: STen, table 1, per-block fraction (n:m): 2 passes, O(b) memory, blocking; section 4 for groups.

    >>> import torch
    >>> PerBlockFraction(1, 2)(torch.tensor([[1.0, -3.0, 2.0, 2.0]]), "nm(1, 2)").values()
    tensor([-3.,  2.])
    """

    kind: ClassVar[Kind] = "blocking"
    memory: ClassVar[str] = "O(b)"

    n: int
    m: int
    dim: int | None = None
    group: int | None = None

    def __post_init__(self) -> None:
        require_count("PerBlockFraction: n", self.n, 1)
        require_count("PerBlockFraction: m", self.m, 1)
        if self.n > self.m:
            raise SparsifierError(f"PerBlockFraction({self.n}, {self.m})", "n of every m stay, n at most m")
        if self.group is not None:
            require_count("PerBlockFraction: group", self.group, 1)
        if self.dim is not None and (
            not isinstance(self.dim, int) or (self.group is not None and self.dim not in (-2, -1, 0, 1))
        ):
            raise SparsifierError(
                f"PerBlockFraction: dim={self.dim!r}", "a mode; n:m:g is for matrices, 0 or 1"
            )

    def block(self) -> Block | None:
        """The block of comparisons in a kernel; `None` for groups, with patterns shared by many blocks."""
        return None if self.group is not None else Block(self.n, self.m, -1 if self.dim is None else self.dim)

    def mask(self, tensor: Tensor) -> Tensor:
        """The places of the largest of each block."""
        if self.group is not None:
            along = 0 if self.dim is None else self.dim % 2
            return grouped_mask(tensor, self.n, self.m, self.group, along=along)
        return largest_in_groups(magnitudes(tensor), self.n, self.m, -1 if self.dim is None else self.dim)

    def store(self, tensor: Tensor, format: Format | str | None) -> SparseTensor:
        """The kept entries; rows of n:m in their own format directly, without sorting."""
        is_rows = tensor.dim() == 2 and self.group is None and self.dim in (None, -1, 1)
        if isinstance(tensor, SparseTensor) or not is_rows or format is None:
            return Blockwise.store(self, tensor, format)
        target = Format(format, rank=2)
        if target != Format(f"nm({self.n}, {self.m})") or not tensor.numel():
            return Blockwise.store(self, tensor, format)
        mask = self.mask(tensor)
        within = mask.view(-1, self.m).nonzero()[:, 1]
        crd = within.to(index_dtype(target, tensor.shape, within.shape[0]))
        pattern = shared(
            target, tensor.shape, (None, None, None), (None, None, crd), is_private=True
        ).trusted()
        return SparseTensor(pattern, tensor[mask])


@dataclass(frozen=True, slots=True)
class TopK(Blockwise):
    """Keeps the `k` largest entries of each row, or of the whole tensor; the first ones among equals.

    Args:
        k: number of kept entries; shorter rows stay whole.
        dim: mode along the rows; `None`: the `k` largest of the whole tensor, materialized.
        by: `magnitude`, or `value` as in gates of experts.

    Raises:
        SparsifierError: invalid numbers or words.
        ShapeError: when used, a tensor without the mode.

    Source: STen, table 1, per-block fraction with rows as blocks: 2 passes, O(b) memory, blocking.

    >>> import torch
    >>> TopK(1)(torch.tensor([[1.0, -3.0], [2.0, 2.0]]), "csr").values()
    tensor([-3.,  2.])
    """

    k: int
    dim: int | None = -1
    by: Literal["magnitude", "value"] = "magnitude"

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """Blocking; materializing without a mode."""
        return "materializing" if self.dim is None else "blocking"

    @property
    def memory(self) -> str:  # type: ignore[override]
        """One row; all entries without a mode."""
        return "O(nnz)" if self.dim is None else "O(b)"

    def __post_init__(self) -> None:
        require_count("TopK: k", self.k)
        if self.dim is not None and not isinstance(self.dim, int):
            raise SparsifierError(f"TopK: dim={self.dim!r}", "a mode, or None for the whole tensor")
        if self.by not in ("magnitude", "value"):
            raise SparsifierError(f"TopK: by={self.by!r}", "'magnitude' or 'value'")

    def block(self) -> Block | None:
        """Rows along the mode; `None` for the largest of the whole tensor."""
        return None if self.dim is None else Block(self.k, None, self.dim, self.by == "value")

    def mask(self, tensor: Tensor) -> Tensor:
        """The places of the largest entries."""
        if self.by == "value" and tensor.is_complex():
            raise SparsifierError(f"{self} of {tensor.dtype}, which has no order", "by='magnitude'")
        scores = magnitudes(tensor) if self.by == "magnitude" else ordered(tensor.detach())
        if self.dim is None:
            return largest_of(scores, self.k)
        if not -tensor.dim() <= self.dim < tensor.dim():
            raise ShapeError(f"{self} of a tensor {list(tensor.shape)}", "a mode that it has")
        return largest_in_rows(scores, self.k, self.dim)
