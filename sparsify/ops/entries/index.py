"""Parts of a sparse tensor: slices, rows, `index_select` and functions of torch built on them.

In: `A[2:5, :, 0]`. Out: the tensor of the selected entries, in the format of A without the removed modes; a number
if all modes are removed.
"""

from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Any, cast

import torch
from torch import Tensor

from sparsify.errors import ShapeError
from sparsify.ops.entries import lookup
from sparsify.ops.entries.move import Entries, entries_of, moved, without_modes
from sparsify.ops.entries.reshape import reshaped
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.modes import mode_of
from sparsify.storage.tensor import SparseTensor

Item = int | slice | EllipsisType | Tensor | None


@operator(Tensor.__getitem__)
def getitem(input: SparseTensor, key: Any) -> Tensor:
    """`A[key]`: slices, integers, `...`, `None`, and lists of integers or booleans for one mode each."""
    if _is_full_mask(key, input):
        return lookup.masked_select(input, key)
    items = _spelled_out(key if isinstance(key, tuple) else (key,), input.dim())
    lists = [item for item in items if isinstance(item, Tensor)]
    if len(lists) > 1 or any(item.dim() > 1 for item in lists):
        return _gathered(input, items)
    entries, shape, gone = _cut(input, items)
    if len(gone) == input.dim():
        result = _number(input, entries)
    else:
        format = without_modes(input.format, gone)
        result = moved(input, entries, shape, format)
    if not any(item is None for item in items):
        return result
    extents = iter(shape)
    result_shape = [1 if item is None else next(extents) for item in items if not isinstance(item, int)]
    return (
        reshaped(result, result_shape) if isinstance(result, SparseTensor) else result.reshape(result_shape)
    )


def _is_full_mask(key: Any, input: SparseTensor) -> bool:
    """Whether an index is a mask of all modes; a dense mask of one mode selects places, with a sparse result."""
    if not isinstance(key, Tensor) or key.dtype != torch.bool or key.shape != input.shape:
        return False
    return key.dim() > 1 or isinstance(key, SparseTensor)


def _spelled_out(key: Sequence[Any], rank: int) -> list[Any]:
    """One item for each mode, `None` between them; `...` and missing items become whole modes."""
    count = sum(item is not None and item is not Ellipsis for item in key)
    if count > rank:
        raise ShapeError(f"{count} indices for a tensor of {rank} modes; as many or fewer")
    full_slices: list[Any] = [slice(None)] * (rank - count)
    places = [position for position, item in enumerate(key) if item is Ellipsis]
    if len(places) > 1:
        raise ShapeError("an index with `...` twice; once")
    at = places[0] if places else len(key)
    return [_item(item) for item in (*key[:at], *full_slices, *key[at + 1 :])]


def _item(item: Any) -> Item:
    """An index as an integer, a slice, `None` or a vector of integers."""
    if item is None or isinstance(item, slice):
        return item
    if isinstance(item, list | tuple | range):
        item = torch.tensor(item if len(item) else torch.zeros(0, dtype=torch.int64))
    if isinstance(item, Tensor):
        is_mask = item.dtype == torch.bool and item.dim() == 1
        if item.is_floating_point() or item.is_complex() or (isinstance(item, SparseTensor) and not is_mask):
            raise refuse(f"an index of {item.dtype}", "integers or booleans")
        if item.dim() == 0 and item.dtype != torch.bool:
            return int(item)
        return item
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        raise refuse(f"the index {item!r}")
    return int(item)


