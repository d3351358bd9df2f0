"""Entries moved to computed coordinates: `diagonal diag trace tril triu flip rot90 roll pad`.

In: `torch.tril(A)`. Out: the tensor of the entries on and below the diagonal, in the format of A.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsify.errors import ShapeError
from sparsify.ops.entries import join
from sparsify.ops.entries.move import Entries, entries_of, moved, plain, same_modes
from sparsify.ops.entries.reshape import reshaped
from sparsify.ops.reduce import reductions
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.modes import mode_of
from sparsify.storage.tensor import SparseTensor


@operator(torch.diagonal, Tensor.diagonal)
def diagonal_of(input: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> SparseTensor:
    """`torch.diagonal`: the entries with one mode `offset` ahead of another; both become the last mode."""
    first, second = mode_of(dim1, input.dim()), mode_of(dim2, input.dim())
    if first == second:
        raise ShapeError(f"a diagonal of mode {dim1} with itself; two modes")
    entries = entries_of(input)
    entries = entries.selected(entries.columns[second] - entries.columns[first] == offset)
    rest = [mode for mode in range(input.dim()) if mode not in (first, second)]
    columns = [entries.columns[mode] for mode in (*rest, first if offset >= 0 else second)]
    length = min(input.shape[first] + min(offset, 0), input.shape[second] - max(offset, 0))
    shape = [*(input.shape[mode] for mode in rest), max(0, length)]
    return moved(input, Entries(columns, entries.source), shape, plain(len(shape)))


@operator(torch.diag, Tensor.diag)
def diag(input: SparseTensor, diagonal: int = 0, *, out: Any = None) -> SparseTensor:
    """`torch.diag`: a diagonal of a matrix, or the matrix with a vector on one."""
    if out is not None or input.dim() not in (1, 2):
        raise refuse(f"diag with out=, or of {input.dim()} modes", "1 or 2 modes")
    return diag_embed(input, diagonal) if input.dim() == 1 else diagonal_of(input, diagonal)


@operator(torch.diag_embed, Tensor.diag_embed)
def diag_embed(input: SparseTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> SparseTensor:
    """`torch.diag_embed`: the last mode on a diagonal of two new modes."""
    first, second = mode_of(dim1, input.dim() + 1), mode_of(dim2, input.dim() + 1)
    if first == second or input.fill != 0:
        raise refuse("a diagonal of one mode, or of entries whose fill is not 0", "two modes")
    entries = entries_of(input)
    along = entries.columns[-1]
    columns, shape = list(entries.columns[:-1]), list(input.shape[:-1])
    placed = {first: along + max(0, -offset), second: along + max(0, offset)}
    for mode in sorted(placed):
        columns.insert(mode, placed[mode])
        shape.insert(mode, input.shape[-1] + abs(offset))
    return moved(input, Entries(columns, entries.source), shape, plain(len(shape)))


@operator(torch.diagflat, Tensor.diagflat)
def diagflat(input: SparseTensor, offset: int = 0) -> SparseTensor:
    """`torch.diagflat`: all entries, in row-major order, on a diagonal of a matrix."""
    return diag_embed(reshaped(input, (input.numel(),)), offset)


@operator(torch.trace, Tensor.trace)
def trace(input: SparseTensor) -> Tensor:
    """`torch.trace`: the sum of the diagonal."""
    if input.dim() != 2:
        raise ShapeError(f"the trace of a tensor of {input.dim()} modes; 2")
    return reductions.sum(diagonal_of(input))


@operator(torch.tril, Tensor.tril)
def tril(input: SparseTensor, diagonal: int = 0, *, out: Any = None) -> SparseTensor:
    """`torch.tril`: the entries on and below a diagonal."""
    return _triangle(input, out, lambda ahead: ahead <= diagonal)


@operator(torch.triu, Tensor.triu)
def triu(input: SparseTensor, diagonal: int = 0, *, out: Any = None) -> SparseTensor:
    """`torch.triu`: the entries on and above a diagonal."""
    return _triangle(input, out, lambda ahead: ahead >= diagonal)


def _triangle(input: SparseTensor, out: Any, lies: Any) -> SparseTensor:
    """The entries selected by the distance of the column from the row, for the last two modes."""
    if out is not None or input.fill != 0:
        raise refuse("a triangle with out=, or of a tensor whose fill is not 0")
    if input.dim() < 2:
        raise ShapeError(f"a triangle of a tensor of {input.dim()} modes; 2 or more")
    entries = entries_of(input)
    selected = entries.selected(lies(entries.columns[-1] - entries.columns[-2]))
    return moved(input, selected, input.shape, same_modes(input.format))


@operator(torch.flip, Tensor.flip)
def flip(input: SparseTensor, *dims: Any) -> SparseTensor:
    """`torch.flip`: modes reversed."""
    entries = entries_of(input)
    listed: Sequence[int] = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    for mode in {mode_of(dim, input.dim()) for dim in listed}:
        entries = entries.replaced(mode, input.shape[mode] - 1 - entries.columns[mode])
    return moved(input, entries, input.shape, same_modes(input.format))


@operator(torch.roll, Tensor.roll)
def roll(input: SparseTensor, shifts: Any, dims: Any = ()) -> SparseTensor:
    """`torch.roll`: entries shifted along modes, cyclically."""
    by, modes = ([value] if isinstance(value, int) else list(value) for value in (shifts, dims))
    if not modes and len(by) == 1:
        return reshaped(roll(reshaped(input, (input.numel(),)), by, 0), input.shape)
    if len(by) != len(modes):
        raise ShapeError(f"a roll by {by} along the modes {modes}; as many shifts as modes")
    entries = entries_of(input)
    for shift, dim in zip(by, modes, strict=True):
        mode = mode_of(dim, input.dim())
        entries = entries.replaced(mode, (entries.columns[mode] + shift) % max(1, input.shape[mode]))
    return moved(input, entries, input.shape, same_modes(input.format))


@operator(torch.fliplr, Tensor.fliplr)
def fliplr(input: SparseTensor) -> SparseTensor:
    """`torch.fliplr`: columns reversed."""
    return flip(input, 1)


@operator(torch.flipud, Tensor.flipud)
def flipud(input: SparseTensor) -> SparseTensor:
    """`torch.flipud`: rows reversed."""
    return flip(input, 0)


@operator(torch.rot90, Tensor.rot90)
def rot90(input: SparseTensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> SparseTensor:
    """`torch.rot90`: a plane rotated by `k` right angles."""
    if len(dims) != 2:
        raise ShapeError(f"a plane of the modes {dims}; two modes")
    first, second = dims
    match k % 4:
        case 1:
            return flip(input, second).transpose(first, second)
        case 2:
            return flip(input, first, second)
        case 3:
            return flip(input, first).transpose(first, second)
    return input


@operator(functional.pad)
def pad(input: SparseTensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> SparseTensor:
    """`torch.nn.functional.pad` with the fill; a negative size crops."""
    if mode != "constant" or (0 if value is None else value) != input.fill:
        raise refuse(f"pad by {mode} {value or 0} with the fill {input.fill}", "the fill as value")
    if len(pad) % 2 or len(pad) > 2 * input.dim():
        raise ShapeError(f"pad by {list(pad)} of {input.dim()} modes; two sizes for each of the last modes")
    entries, shape = entries_of(input), list(input.shape)
    for number in range(len(pad) // 2):
        at, (before, after) = input.dim() - 1 - number, pad[2 * number : 2 * number + 2]
        shape[at] += before + after
        if shape[at] < 0:
            raise ShapeError(f"pad of {list(input.shape)} by {list(pad)}; no extent below 0")
        entries = entries.replaced(at, entries.columns[at] + before)
        if before < 0 or after < 0:
            column = entries.columns[at]
            entries = entries.selected((column >= 0) & (column < shape[at]))
    return moved(input, entries, shape, same_modes(input.format))


@operator(torch.block_diag)
def block_diag(*tensors: Tensor) -> SparseTensor:
    """`torch.block_diag`: matrices one after the other along the diagonal."""
    if not all(isinstance(part, SparseTensor) and part.dim() == 2 for part in tensors):
        raise refuse("block_diag of others than sparse matrices", "sparsify.tensor first")
    widths = [part.shape[1] for part in tensors]
    padded = [
        pad(part, (sum(widths[:n]), sum(widths[n + 1 :])))
        for n, part in enumerate(tensors)
        if isinstance(part, SparseTensor)
    ]
    return join.cat(padded)
