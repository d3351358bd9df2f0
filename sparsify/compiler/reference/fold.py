"""Reductions: values combined along axes, or by group.

In: `fold("sum", grid, 1)`. Out: the values summed along the last axis, and the mask of sums of fill entries only.

An annihilating fill entry ends a reduction: its value is the result, regardless of all other values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.infer.dtype import OF_BOOL
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.ir.dtypes import Kind
from sparsify.compiler.reference.grid import Grid, Mask, apply, computed_dtype
from sparsify.storage.fill import decided

SCATTERED: Final = {"prod": "prod", "min": "amin", "max": "amax", "or": "amax", "and": "amin"}
_OF_FUNCTION: Final = {"logical_or": "or", "logical_and": "and"}


@dataclass(frozen=True, slots=True)
class Partial:
    """The partial result of a reduction.

    Attributes:
        values: combined values.
        is_fill: mask of results of fill entries only; `None`: none.
        ended: mask of reductions ended by an annihilating fill entry; `None`: none.
        ends: values of the ended reductions.
    """

    values: Tensor
    is_fill: Mask = None
    ended: Mask = None
    ends: Tensor | None = None

    def in_one_row(self, shape: Sequence[int]) -> "Partial":
        """The partial result expanded to a whole shape, below a new first axis."""

        def row(found: Tensor | None) -> Tensor | None:
            return None if found is None else found.expand(tuple(shape))[None]

        values = self.values.expand(tuple(shape))[None]
        return Partial(values, row(self.is_fill), row(self.ended), row(self.ends))

    def grid(self, kind: Kind) -> Grid:
        """The final values."""
        if self.ended is None or self.ends is None:
            return Grid(self.values, self.is_fill, kind)
        values = torch.where(self.ended, self.ends, self.values)
        return Grid(values, self.ended if self.is_fill is None else self.is_fill | self.ended, kind)


def operation(monoid: str, kind: Kind) -> str:
    """The effective monoid for values of a kind: a sum of truth values is their or."""
    if kind.dtype != "bool":
        return monoid
    return _OF_FUNCTION.get(OF_BOOL.get(MONOIDS[monoid].combine, ""), monoid)


@cache
def identity(monoid: str, kind: Kind) -> float | int | bool:
    """The identity of a reduction."""
    return MONOIDS[monoid].identity(kind.dtype)


def combined(monoid: str, one: Tensor, other: Tensor, kind: Kind) -> Tensor:
    """Two values combined, without rules for fill entries."""
    return apply(MONOIDS[monoid].combine, [Grid(one, None, kind), Grid(other, None, kind)]).values


def fold(monoid: str, grid: Grid, rank: int, lengths: Sequence[int]) -> Partial:
    """A grid combined along its last axes.

    Args:
        monoid: result of `operation`.
        grid: grid over a space of `rank` axes, followed by the axes to combine.
        lengths: lengths of the last axes, along which values may be broadcast.
    """
    axes = list(range(rank, rank + len(lengths)))
    values = _expanded(grid.values, rank, lengths)
    is_fill = None if grid.is_fill is None else _expanded(grid.is_fill, rank, lengths)
    if not axes:
        ended, ends = _ends(monoid, grid)
        return Partial(values, is_fill, ended, ends)
    if 0 in lengths:
        shape = torch.broadcast_shapes(values.shape, () if is_fill is None else is_fill.shape)[:rank]
        neutral = torch.full(shape, identity(monoid, grid.kind), dtype=values.dtype, device=values.device)
        has_fill = MONOIDS[monoid].neutral == 0
        return Partial(neutral, torch.ones_like(neutral, dtype=torch.bool) if has_fill else None)
    result = _folded(monoid, values, axes, grid.kind)
    if is_fill is None:
        return Partial(result)
    hit, value = _ends(monoid, Grid(values, is_fill, grid.kind))
    if hit is None or value is None:
        return Partial(result, is_fill.all(dim=axes))
    shape = torch.broadcast_shapes(hit.shape, value.shape)
    flat, last = hit.expand(shape).flatten(rank), value.expand(shape).flatten(rank)
    first = flat.to(torch.uint8).argmax(dim=rank, keepdim=True)
    return Partial(result, is_fill.all(dim=axes), flat.any(dim=rank), last.gather(rank, first).squeeze(rank))


def _ends(monoid: str, grid: Grid) -> tuple[Mask, Tensor | None]:
    """The entries that end a reduction, and the final value of each."""
    if grid.is_fill is None:
        return None, None
    hit, value = decided(MONOIDS[monoid].combine, 0, grid.values)
    if hit is False:
        return None, None
    hit = grid.is_fill & hit
    return (hit, torch.as_tensor(value).to(grid.values.dtype)) if bool(hit.any()) else (None, None)


def _expanded(values: Tensor, rank: int, lengths: Sequence[int]) -> Tensor:
    shape = torch.broadcast_shapes(values.shape, (*[1] * rank, *lengths))
    return values.expand(shape)


def _folded(monoid: str, values: Tensor, axes: list[int], kind: Kind) -> Tensor:
    """Values combined along nonempty axes."""
    match monoid:
        case "sum":
            return values.sum(dim=axes, dtype=values.dtype)
        case "min":
            return values.amin(dim=axes)
        case "max":
            return values.amax(dim=axes)
        case "or":
            return values.any(dim=axes)
        case "and":
            return values.all(dim=axes)
        case "prod":
            for axis in reversed(axes):
                values = values.prod(dim=axis, dtype=values.dtype)
            return values
    for axis in reversed(axes):
        while values.shape[axis] > 1:
            half = values.shape[axis] // 2
            pair = combined(monoid, values.narrow(axis, 0, half), values.narrow(axis, half, half), kind)
            odd = values.shape[axis] - 2 * half
            values = torch.cat([pair, values.narrow(axis, 2 * half, odd)], axis) if odd else pair
        values = values.squeeze(axis)
    return values


def joined(monoid: str, one: Partial, other: Partial, kind: Kind) -> Partial:
    """Two partial results combined; their shapes broadcast."""
    values = combined(monoid, one.values, other.values, kind)
    is_fill = None if one.is_fill is None or other.is_fill is None else one.is_fill & other.is_fill
    if one.ended is None or one.ends is None:
        return replace(other, values=values, is_fill=is_fill)
    if other.ended is None or other.ends is None:
        return replace(one, values=values, is_fill=is_fill)
    ends = torch.where(one.ended, one.ends, other.ends)
    return Partial(values, is_fill, one.ended | other.ended, ends)


def scatter(monoid: str, total: Tensor, index: Tensor, values: Tensor, kind: Kind) -> None:
    """Combines rows of values with the rows `index` of a total, in place."""
    if monoid == "sum":
        total.index_add_(0, index, values)
    elif monoid in SCATTERED and not values.dtype.is_complex:
        if values.dtype is torch.bool:
            total, values = total.view(torch.uint8), values.contiguous().view(torch.uint8)
        at = index.reshape([-1] + [1] * (values.dim() - 1)).expand_as(values)
        total.scatter_reduce_(0, at, values, SCATTERED[monoid])
    else:
        rows, folded = _by_group(monoid, index, values, kind)
        total[rows] = combined(monoid, total[rows], folded, kind)


def _by_group(monoid: str, index: Tensor, values: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Distinct indices, and the combined values of each: neighbours are combined in pairs, repeatedly."""
    index, order = index.sort(stable=True)
    values = values.index_select(0, order)
    while len(index) > 1:
        is_first = torch.ones_like(index, dtype=torch.bool)
        is_first[1:] = index[1:] != index[:-1]
        if bool(is_first.all()):
            break
        places = torch.arange(len(index), device=index.device)
        begin = torch.where(is_first, places, 0).cummax(0).values
        is_left = (places - begin) % 2 == 0
        has_right = torch.zeros_like(is_left)
        has_right[:-1] = ~is_left[1:]
        left = has_right.nonzero().squeeze(1)
        values = values.index_copy(0, left, combined(monoid, values[left], values[left + 1], kind))
        index, values = index[is_left], values[is_left]
    return index, values


def repeated(monoid: str, value: Tensor, counts: Tensor, kind: Kind) -> Tensor:
    """A value combined `counts` times with itself, by doubling; the identity for a count of 0."""
    result = torch.full(
        counts.shape, identity(monoid, kind), dtype=computed_dtype(kind), device=counts.device
    )
    while counts.numel() and bool((counts > 0).any()):
        result = torch.where(counts % 2 == 1, combined(monoid, result, value, kind), result)
        value, counts = combined(monoid, value, value, kind), counts // 2
    return result