def _cut(input: SparseTensor, items: Sequence[Item]) -> tuple[Entries, list[int], list[int]]:
    """The selected entries, the extents of the remaining modes, and the removed modes."""
    entries, shape, gone = entries_of(input), [], []
    at = 0  # the column of the mode
    for mode, item in enumerate(item for item in items if item is not None):
        extent = input.shape[mode]
        if isinstance(item, int):
            entries = entries.selected(entries.columns[at] == _inside(item, mode, extent)).replaced(at)
            gone.append(mode)
            continue
        if isinstance(item, slice):
            entries, length = _sliced(entries, at, item, extent)
        else:
            assert isinstance(item, Tensor), "the others have no mode"
            chosen = _places(item, mode, extent)
            entries, length = _selected(entries, at, chosen), chosen.shape[0]
        shape.append(length)
        at += 1
    return entries, shape, gone


def _gathered(input: SparseTensor, items: Sequence[Item]) -> Tensor:
    """The entries at integer indices for every mode, dense."""
    kinds = {item.dtype if isinstance(item, Tensor) else type(item) for item in items}
    if not kinds <= {int, torch.int32, torch.int64}:
        raise refuse("indices of several modes at once", "A.index_select for one mode after the other")
    columns = [item if isinstance(item, Tensor) else torch.tensor(item) for item in items]
    try:
        columns = list(torch.broadcast_tensors(*columns))
    except RuntimeError:
        shapes = " and ".join(str(list(column.shape)) for column in columns)
        raise ShapeError(f"indices of shapes {shapes}; shapes that broadcast together") from None
    return lookup.at_coordinates(input, columns)


def _inside(coordinate: int, mode: int, extent: int) -> int:
    if not -extent <= coordinate < extent:
        raise IndexError(f"index {coordinate} is out of bounds for mode {mode}, which has extent {extent}")
    return coordinate % extent


