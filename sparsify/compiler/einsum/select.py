"""The row entries kept by a selection, computed by torch: the semantics of `csr largest 2 of 4`.

In: `Selection(kept=1, size=2)` and rows [[3, -4, 0, 0]]. Out: [[False, True, True, False]].
"""

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsify.compiler.einsum.nodes import Selection

# Dtypes with comparable entries.
COMPARED: Final = ("float32", "float64", "bfloat16", "float16", "int32", "int64")


def selected(selection: Selection, values: Tensor) -> Tensor:
    """The mask of selected entries, in the shape of `values`, whose last mode holds the rows.

    >>> selected(Selection(1, 2), torch.tensor([[3.0, -4.0, 0.0, 0.0]])).tolist()
    [[False, True, True, False]]
    """
    extent = values.shape[-1]
    if not values.numel():
        return torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    keys = _keys(values.detach(), is_signed=selection.is_signed)
    size = selection.size or extent
    least = torch.iinfo(torch.int64).min if keys.dtype == torch.int64 else -torch.inf
    blocks = pad(keys, (0, -extent % size), value=least).unflatten(-1, (-1, size))
    order = blocks.argsort(dim=-1, descending=True, stable=True)
    stays = torch.zeros(blocks.shape, dtype=torch.bool, device=values.device)
    stays.scatter_(-1, order[..., : selection.kept], True)
    return stays.flatten(-2)[..., :extent]


def _keys(values: Tensor, *, is_signed: bool) -> Tensor:
    """Numbers in the comparison order of entries."""
    if not values.dtype.is_floating_point:
        numbers = values.long()
        return numbers if is_signed else numbers.clamp(min=-torch.iinfo(torch.int64).max).abs()
    found = values.double()
    return torch.where(found.isnan(), torch.inf, found if is_signed else found.abs())
