"""Entries by their distance from the diagonal: `diagonal trace tril triu flip roll`.

In: `torch.tril(A)`. Out: the tensor of the entries on and below the diagonal, in the format of A.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import ShapeError
from sparsify.ops import reductions
from sparsify.ops.move import Entries, entries_of, mode_of, moved, plain, same_modes
from sparsify.ops.table import operator, refuse
from sparsify.storage.tensor import SparseTensor


@operator(torch.diagonal, Tensor.diagonal)
def diagonal(input: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> SparseTensor:
    """`torch.diagonal`: where one mode is `offset` ahead of another; they become the last mode."""
    first, second = mode_of(dim1, input.dim()), mode_of(dim2, input.dim())
    if first == second:
        raise ShapeError(f"a diagonal of mode {dim1} with itself; two modes")
    entries = entries_of(input)
    entries = entries.kept(entries.columns[second] - entries.columns[first] == offset)
    rest = [mode for mode in range(input.dim()) if mode not in (first, second)]
    columns = [entries.columns[mode] for mode in (*rest, first if offset >= 0 else second)]
    length = min(input.shape[first] + min(offset, 0), input.shape[second] - max(offset, 0))
    shape = [*(input.shape[mode] for mode in rest), max(0, length)]
    return moved(input, Entries(columns, entries.source), shape, plain(len(shape)))


@operator(torch.trace, Tensor.trace)
def trace(input: SparseTensor) -> Tensor:
    """`torch.trace`: the sum of the diagonal."""
    if input.dim() != 2:
        raise ShapeError(f"the trace of a tensor of {input.dim()} modes; 2")
    return reductions.sum(diagonal(input))


@operator(torch.tril, Tensor.tril)
def tril(input: SparseTensor, diagonal: int = 0, *, out: Any = None) -> SparseTensor:
    """`torch.tril`: what lies on a diagonal and below."""
    return _triangle(input, out, lambda ahead: ahead <= diagonal)


@operator(torch.triu, Tensor.triu)
def triu(input: SparseTensor, diagonal: int = 0, *, out: Any = None) -> SparseTensor:
    """`torch.triu`: what lies on a diagonal and above."""
    return _triangle(input, out, lambda ahead: ahead >= diagonal)


def _triangle(input: SparseTensor, out: Any, lies: Any) -> SparseTensor:
    """The entries of the last two modes that lie somewhere by how far the column is ahead of the row."""
    if out is not None or input.fill != 0:
        raise refuse("a triangle with out=, or of a tensor whose fill is not 0")
    if input.dim() < 2:
        raise ShapeError(f"a triangle of a tensor of {input.dim()} modes; 2 or more")
    entries = entries_of(input)
    kept = entries.kept(lies(entries.columns[-1] - entries.columns[-2]))
    return moved(input, kept, input.shape, same_modes(input.format))


@operator(torch.flip, Tensor.flip)
def flip(input: SparseTensor, *dims: Any) -> SparseTensor:
    """`torch.flip`: modes from the last place to the first."""
    entries = entries_of(input)
    listed: Sequence[int] = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    for mode in {mode_of(dim, input.dim()) for dim in listed}:
        entries = entries.replaced(mode, input.shape[mode] - 1 - entries.columns[mode])
    return moved(input, entries, input.shape, same_modes(input.format))


@operator(torch.roll, Tensor.roll)
def roll(input: SparseTensor, shifts: Any, dims: Any = ()) -> SparseTensor:
    """`torch.roll`: places further along modes, from the end to the front."""
    by, modes = ([value] if isinstance(value, int) else list(value) for value in (shifts, dims))
    if len(by) != len(modes):
        raise refuse("a roll of all modes as one", "as many shifts as modes")
    entries = entries_of(input)
    for shift, dim in zip(by, modes, strict=True):
        mode = mode_of(dim, input.dim())
        entries = entries.replaced(mode, (entries.columns[mode] + shift) % max(1, input.shape[mode]))
    return moved(input, entries, input.shape, same_modes(input.format))
