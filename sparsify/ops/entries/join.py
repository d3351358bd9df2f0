"""Several tensors in one: `cat stack hstack vstack repeat expand`.

In: `torch.cat([A, B])` of sparse tensors with one fill. Out: the tensor of the entries of both, in the format of the
first.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import FormatError, ShapeError
from sparsify.ops.entries.index import index_select
from sparsify.ops.entries.move import entries_of, plain, same_modes
from sparsify.ops.entries.reshape import reshaped
from sparsify.ops.register.table import operator, refuse
from sparsify.storage import convert
from sparsify.storage.fill import same
from sparsify.storage.modes import mode_of
from sparsify.storage.tensor import SparseTensor


@operator(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None, out: Any = None) -> SparseTensor:
    """`torch.cat`: one after the other along a mode."""
    if out is not None:
        raise refuse("cat with out=", "use the result")
    parts = [tensor for tensor in tensors if isinstance(tensor, SparseTensor)]
    if len(parts) < len(tensors) or not all(same(part.fill, parts[0].fill) for part in parts):
        raise refuse("cat of dense tensors with sparse ones, or of different fills", "sparsify.tensor first")
    first = parts[0]
    mode = mode_of(dim if axis is None else axis, first.dim())
    for part in parts:
        if _rest(part, mode) != _rest(first, mode):
            raise ShapeError(
                f"cat of {list(first.shape)} and {list(part.shape)} along mode {mode}; equal extents in the others"
            )
    return _joined(parts, mode)


def _rest(tensor: Tensor, mode: int) -> list[int]:
    return [tensor.dim(), *tensor.shape[:mode], *tensor.shape[mode + 1 :]]


def _joined(parts: Sequence[SparseTensor], mode: int) -> SparseTensor:
    """The entries of all parts, with offsets along the mode."""
    columns_by_part, sources, start, before = [], [], 0, 0
    for part in parts:
        entries = entries_of(part)
        columns_by_part.append(entries.replaced(mode, entries.columns[mode] + start).columns)
        source = torch.arange(part.nnz) if entries.source is None else entries.source
        sources.append(source + before)
        start, before = start + part.shape[mode], before + part.nnz
    columns = [torch.cat(column) for column in zip(*columns_by_part, strict=True)]
    shape = (*parts[0].shape[:mode], start, *parts[0].shape[mode + 1 :])
    try:
        placed = convert.placed(columns, torch.cat(sources), shape, same_modes(parts[0].format))
    except FormatError:  # the shape exceeds a fixed index width
        placed = convert.placed(columns, torch.cat(sources), shape, plain(len(shape)))
    dtype = reduce(torch.promote_types, [part.dtype for part in parts])
    values = torch.cat([part.values().to(dtype) for part in parts])
    return SparseTensor(placed.pattern, convert.permuted(values, placed, parts[0].fill), parts[0].fill)


@operator(torch.stack)
def stack(tensors: Sequence[Tensor], dim: int = 0, *, out: Any = None) -> SparseTensor:
    """`torch.stack`: one after the other along a new mode."""
    parts = [tensor for tensor in tensors if isinstance(tensor, SparseTensor)]
    if out is not None or len(parts) < len(tensors):
        raise refuse("stack with out=, or of dense tensors with sparse ones", "sparsify.tensor first")
    shape = list(parts[0].shape)
    for part in parts:
        if list(part.shape) != shape:
            raise ShapeError(f"stack of {shape} and {list(part.shape)}; tensors of one shape")
    mode = mode_of(dim, len(shape) + 1)
    return cat([reshaped(part, [*shape[:mode], 1, *shape[mode:]]) for part in parts], mode)


@operator(torch.hstack)
def hstack(tensors: Sequence[Tensor], *, out: Any = None) -> SparseTensor:
    """`torch.hstack`: side by side, vectors one after the other."""
    return cat(tensors, 0 if tensors[0].dim() == 1 else 1, out=out)


@operator(torch.vstack)
def vstack(tensors: Sequence[Tensor], *, out: Any = None) -> SparseTensor:
    """`torch.vstack`: one below the other; a vector is a row."""
    if any(tensor.dim() < 2 for tensor in tensors):
        return stack(tensors, out=out)
    return cat(tensors, 0, out=out)


@operator(Tensor.repeat)
def repeat(input: SparseTensor, *repeats: Any) -> SparseTensor:
    """`A.repeat(2, 1)`: the whole tensor several times along each mode; new modes come first."""
    counts = list(repeats[0]) if len(repeats) == 1 and not isinstance(repeats[0], int) else list(repeats)
    if len(counts) < input.dim():
        raise ShapeError(f"{counts} repeats of a tensor of {input.dim()} modes; one for each mode or more")
    if min(counts) < 1:
        raise refuse(f"the repeats {counts}", "1 or more for each mode")
    result = reshaped(input, [1] * (len(counts) - input.dim()) + list(input.shape))
    for mode, count in enumerate(counts):
        result = _joined([result] * count, mode) if count > 1 else result
    return result


@operator(torch.tile, Tensor.tile)
def tile(input: SparseTensor, *dims: Any) -> SparseTensor:
    """`torch.tile`: as `repeat`, once along the first modes if fewer are given."""
    counts = list(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else list(dims)
    return repeat(input, [1] * (input.dim() - len(counts)) + counts)


@operator(Tensor.expand)
def expand(input: SparseTensor, *sizes: Any) -> Tensor:
    """`A.expand(4, -1)`: modes of extent 1 expanded, with repeated entries."""
    target = list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else list(sizes)
    added = len(target) - input.dim()
    if added < 0:
        raise ShapeError(f"expand of {list(input.shape)} to {target}; as many modes or more")
    result: Tensor = reshaped(input, [1] * added + list(input.shape))
    for mode, size in enumerate(target):
        extent = result.shape[mode]
        if size in (-1, extent):
            continue
        if extent != 1 or size < 0:
            raise ShapeError(f"expand of {list(input.shape)} to {target}; other extents only where one is 1")
        assert isinstance(result, SparseTensor), "modes are left"
        result = index_select(result, mode, torch.zeros(size, dtype=torch.int64))
    return result
