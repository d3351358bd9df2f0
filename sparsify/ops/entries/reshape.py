"""Modes merged and split: `reshape flatten squeeze unsqueeze` and their relatives.

In: `A.reshape(20, 6)` of a tensor [4, 5, 6]. Out: a tensor [20, 6] of the same entries, in coordinate format; in the
format of A if only modes of extent 1 are added or removed.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from sparsify.errors import ShapeError
from sparsify.ops.entries.move import (
    LARGEST_KEY,
    Entries,
    entries_of,
    moved_cached,
    plain,
    same_modes,
    shape_after,
    with_modes,
    without_modes,
)
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.tensor import SparseTensor


def reshaped(input: SparseTensor, shape: Sequence[int]) -> SparseTensor:
    """The tensor in another shape, with the entries in the same order."""
    target = tuple(shape)
    if target == tuple(input.shape):
        return input
    if not target:
        raise refuse("a sparse tensor without modes", "A.sum()")
    old = [mode for mode, extent in enumerate(input.shape) if extent != 1]
    new = [mode for mode, extent in enumerate(target) if extent != 1]
    if [input.shape[mode] for mode in old] == [target[mode] for mode in new]:
        return _ones_changed(input, target, old, new)
    return moved_cached(
        input,
        "reshape",
        lambda: _regrouped(entries_of(input), input.shape, target),
        target,
        plain(len(target)),
    )


def _ones_changed(
    input: SparseTensor, shape: tuple[int, ...], old: Sequence[int], new: Sequence[int]
) -> SparseTensor:
    """The same modes with other modes of extent 1: removes the old ones, inserts the new ones."""
    gone = [mode for mode in range(input.dim()) if mode not in old]
    added = [mode for mode in range(len(shape)) if mode not in new]
    format = without_modes(input.format, gone) if old else plain(len(shape))
    if old:
        format = with_modes(format, added, len(shape))

    def make() -> Entries:
        entries = entries_of(input)
        zeros = torch.zeros(entries.columns[0].shape[0], dtype=torch.int64)
        columns = [zeros] * len(shape)
        for before, after in zip(old, new, strict=True):
            columns[after] = entries.columns[before]
        return Entries(columns, entries.source)

    return moved_cached(input, "ones", make, shape, same_modes(format))


def _regrouped(entries: Entries, old: Sequence[int], new: Sequence[int]) -> Entries:
    """Entries in the modes of another shape, by minimal groups of modes with equal products of extents."""
    if prod(new) == 0:
        return Entries([torch.zeros(0, dtype=torch.int64)] * len(new), torch.zeros(0, dtype=torch.int64))
    columns: list[Tensor] = []
    read = 0
    while len(columns) < len(new):
        first, last, size, target_size = len(columns), len(columns) + 1, 1, new[len(columns)]
        start = read
        while size != target_size or (last == len(new) and read < len(old)):
            if size < target_size or last == len(new):
                size *= old[read]
                read += 1
            else:
                target_size *= new[last]
                last += 1
        if max(size, target_size) > LARGEST_KEY:
            raise refuse(f"a reshape that counts {size} entries in one", "modes whose product is below 2^63")
        columns += _split_key(
            _linear_key(entries.columns[start:read], old[start:read]), new[first:last], entries
        )
    return Entries(columns, entries.source)


def _linear_key(columns: Sequence[Tensor], extents: Sequence[int]) -> Tensor | int:
    """One linear number for the coordinates of several modes."""
    key: Tensor | int = 0
    for column, extent in zip(columns, extents, strict=True):
        key = key * extent + column
    return key


def _split_key(key: Tensor | int, extents: Sequence[int], entries: Entries) -> list[Tensor]:
    """The coordinates of several modes from one linear number."""
    columns = []
    rest = key if isinstance(key, Tensor) else torch.zeros_like(entries.columns[0])
    for extent in reversed(extents):
        columns.append(rest % extent)
        rest = rest // extent
    return columns[::-1]


def _by_shape(function: Any) -> Any:
    """The implementation of a torch function that changes only the shape."""

    def change(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(input, SparseTensor):  # in the shape of a sparse one
            return input.reshape(args[0].shape)
        if any(isinstance(argument, torch.dtype) for argument in (*args, *kwargs.values())):
            raise refuse("values read as another dtype", "A.to(dtype)")
        try:
            shape = shape_after(input, function, *args, **kwargs)
        except RuntimeError as error:
            raise ShapeError(f"{str(error).splitlines()[0]}; a shape with as many entries") from None
        return reshaped(input, shape)

    return change


for _name in ("reshape", "flatten", "ravel", "unflatten", "squeeze", "unsqueeze"):
    for _function in (getattr(torch, _name), getattr(Tensor, _name)):
        operator(_function)(_by_shape(_function))
for _function in (Tensor.view, Tensor.view_as, Tensor.reshape_as):
    operator(_function)(_by_shape(_function))
