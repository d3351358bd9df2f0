"""The coordinates of the entries of a pattern, level by level.

In: a pattern `dense, compressed` with `pos = [0, 2, 3]`, `crd = [1, 4, 0]`. Out: `[[0, 0, 1], [1, 4, 0]]`.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparsify.storage.slices import parents_of

if TYPE_CHECKING:
    from sparsify.storage.pattern import Pattern


def _expand(pattern: "Pattern") -> list[Tensor]:
    """Level coordinates of all positions, widened level by level."""
    found: list[Tensor] = []
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
            found = [c.index_select(0, parents) for c in found]
        found.append(level.coordinate(at, parents, positions).long())
    return found


def mode_coordinates(pattern: "Pattern") -> Tensor:
    """Mode coordinates from level coordinates."""
    result = torch.zeros((pattern.rank, pattern.nnz), dtype=torch.int64, device=pattern.device)
    differences = []
    for stored, found in zip(pattern.format.levels, _expand(pattern), strict=True):
        expression = stored.expression
        result[expression.mode] += found * expression.size if expression.kind == "block" else found
        if expression.kind == "difference":
            differences.append(expression)
    for expression in differences:
        assert expression.other is not None, "a difference has two modes"
        result[expression.mode] += result[expression.other] + expression.lowest(pattern.shape)
    return result


def inside(pattern: "Pattern") -> Tensor | None:
    """The entries inside the shape, `None` for all of them."""
    partial = {
        s.expression.mode for s in pattern.format.levels if s.expression.can_lie_outside(pattern.shape)
    }
    if not partial:
        return None
    coordinates = pattern.kept_coordinates(False)
    mask = torch.ones(pattern.nnz, dtype=torch.bool, device=pattern.device)
    for mode in sorted(partial):
        mask &= (coordinates[mode] >= 0) & (coordinates[mode] < pattern.shape[mode])
    return None if bool(mask.all()) else mask
