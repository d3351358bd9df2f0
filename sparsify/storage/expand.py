"""The coordinates of the entries of a pattern, level by level.

In: a pattern `dense, compressed` with `pos = [0, 2, 3]`, `crd = [1, 4, 0]`. Out: `[[0, 0, 1], [1, 4, 0]]`.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sparsify.storage.level.slices import parents_of

if TYPE_CHECKING:
    from sparsify.storage.pattern import Pattern


def _expand(pattern: "Pattern") -> list[Tensor]:
    """The level coordinates of all positions, expanded level by level."""
    columns: list[Tensor] = []
    count = 1
    for number, stored in enumerate(pattern.format.levels):
        level, at = stored.level, pattern.level_arrays(number, count)
        if level.is_branchless:
            parents = positions = torch.arange(count, device=pattern.device)
        else:
            begins = level.begin(at, torch.arange(count + 1, device=pattern.device))
            count = pattern.positions(number + 1)
            parents = parents_of(begins, level.stride, count)
            positions = torch.arange(count, device=pattern.device)
            columns = [c.index_select(0, parents) for c in columns]
        columns.append(level.coordinate(at, parents, positions).long())
    return columns


def mode_coordinates(pattern: "Pattern") -> Tensor:
    """Mode coordinates from level coordinates; -1 in all modes for an empty slot of a hash level."""
    result = torch.zeros((pattern.rank, pattern.nnz), dtype=torch.int64, device=pattern.device)
    differences = []
    empty: Tensor | None = None
    for stored, column in zip(pattern.format.levels, _expand(pattern), strict=True):
        expression = stored.expression
        result[expression.mode] += column * expression.size if expression.kind == "block" else column
        if stored.level.has_empty_slots:
            empty = column < 0 if empty is None else empty | (column < 0)
        if expression.kind == "difference":
            differences.append(expression)
    for expression in differences:
        assert expression.other is not None, "a difference has two modes"
        result[expression.mode] += result[expression.other] + expression.lowest(pattern.shape)
    return result if empty is None else result.masked_fill_(empty, -1)


def row_major(pattern: "Pattern") -> tuple[Tensor, Tensor | None]:
    """The entries inside the shape in row-major order: places in the dense tensor, and positions in the storage order.

    Returns:
        Places, int64 [n], ascending, and positions, int64 [n], or `None` when entry `n` is at position `n`.
    """
    coordinates, inside = pattern.kept_coordinates(False), pattern.kept_inside()
    places = torch.zeros(pattern.nnz, dtype=torch.int64, device=coordinates.device)
    for column, extent in zip(coordinates, pattern.shape, strict=True):
        places = places.mul_(extent).add_(column)
    positions = None if inside is None else inside.nonzero().squeeze(1)
    if positions is not None:
        places = places[positions]
    if bool((places[1:] > places[:-1]).all()):
        return places, positions
    places, order = places.sort()
    return places, order if positions is None else positions[order]


def true_places(mask: Tensor) -> Tensor:
    """The places of the true entries of a flattened mask, int64 [n], ascending.

    >>> true_places(torch.tensor([[False, True], [True, False]])).tolist()
    [1, 2]
    """
    if not mask.is_cpu:
        return mask.reshape(-1).nonzero().squeeze(1)
    return torch.from_numpy(np.flatnonzero(mask.numpy()))  # a quarter of the time of torch's


def count_true(mask: Tensor) -> int:
    """The number of true entries of a mask; counting by numpy takes a sixth of torch's time."""
    return int(np.count_nonzero(mask.numpy()) if mask.is_cpu else mask.count_nonzero())


def inside(pattern: "Pattern") -> Tensor | None:
    """The mask of entries inside the shape, `None` if all are."""
    partial = {
        s.expression.mode
        for s in pattern.format.levels
        if s.level.has_empty_slots or s.expression.can_lie_outside(pattern.shape)
    }
    if not partial:
        return None
    coordinates = pattern.kept_coordinates(False)
    mask = torch.ones(pattern.nnz, dtype=torch.bool, device=pattern.device)
    for mode in sorted(partial):
        mask &= (coordinates[mode] >= 0) & (coordinates[mode] < pattern.shape[mode])
    return None if bool(mask.all()) else mask
