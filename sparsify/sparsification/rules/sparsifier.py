"""Sparsifiers: rules that select the kept entries of a tensor.

In: `ScalarFraction(0.9)` and a dense tensor [3072, 768]. Out: its mask, `True` for kept entries; called with the
tensor and a format, the `SparseTensor` of the kept entries.

| kind | decides by | called on results of a kernel |
|---|---|---|
| streaming | each entry and its coordinates | inside the kernel: dropped entries are never written |
| blocking | a few entries at a time | inside the kernel, n:m:g after the kernel |
| materializing | all entries | after the kernel |

Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 2 and table 1.
"""

import re
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor

from sparsify.compiler.evaluate import evaluate
from sparsify.compiler.plan.prepare.sparsified import Condition
from sparsify.errors import SparsifierError, public
from sparsify.storage.convert import index_dtype
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor as stored
from sparsify.storage.level.levels import Compressed, Dense, Singleton
from sparsify.storage.parts import require_readable
from sparsify.storage.pattern import shared
from sparsify.storage.tensor import SparseTensor

Kind = Literal["streaming", "blocking", "materializing"]
WIDEST: Final = len(string.ascii_lowercase)
# Suffix of condition operands, unlike index variables and tensors.
OPERAND: Final = "_of_T"
# Minimum number of entries for a kernel with a mask; fewer are not worth a build.
BY_KERNEL: Final = 1 << 14


class Sparsifier(ABC):
    """Selects the kept entries of a tensor; user-defined sparsifiers derive from the class and define `mask`.

    Attributes:
        kind: `streaming`, `blocking` or `materializing`.
        passes: passes over the tensor; a lower bound for materializing sparsifiers that compute scores.
        memory: in addition to the result: `O(1)`, `O(b)` of a block, `O(nnz)` of all entries.

    >>> class Positive(Sparsifier):
    ...     def mask(self, tensor):
    ...         return tensor > 0
    >>> Positive()(torch.tensor([[1.0, -2.0], [0.0, 4.0]]), "csr").values()
    tensor([1., 4.])
    """

    kind: ClassVar[Kind] = "materializing"
    passes: ClassVar[int] = 2
    memory: ClassVar[str] = "O(nnz)"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def mask(self, tensor: Tensor) -> Tensor:
        """The places of the kept entries, truth values of the shape of the dense tensor."""

    def condition(self) -> Condition | None:
        """The condition of a kept entry; `None` if dependent on other entries."""
        return None

    @public
    def __call__(self, tensor: Tensor, format: Format | str | None = None) -> SparseTensor:
        """The kept entries, in a format; see `sparsify.sparsify`."""
        return self.store(as_operand(tensor), format)

    def store(self, tensor: Tensor, format: Format | str | None) -> SparseTensor:
        """The kept entries, zeros included, differentiable in the values of the tensor."""
        if isinstance(tensor, SparseTensor):
            stored_mask = self.stored_mask(tensor)
            target = tensor.format if format is None else format
            return of_entries(
                tensor.coordinates()[:, stored_mask], tensor.values()[stored_mask], tensor.shape, target
            )
        mask = self.mask(tensor)
        if mask.shape != tensor.shape or mask.dtype != torch.bool:
            raise SparsifierError(
                f"the mask of {self} is {mask.dtype} {list(mask.shape)} for a tensor {list(tensor.shape)}",
                "truth values of the shape of the tensor",
            )
        if tensor.numel() >= BY_KERNEL and is_listed(target_format := by_rank(format, tensor.dim())):
            _, subscripts = letters(tensor.dim())
            result = copied(tensor, f"{target_format} where M{subscripts}", {"M": mask})
            if result.nnz == int(mask.count_nonzero()):  # otherwise kept zeros are missing
                return result
        at = mask.nonzero()
        values = tensor[tuple(at.T)] if tensor.dim() else tensor.reshape(1)[: len(at)]
        return of_entries(at.T, values, tensor.shape, format)

    def stored_mask(self, tensor: SparseTensor) -> Tensor:
        """The mask of the kept entries among the stored ones of a sparse tensor, bool [nnz].

        Unstored entries are never kept.
        """
        mask = self.mask(tensor.detach().to_dense())
        at = tensor.coordinates()
        inside = torch.stack([at[n] < extent for n, extent in enumerate(tensor.shape)]).all(0)
        return inside & mask[tuple(torch.where(inside, at, 0))]


