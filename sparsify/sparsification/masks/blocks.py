"""Masks in blocks of storage: assembled from parts, from tensors, and one for each head.

In: 1,000 queries and keys, the band `-64 <= j - i <= 64`, blocks of 16. Out: a `SparseTensor` [1000, 1000] of truth
values, `bcsr(16,16)`, with the blocks that touch the band stored.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import InvalidTensorError
from sparsify.sparsification.masks.parts import Band, Cells, Part
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

# Pairs evaluated at once, and the minimum side of a cell in tokens.
AT_ONCE = 1 << 22
CELL = 64


def assemble(
    rows: int, columns: int, parts: Sequence[Part], block: int, *, causal: bool = False
) -> SparseTensor:
    """The pairs kept by any of the parts.

    Args:
        rows, columns: numbers of queries and keys.
        parts: parts of the pattern.
        block: tokens on each side of a block of storage; empty blocks are not stored.
        causal: leave out keys behind the query.
    """
    before = Band(-max(rows, columns), 0)
    size = block * max(1, CELL // block)
    places, values = [], []
    cells = _cells(rows, columns, size)
    may_keep = _any(part.may_keep(cells) for part in parts)
    if causal:
        may_keep &= before.may_keep(cells)
    cells_kept = torch.nonzero(may_keep.expand(len(cells.first_row), cells.first_column.shape[1]))
    for chunk in cells_kept.split(max(1, AT_ONCE // size**2)):
        i = (chunk[:, :1] * size + torch.arange(size))[:, :, None]
        j = (chunk[:, 1:] * size + torch.arange(size))[:, None, :]
        at = i.clamp(max=max(rows - 1, 0)), j.clamp(max=max(columns - 1, 0))
        mask = _any(part.keeps(*at) for part in parts) & (i < rows) & (j < columns)
        if causal:
            mask = mask & before.keeps(i, j)
        inside = size // block
        blocks = mask.view(-1, inside, block, inside, block).transpose(2, 3)
        stored = torch.nonzero(blocks.any(-1).any(-1))
        places.append(chunk[stored[:, 0]] * inside + stored[:, 1:])
        values.append(blocks[tuple(stored.T)])
    if not places:
        return _in_blocks(rows, columns, torch.empty(0, 2, dtype=torch.int64), torch.empty(0), block)
    return _in_blocks(rows, columns, torch.cat(places), torch.cat(values), block)


def _cells(rows: int, columns: int, size: int) -> Cells:
    """All cells of a matrix."""
    i, j = torch.arange(0, rows, size)[:, None], torch.arange(0, columns, size)[None, :]
    return Cells(i, (i + size).clamp(max=rows), j, (j + size).clamp(max=columns))


def _any(masks: Any) -> Tensor:
    """The disjunction of masks."""
    result, *others = masks
    for other in others:
        result = result | other
    return result  # type: ignore[no-any-return]


def _in_blocks(rows: int, columns: int, places: Tensor, values: Tensor, block: int) -> SparseTensor:
    """The mask with the blocks [n, block, block] at `places` [n, 2]."""
    counts = (-(-rows // block), -(-columns // block))
    order = torch.argsort(places[:, 0] * counts[1] + places[:, 1])
    starts = torch.zeros(counts[0] + 1, dtype=torch.int64)
    starts[1:] = torch.bincount(places[:, 0], minlength=counts[0]).cumsum(0)
    pos, crd = starts.to(torch.int32), places[order, 1].to(torch.int32)
    flat = values[order].reshape(-1).to(torch.bool)
    if block == 1:
        return SparseTensor(Pattern(Format("csr"), (rows, columns), (None, pos), (None, crd)), flat)
    form = Format(f"bcsr({block},{block})")
    pattern = Pattern(form, (rows, columns), (None, pos, None, None), (None, crd, None, None))
    return SparseTensor(pattern, flat)


def stacked(masks: Sequence[SparseTensor]) -> SparseTensor:
    """Masks of the same shape and format as one [heads, rows, columns], stored one after the other.

    Raises:
        InvalidTensorError: no mask, or masks of different shapes or formats.
    """
    kinds = {(mask.pattern.shape, mask.format) for mask in masks}
    if len(kinds) != 1:
        raise InvalidTensorError(
            f"{len(masks)} masks of {len(kinds)} kinds", "one shape and format for all heads"
        )
    ((shape, form),) = kinds
    ends = torch.tensor([0, *(len(mask._pattern._crd[1]) for mask in masks)]).cumsum(0)  # type: ignore[arg-type]
    pos = torch.cat([mask._pattern._pos[1][:-1] + end for mask, end in zip(masks, ends, strict=False)])  # type: ignore[index]
    pos = torch.cat([pos, ends[-1:]]).to(torch.int32)
    crd = torch.cat([mask._pattern._crd[1] for mask in masks])  # type: ignore[misc]
    size = block_of(form)
    blocks = f"h: dense, i/{size}: dense, j/{size}: compressed, i%{size}: dense, j%{size}: dense"
    joined = Format(blocks if size > 1 else "dense, dense, compressed")
    nothing = (None,) * (len(joined.levels) - 3)
    pattern = Pattern(joined, (len(masks), *shape), (None, None, pos, *nothing), (None, None, crd, *nothing))
    return SparseTensor(pattern, torch.cat([mask.values() for mask in masks]), fill=masks[0].fill)


def block_of(form: Format) -> int:
    """Tokens on each side of the blocks of a mask, 1 without blocks."""
    return max((stored.expression.size for stored in form.levels), default=0) or 1


def stored_in_blocks(mask: Any, block: int, *, causal: bool = False) -> SparseTensor:
    """The nonzero entries of a mask, as truth values in blocks.

    Raises:
        InvalidTensorError: neither a matrix nor a stack of matrices.
    """
    stored = tensor(mask, "coo") if not isinstance(mask, SparseTensor) else mask
    if stored.dim() not in (2, 3):
        raise InvalidTensorError(
            f"a mask of shape {list(stored.shape)}", "[rows, columns] or [heads, rows, columns]"
        )
    at = stored.coordinates()
    is_nonzero = stored.values() != 0
    at = at[:, is_nonzero & (at[-1] <= at[-2]) if causal else is_nonzero]
    if stored.dim() == 3:
        heads = [at[1:, at[0] == head] for head in range(stored.shape[0])]
        return stacked([_of_entries(head_at, stored.shape[1], stored.shape[2], block) for head_at in heads])
    return _of_entries(at, stored.shape[0], stored.shape[1], block)


def _of_entries(at: Tensor, rows: int, columns: int, block: int) -> SparseTensor:
    """The mask with the entries at the coordinates [2, n]."""
    count = max(1, -(-columns // block))
    keys, slots = torch.unique((at[0] // block) * count + at[1] // block, return_inverse=True)
    values = torch.zeros(len(keys), block, block, dtype=torch.bool)
    values[slots, at[0] % block, at[1] % block] = True
    return _in_blocks(rows, columns, torch.stack([keys // count, keys % count], 1), values, block)
