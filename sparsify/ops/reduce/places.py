"""Places of the largest and the smallest entries: `argmax argmin`. Unstored entries count as the fill.

In: `torch.argmax(A, 1)`. Out: per row the first column of the largest entry, int64; no dense copy of A.

An extreme equal to the fill may also be at the first unstored coordinate: with the entries of a row numbered in order,
the first entry with a column different from its number leaves that number free.
"""

from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from sparsify.ops.entries.move import LARGEST_KEY, entries_of
from sparsify.ops.entries.reshape import reshaped
from sparsify.ops.reduce.reductions import is_vast, modes_of, with_ones
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.convert import from_sorted
from sparsify.storage.format import Format
from sparsify.storage.tensor import SparseTensor


@operator(torch.argmax, Tensor.argmax)
def argmax(input: SparseTensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Tensor:
    """`torch.argmax`: the first place of the largest entry."""
    return _extreme_coordinate("amax", input, dim, keepdim, out)


@operator(torch.argmin, Tensor.argmin)
def argmin(input: SparseTensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Tensor:
    """`torch.argmin`: the first place of the smallest entry."""
    return _extreme_coordinate("amin", input, dim, keepdim, out)


def _extreme_coordinate(
    extreme: str, input: SparseTensor, dim: int | None, keepdim: bool, out: Any
) -> Tensor:
    """The first coordinate along a mode, or the first place of all, of the largest or smallest entry."""
    if out is not None or input.dtype == torch.bool or input.dtype.is_complex:
        raise refuse("places of extremes with out=, or of bool and complex entries")
    mode = 0 if dim is None else modes_of(input, dim)[0]
    stored = cast(SparseTensor, input.detach())
    matrix = stored if dim is not None else reshaped(stored, (stored.numel(),))
    if matrix.shape[mode] == 0:
        raise refuse("the largest or smallest of no entries")
    rest = [extent for other, extent in enumerate(matrix.shape) if other != mode]
    entries = entries_of(matrix)
    values = matrix.values() if entries.source is None else matrix.values()[entries.source]
    rows = torch.zeros_like(entries.columns[mode])
    for other, extent in enumerate(matrix.shape):
        if other != mode:
            rows = rows * extent + entries.columns[other]
    if prod(rest) * matrix.shape[mode] > LARGEST_KEY:
        raise refuse(f"places in a tensor of shape {list(input.shape)}", "modes whose product is below 2^63")
    nonempty_rows, rows = rows.unique(return_inverse=True)
    coordinates = _of_rows(
        extreme, (rows, entries.columns[mode], values), (len(nonempty_rows), matrix.shape[mode]), input.fill
    )
    result = _spread(input, nonempty_rows, coordinates, rest)
    if dim is None:
        return result.reshape([1] * input.dim() if keepdim else [])
    return with_ones(result, input.shape, (mode,)) if keepdim else result


def _spread(input: SparseTensor, nonempty_rows: Tensor, coordinates: Tensor, shape: list[int]) -> Tensor:
    """The places of the rows with entries, and 0 for all others."""
    if not is_vast(input, shape):
        return (
            torch.zeros(prod(shape), dtype=torch.int64)
            .index_put((nonempty_rows,), coordinates)
            .reshape(shape)
        )
    pattern, _ = from_sorted([nonempty_rows], (prod(shape),), Format("compressed"))
    return reshaped(SparseTensor(pattern, coordinates), shape)


def _of_rows(
    extreme: str, entries: tuple[Tensor, Tensor, Tensor], shape: tuple[int, int], fill: Any
) -> Tensor:
    """Per row the first column of the extreme entry, from the rows, columns and values of the entries."""
    count, width = shape
    order = torch.argsort(entries[0] * width + entries[1])
    rows, columns, values = (part[order] for part in entries)
    stored = torch.bincount(rows, minlength=count)
    number = torch.arange(len(rows)) - (stored.cumsum(0) - stored)[rows]
    free = stored.scatter_reduce(0, rows, torch.where(columns == number, width, number), "amin")
    has_free = stored < width
    start = torch.full((count,), fill, dtype=values.dtype)
    best = start.scatter_reduce(0, rows, values, extreme, include_self=False)
    both = torch.stack([best, start])
    best = torch.where(has_free, both.amax(0) if extreme == "amax" else both.amin(0), best)
    is_best = (values == best[rows]) | (values.isnan() & best[rows].isnan())
    first = torch.full((count,), width).scatter_reduce(0, rows, torch.where(is_best, columns, width), "amin")
    is_fill = has_free & ((best == start) | (best.isnan() & start.isnan()))
    return torch.where(is_fill, torch.minimum(first, free), first)