def _sliced(entries: Entries, at: int, range_slice: slice, extent: int) -> tuple[Entries, int]:
    """The entries inside a slice of one mode, and the new extent."""
    if range_slice.step is not None and int(range_slice.step) < 1:
        raise ShapeError(
            f"a slice with the step {range_slice.step}; torch's slices go forward, torch.flip turns"
        )
    places = range(*range_slice.indices(extent))
    if len(places) == extent:
        return entries, extent
    column = entries.columns[at]
    inside = (column >= places.start) & (column < places.stop)
    if places.step > 1:
        inside &= (column - places.start) % places.step == 0
    entries = entries.selected(inside)
    return entries.replaced(at, (entries.columns[at] - places.start) // places.step), len(places)


def _places(item: Tensor, mode: int, extent: int) -> Tensor:
    """The places selected by a vector of integers or booleans, counted from 0."""
    if item.dtype == torch.bool:
        if tuple(item.shape) != (extent,):
            raise ShapeError(f"a mask of shape {list(item.shape)} for mode {mode}; [{extent}]")
        marked: Tensor = lookup.nonzero(item) if isinstance(item, SparseTensor) else item.nonzero()
        return marked.squeeze(1)
    return lookup.checked(item.long(), mode, extent)


def _selected(entries: Entries, at: int, chosen: Tensor) -> Entries:
    """The entries with a selected coordinate in one mode, repeated for repeated selections."""
    sorted_choice, order = torch.sort(chosen, stable=True)
    column = entries.columns[at]
    first = torch.searchsorted(sorted_choice, column)
    counts = torch.searchsorted(sorted_choice, column, right=True) - first
    taken = torch.repeat_interleave(counts)
    nth = torch.arange(taken.shape[0]) - (counts.cumsum(0) - counts)[taken]
    return entries.taken(taken).replaced(at, order[first[taken] + nth])


def _number(input: SparseTensor, entries: Entries) -> Tensor:
    """The single remaining entry, or the fill."""
    source = entries.source
    if source is None or not source.shape[0]:
        return torch.full((), cast(float, input.fill), dtype=input.dtype)
    return input.values().index_select(0, source).sum(dtype=input.dtype)


# torch-geometric replaces `torch.index_select` by a function that calls the original.
@operator(torch.index_select, torch._C._VariableFunctions.index_select, Tensor.index_select)
def index_select(input: SparseTensor, dim: int, index: Tensor, *, out: Any = None) -> Tensor:
    """`torch.index_select`: the places of one mode listed in a vector, in the given order."""
    if out is not None or index.dim() > 1 or index.dtype not in (torch.int32, torch.int64):
        raise refuse("index_select with out=, or by anything but a vector of integers", "A[index]")
    return getitem(input, (*_before(input, dim), index.reshape(-1)))


@operator(torch.select, Tensor.select)
def select(input: SparseTensor, dim: int, index: int) -> Tensor:
    """`torch.select`: one place of a mode; the mode is removed."""
    return getitem(input, (*_before(input, dim), index))


@operator(torch.narrow, Tensor.narrow)
def narrow(input: SparseTensor, dim: int, start: Any, length: int) -> Tensor:
    """`torch.narrow`: `length` places of a mode from `start` on."""
    extent = input.shape[mode_of(dim, input.dim())]
    first = int(start) + (extent if start < 0 else 0)
    if not (first >= 0 and length >= 0 and first + length <= extent):
        raise ShapeError(f"narrow from {start} for {length} of the {extent} places of mode {dim}")
    return getitem(input, (*_before(input, dim), slice(first, first + length)))


@operator(torch.unbind, Tensor.unbind)
def unbind(input: SparseTensor, dim: int = 0) -> tuple[Tensor, ...]:
    """`torch.unbind`: every place of a mode."""
    return tuple(places_along(input, dim))


@operator(Tensor.__iter__)
def places_along(input: SparseTensor, dim: int = 0) -> Iterator[Tensor]:
    """The places of a mode, made lazily; the entries are sorted by the mode once."""
    if not input.dim():
        raise TypeError("iteration over a 0-d tensor")
    mode = mode_of(dim, input.dim())
    return _places_along(input, mode)


def _places_along(input: SparseTensor, mode: int) -> Iterator[Tensor]:
    """The places of a mode counted from 0."""
    with torch._C.DisableTorchFunctionSubclass():
        entries = entries_of(input)
        extent = input.shape[mode]
        column = entries.columns[mode]
        order = torch.argsort(column, stable=True)
        bounds = torch.bincount(column, minlength=extent).cumsum(0).tolist()
        shape = [size for other, size in enumerate(input.shape) if other != mode]
        format = without_modes(input.format, [mode]) if shape else None
    for start, stop in zip([0, *bounds], bounds, strict=False):
        with torch._C.DisableTorchFunctionSubclass():
            entries_at = entries.taken(order[start:stop]).replaced(mode)
            result = _number(input, entries_at) if format is None else moved(input, entries_at, shape, format)
        yield result


@operator(torch.split, Tensor.split)
def split(input: SparseTensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """`torch.split`: parts of a mode, of one size or of several."""
    extent = input.shape[mode_of(dim, input.dim())]
    sizes = split_size_or_sections
    if isinstance(sizes, int):
        if sizes < 1:
            raise ShapeError(f"parts of {sizes} places; 1 or more")
        sizes = [min(sizes, extent - start) for start in range(0, max(extent, 1), sizes)]
    if sum(sizes) != extent or min(sizes) < 0:
        raise ShapeError(f"parts of {list(sizes)} places of a mode of {extent}; parts that add up to it")
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return tuple(narrow(input, dim, start, size) for start, size in zip(starts, sizes, strict=True))


@operator(torch.chunk, Tensor.chunk)
def chunk(input: SparseTensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`torch.chunk`: a mode in the given number of parts, or fewer."""
    if chunks < 1:
        raise ShapeError(f"{chunks} parts; 1 or more")
    extent = input.shape[mode_of(dim, input.dim())]
    return split(input, max(1, -(-extent // chunks)), dim)


def _before(input: SparseTensor, dim: int) -> list[slice]:
    """Whole-mode indices up to a mode."""
    return [slice(None)] * mode_of(dim, input.dim())
