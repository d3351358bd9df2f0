"""Rows of sparse tables: `torch.nn.functional.embedding`.

In: `embedding(ids, table)`, ids [batch, length], table a `SparseTensor` [words, features]. Out: the rows as a dense
tensor [batch, length, features]. The kernel is the product of the one-hot rows of `ids`, one entry each, and the table.
"""

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from sparsify.compiler.evaluate import einsum
from sparsify.errors import DtypeError
from sparsify.ops.register.fallback import is_dense
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.format import Format
from sparsify.storage.pattern import shared
from sparsify.storage.tensor import SparseTensor

LARGEST: Final = torch.iinfo(torch.int32).max


@operator(functional.embedding, torch.embedding)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`torch.nn.functional.embedding`: the rows of a table; the row of `padding_idx` gets no gradient.

    The gradient of the table has the pattern of the table, with and without `sparse`.
    """
    if not isinstance(weight, SparseTensor) or weight.dim() != 2 or not is_dense(input):
        raise refuse("an embedding of a sparse index", "a dense index and a sparse table of two modes")
    if max_norm is not None or scale_grad_by_freq:
        option = "max_norm" if max_norm is not None else "scale_grad_by_freq"
        raise refuse(f"an embedding with {option}", f"no {option}")
    if input.dtype not in (torch.int32, torch.int64):
        raise DtypeError(f"an embedding at {input.dtype} indices", "indices of torch.int64 or torch.int32")
    words, count = weight.shape[0], input.numel()
    if padding_idx is not None and not -words <= padding_idx < words:
        raise IndexError(
            f"an embedding with padding_idx={padding_idx} of a table of {words}; a row from {-words} to {words - 1}"
        )
    at = _inside(input.reshape(-1), words)
    rows = torch.arange(count + 1, dtype=at.dtype)
    pattern = shared(Format("csr"), (count, words), (None, rows), (None, at), is_private=True).trusted()
    one_hot = SparseTensor(pattern, torch.ones(count, dtype=weight.dtype))
    result: Tensor = einsum("tv,vk->tk", one_hot, _with_zeros(weight), format="dense")
    result = result.reshape(*input.shape, weight.shape[1])
    if padding_idx is None or not result.requires_grad:
        return result
    is_padding = input == (padding_idx if padding_idx >= 0 else padding_idx + words)
    return torch.where(is_padding.unsqueeze(-1), result.detach(), result)


def _with_zeros(weight: SparseTensor) -> SparseTensor:
    """Checks that a table has the fill 0.

    Raises:
        UnsupportedOperatorError: another fill.
    """
    if weight.fill != 0:
        raise refuse(f"an embedding with the fill {weight.fill}", "a table with the fill 0")
    return weight


def _inside(index: Tensor, extent: int) -> Tensor:
    """The checked index, 32 bits wide if the extent allows; kernels never read rows out of bounds.

    Raises:
        IndexError: a row outside of the table.
    """
    zeros = torch.zeros((), dtype=torch.int64).expand(
        extent
    )  # no memory; the lookup is captured in graphs, too
    try:
        inside = index + zeros.index_select(0, index)
    except (IndexError, RuntimeError) as error:
        low, high = int(index.min()), int(index.max())
        raise IndexError(
            f"an embedding at the rows {low} to {high} of a table of {extent}; indices from 0 to {extent - 1}"
        ) from error
    return inside.int() if max(extent, len(index)) <= LARGEST else inside