class Streaming(Sparsifier):
    """Decides by each entry and its coordinates: the condition is part of the kernel computing the tensor.

    Entries equal to the fill are not stored, kept or not.
    """

    kind: ClassVar[Kind] = "streaming"
    passes: ClassVar[int] = 1
    memory: ClassVar[str] = "O(1)"

    @abstractmethod
    def condition(self) -> Condition:
        """The condition of a kept entry, over `value`, `row` and `column`; "" for all."""

    def mask(self, tensor: Tensor) -> Tensor:
        """The places of the kept entries, by the condition."""
        condition = self.condition()
        if not condition.text:
            return torch.ones(tensor.shape, dtype=torch.bool)
        condition = condition.named(OPERAND)
        at, subscripts = letters(tensor.dim())
        condition_text = condition.over("T", at)
        how: dict[str, Any] = {"sizes": dict(zip(at, tensor.shape, strict=True)), **dict(condition.operands)}
        if re.search(r"\bT\b", condition_text):
            how["T"] = tensor.detach()
        return evaluate(f"M{subscripts} = {condition_text}", **how).bool()  # type: ignore[no-any-return]

    def store(self, tensor: Tensor, format: Format | str | None) -> SparseTensor:
        """The kept entries different from the fill, by the copying kernel."""
        stored_format = tensor.format if isinstance(tensor, SparseTensor) else None
        target = by_rank(stored_format if format is None else format, tensor.dim())
        if not is_listed(target):
            coordinates = Format("csf", rank=tensor.dim())
            return (
                self.store(tensor, coordinates).to(format=target)
                if tensor.dim()
                else super().store(tensor, target)
            )
        condition, (at, _) = self.condition().named(OPERAND), letters(tensor.dim())
        if not condition.text and isinstance(tensor, SparseTensor):
            return tensor.to(format=target)
        selection = f"where {condition.over('T', at)}" if condition.text else "by value"
        return copied(tensor, f"{target} {selection}", dict(condition.operands))


def copied(tensor: Tensor, format: str, operands: Mapping[str, Any]) -> SparseTensor:
    """The entries of a tensor `T` stored by a format with a condition over `T` and operands, in the dtype of `T`."""
    _, subscripts = letters(tensor.dim())
    how: dict[str, Any] = {"T": tensor, "format": format, **operands}
    result = narrowed(evaluate(f"Y{subscripts} = T{subscripts}", **how))
    # Truth values selected by a condition are numbers: `where(condition, T, 0)`.
    return result if result.dtype == tensor.dtype else result.to(tensor.dtype)


def letters(rank: int) -> tuple[str, str]:
    """Index variables of a tensor, plain and in brackets.

    >>> letters(2), letters(0)
    (('ab', '[a,b]'), ('', ''))
    """
    if rank > WIDEST:
        raise SparsifierError(f"a tensor of {rank} modes", f"at most {WIDEST}")
    names = string.ascii_lowercase[:rank]
    return names, f"[{','.join(names)}]" if names else ""


def is_listed(format: Format) -> bool:
    """Whether kernels append entries to the format one by one."""
    is_ordered = all(stored.level.is_ordered for stored in format.levels)
    are_appendable = all(isinstance(stored.level, Dense | Compressed | Singleton) for stored in format.levels)
    return bool(format.levels) and format.is_short and are_appendable and is_ordered and not format.is_dense


def as_operand(data: Any) -> Tensor:
    """A dense tensor, or a sparse one with the fill 0, because dropped entries become 0."""
    if isinstance(data, SparseTensor):
        return data if data.fill == 0 else data.to_dense()
    if isinstance(data, Tensor) and data.layout == torch.strided:
        require_readable(data, "tensor")
        return data
    return stored(data, None)


def by_rank(format: Format | str | None, rank: int) -> Format:
    """The requested format; by default CSR for matrices, compressed levels for other tensors."""
    return Format(("csr" if rank == 2 else "csf") if format is None else format, rank=rank)


def narrowed(tensor: SparseTensor) -> SparseTensor:
    """The tensor with coordinates of 32 bits if they fit, as made by `sparsify.tensor`."""
    pattern = tensor.pattern
    if index_dtype(pattern.format, pattern.shape, pattern.nnz) != torch.int32:
        return tensor
    arrays = [array for array in (*pattern.pos, *pattern.crd) if array is not None]
    if all(array.dtype == torch.int32 for array in arrays):
        return tensor
    pos, crd = (
        [array if array is None else array.int() for array in arrays] for arrays in (pattern.pos, pattern.crd)
    )
    narrow = shared(pattern.format, pattern.shape, pos, crd, is_private=True).trusted()
    return SparseTensor(narrow, tensor.values(), tensor.fill)


def of_entries(
    coordinates: Tensor, values: Tensor, shape: Sequence[int], format: Format | str | None
) -> SparseTensor:
    """The tensor of entries sorted by their coordinates [d, n], explicit zeros kept."""
    target = by_rank(format, len(shape))
    at = coordinates.to(index_dtype(target, shape, values.shape[0]))
    return stored((at, values, tuple(shape)), target)
