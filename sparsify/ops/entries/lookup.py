"""Entries at given coordinates: `gather take take_along_dim masked_select nonzero where(c) sparse_mask in`.

In: `torch.gather(A, 1, index)`. Out: the dense tensor of the entries at `index`, the fill for unstored ones;
differentiable in the values of A. Stored entries are found by binary search.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import ShapeError
from sparsify.ops.entries.move import Entries, entries_of
from sparsify.ops.register.table import operator, refuse
from sparsify.storage import convert
from sparsify.storage.modes import mode_of
from sparsify.storage.tensor import SparseTensor


def positions_at(input: SparseTensor, columns: Sequence[Tensor]) -> Tensor:
    """The position of the value at each of the coordinates [n], -1 for unstored entries.

    Args:
        columns: per mode the coordinates [n], inside the shape.
    """
    entries = entries_of(input)
    count = entries.columns[0].shape[0]
    if not count:
        return torch.full_like(columns[0], -1)
    joined = [torch.cat(pair) for pair in zip(entries.columns, columns, strict=True)]
    (key,) = convert.linear_keys(joined, input.shape)  # shapes have less than 2^63 entries
    stored, keys = key[:count], key[count:]
    order = torch.argsort(stored)
    nearest = order[torch.searchsorted(stored[order], keys).clamp(max=count - 1)]
    source = nearest if entries.source is None else entries.source[nearest]
    return torch.where(stored[nearest] == keys, source, -1)


def values_at(input: SparseTensor, positions: Tensor) -> Tensor:
    """The values at positions [n] of `positions_at`, the fill for -1; differentiable."""
    values = input.values()
    fill = torch.full((), input.fill, dtype=values.dtype)
    if not values.shape[0]:
        return fill.expand(positions.shape).clone()
    return torch.where(positions >= 0, values.index_select(0, positions.clamp(min=0)), fill)


def at_coordinates(input: SparseTensor, columns: Sequence[Tensor]) -> Tensor:
    """The entries at coordinates, one index tensor per mode, all of one shape, the shape of the result.

    Raises:
        IndexError: a coordinate outside of the shape.
    """
    shape = columns[0].shape
    inside = [
        checked(column.reshape(-1), mode, input.shape[mode]).long() for mode, column in enumerate(columns)
    ]
    return values_at(input, positions_at(input, inside)).reshape(shape)


def checked(chosen: Tensor, mode: int, extent: int) -> Tensor:
    """Integer places of a mode, counted from 0; negative ones count from the end.

    Raises:
        IndexError: an integer out of bounds.
    """
    wrong = ((chosen < -extent) | (chosen >= extent)).nonzero()
    if wrong.shape[0]:
        coordinate = int(chosen[tuple(wrong[0])])
        raise IndexError(f"index {coordinate} is out of bounds for mode {mode}, which has extent {extent}")
    return torch.where(chosen < 0, chosen + extent, chosen)


@operator(torch.gather, Tensor.gather)
def gather(
    input: SparseTensor, dim: int, index: Tensor, *, sparse_grad: bool = False, out: Any = None
) -> Tensor:
    """`torch.gather`: entries with the coordinate of one mode read from `index`."""
    if out is not None or not isinstance(input, SparseTensor) or isinstance(index, SparseTensor):
        raise refuse("gather with out=, or by a sparse index", "use the result")
    if index.dtype not in (torch.int32, torch.int64):
        raise refuse(f"gather by an index of {index.dtype}", "index.long()")
    mode = mode_of(dim, input.dim())
    if index.dim() != input.dim():
        raise ShapeError(f"gather of {input.dim()} modes by an index of {index.dim()}; as many")
    for other, (size, extent) in enumerate(zip(index.shape, input.shape, strict=True)):
        if other != mode and size > extent:
            raise ShapeError(
                f"gather of {list(input.shape)} by an index of {list(index.shape)}; no larger but in mode {mode}"
            )
    columns = [
        torch.arange(size).reshape(_along(other, index.dim())) for other, size in enumerate(index.shape)
    ]
    columns[mode] = index
    return at_coordinates(input, [column.expand(index.shape) for column in columns])


def _along(mode: int, rank: int) -> list[int]:
    """The shape of a vector along one of `rank` modes."""
    return [-1 if other == mode else 1 for other in range(rank)]


@operator(torch.take_along_dim, Tensor.take_along_dim)
def take_along_dim(
    input: SparseTensor, indices: Tensor, dim: int | None = None, *, out: Any = None
) -> Tensor:
    """`torch.take_along_dim`: `gather` with broadcasting."""
    if dim is None:
        return take(input, indices.reshape(-1))
    mode = mode_of(dim, input.dim())
    extents = [1 if other == mode else extent for other, extent in enumerate(input.shape)]
    sizes = [1 if other == mode else size for other, size in enumerate(indices.shape)]
    if len(sizes) != len(extents) or sizes != extents:
        raise refuse(f"take_along_dim of {list(input.shape)} by {list(indices.shape)}", "torch.gather")
    return gather(input, dim, indices, out=out)


@operator(torch.take, Tensor.take)
def take(input: SparseTensor, index: Tensor, *, out: Any = None) -> Tensor:
    """`torch.take`: entries by position in row-major order."""
    if out is not None or isinstance(index, SparseTensor):
        raise refuse("take with out=, or by a sparse index", "A[i, j]")
    if index.dtype != torch.int64:
        raise refuse(f"take by an index of {index.dtype}", "index.long()")
    flat = checked(index, 0, input.numel())
    columns = []
    for extent in reversed(input.shape):
        columns.append(flat % max(extent, 1))
        flat = flat // max(extent, 1)
    return at_coordinates(input, columns[::-1])


def stored_places(input: SparseTensor) -> Entries:
    """The nonzero entries, sorted by coordinate in row-major order."""
    if input.fill != 0:
        raise refuse(f"the places of entries that are not 0 with the fill {input.fill}", "with_fill(0)")
    entries = entries_of(input)
    values = input._vals.detach()
    entries = entries.selected((values if entries.source is None else values[entries.source]) != 0)
    sorting = convert.order(entries.columns, input.shape)
    return entries if sorting is None else entries.taken(sorting)


@operator(torch.nonzero, Tensor.nonzero)
def nonzero(input: SparseTensor, *, as_tuple: bool = False, out: Any = None) -> Any:
    """`torch.nonzero`: the coordinates of the nonzero entries."""
    if out is not None:
        raise refuse("nonzero with out=", "use the result")
    columns = stored_places(input).columns
    return tuple(columns) if as_tuple else torch.stack(columns, 1)


@operator(torch.argwhere, Tensor.argwhere)
def argwhere(input: SparseTensor) -> Tensor:
    """`torch.argwhere`: the coordinates of the nonzero entries, int64 [n, d]."""
    result: Tensor = nonzero(input)
    return result


@operator(torch.masked_select, Tensor.masked_select)
def masked_select(input: Tensor, mask: Tensor, *, out: Any = None) -> Tensor:
    """`torch.masked_select`: the entries at true places of a mask, in row-major order, as a dense vector."""
    if out is not None or input.shape != mask.shape or mask.dtype != torch.bool:
        raise refuse("masked_select with out=, or by a mask of another shape or dtype", "a mask of bool")
    columns = stored_places(mask).columns if isinstance(mask, SparseTensor) else mask.nonzero(as_tuple=True)
    return at_coordinates(input, list(columns)) if isinstance(input, SparseTensor) else input[tuple(columns)]


@operator(Tensor.sparse_mask)
def sparse_mask(input: Tensor, mask: Tensor) -> Tensor:
    """`A.sparse_mask(B)`: the entries of A at the stored coordinates of B, on the pattern of B."""
    if not isinstance(mask, SparseTensor) or input.shape != mask.shape:
        raise ShapeError(
            f"sparse_mask of {list(input.shape)} by {list(mask.shape)}; a SparseTensor of that shape"
        )
    pattern = mask.pattern
    if not isinstance(input, SparseTensor):
        from sparsify.storage.tensor import values_at as dense_at

        return SparseTensor(pattern, dense_at(input, pattern))
    coordinates, inside = pattern.kept_coordinates(False), pattern.kept_inside()
    columns = list(coordinates if inside is None else torch.where(inside, coordinates, 0))
    values = at_coordinates(input, columns)
    return SparseTensor(pattern, values if inside is None else torch.where(inside, values, 0))


@operator(Tensor.__contains__)
def contains(input: Tensor, element: Any) -> bool:
    """`x in A`: whether an entry, stored or not, equals a number."""
    if isinstance(element, Tensor) and element.dim():
        raise refuse("`in` with a tensor", "(A == B).any()")
    if not isinstance(input, SparseTensor) or not isinstance(element, int | float | complex | Tensor):
        raise refuse(f"`in` with a {type(element).__name__}", "a number")
    number = element.item() if isinstance(element, Tensor) else element
    entries = entries_of(input)
    values = input._vals.detach()
    values = values if entries.source is None else values[entries.source]
    return bool((values == number).any()) or (values.shape[0] < input.numel() and input.fill == number)


@operator(torch.unique, Tensor.unique)
def unique(
    input: SparseTensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """`torch.unique`: the distinct entries, including the fill; the inverse is a SparseTensor of int64."""
    if dim is not None or input.fill != input.fill:
        raise refuse("unique along a mode, or with the fill NaN", "unique of the entries")
    entries = entries_of(input)
    values = input._vals.detach()
    values = values if entries.source is None else values[entries.source]
    missing = input.numel() - values.shape[0]
    if missing:
        values = torch.cat([values, torch.full((1,), input.fill, dtype=values.dtype)])
    distinct, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    if missing:
        counts[inverse[-1]] += missing - 1
    results: list[Tensor] = [distinct]
    if return_inverse:
        places, fill = (inverse[:-1], int(inverse[-1])) if missing else (inverse, 0)
        inverse_values = torch.full((input.nnz,), fill)
        inverse_values = (
            places if entries.source is None else inverse_values.index_copy(0, entries.source, places)
        )
        results.append(SparseTensor(input.pattern, inverse_values, fill))
    if return_counts:
        results.append(counts)
    return results[0] if len(results) == 1 else tuple(results)
