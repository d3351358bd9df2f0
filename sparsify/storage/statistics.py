"""Statistics of entries from the arrays of a pattern: distinct coordinates, row lengths, locality, and a cache key.

In: CSR with the entries (0, 1), (0, 2), (2, 1). Out: 2 distinct rows, 2 distinct columns.

Everything is computed once and cached on the pattern; large patterns are sampled.
"""

from collections.abc import Mapping
from math import expm1
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from sparsify.storage.level.levels import Compressed, Dense, Grouped

if TYPE_CHECKING:
    from sparsify.storage.pattern import Pattern

# Sample size of entries for inner modes.
SAMPLE: Final = 1 << 16
# Minimum number of entries for long rows.
FEW: Final = 1 << 13
# Sample size of `crowding`, and number of preceding entries of each.
LOOKS: Final = 1 << 12
BEFORE: Final = 16
# Number of pairs of entries sampled by `reach`.
SAMPLES: Final = 4096


def distinct(pattern: "Pattern") -> Mapping[tuple[int, ...], int]:
    """The number of distinct coordinates the entries have, by mode and by the modes of the outer levels together.

    Outer levels are counted; the other modes of more than 65,536 entries are estimated from a sample of 65,536.
    Patterns in blocks or with other levels say nothing.

    >>> from sparsify.storage.interop.tensors import tensor
    >>> A = tensor((torch.tensor([[0, 0, 2], [1, 2, 1]]), torch.ones(3), (3, 3)), "csr")
    >>> dict(distinct(A.pattern))
    {(0,): 2, (1,): 2}
    """
    levels = pattern.format.levels
    if any(stored.expression.kind != "whole" for stored in levels) or not pattern.nnz:
        return {}
    counts_by_modes: dict[tuple[int, ...], int] = {}
    for depth in range(1, len(levels)):
        count = _distinct_outer(pattern, depth)
        if count is not None:
            counts_by_modes[tuple(sorted(stored.expression.mode for stored in levels[:depth]))] = count
    step = max(1, pattern.nnz // SAMPLE)
    sample = coordinates_at(pattern, torch.arange(0, pattern.nnz, step))
    for stored, coordinates in zip(levels, sample, strict=True):
        mode = (stored.expression.mode,)
        if coordinates is not None and mode not in counts_by_modes and len(levels) > 1:
            counts_by_modes[mode] = _extrapolate(
                coordinates.unique().numel(), coordinates.numel(), pattern.nnz
            )
    return counts_by_modes


def counts(pattern: "Pattern", is_turned: bool = False) -> tuple[int, ...]:
    """Number of stored entries, of entries of the longest row, and of positions of each level with arrays.

    Together with the shape, the counts determine the number of positions of all levels. For a pattern read in the other
    order of its modes, the longest column is the longest row.
    """
    result = [pattern.nnz, pattern.longest(1 if is_turned else 0)]
    for depth, (crd, stored) in enumerate(zip(pattern._crd, pattern.format.levels, strict=True), 1):
        if crd is not None and not stored.level.has_bits:
            result.append(crd.shape[0])
        elif stored.level.arrays:
            result.append(pattern.positions(depth))
    return tuple(result)


def longest(pattern: "Pattern", level: int) -> int:
    """The maximum number of entries with one coordinate of a level: level 0 of CSR are the rows, level 1 the columns.

    0 for fewer than 8192 entries, without rows long enough to matter, and for anything but two levels, a full one and
    a list of coordinates below each position.

    >>> from sparsify.storage.interop.tensors import tensor
    >>> A = tensor(torch.eye(9000), "csr")
    >>> longest(A.pattern, 0), longest(A.pattern, 1)
    (1, 1)
    """
    levels = [stored.level for stored in pattern.format.levels]
    if pattern.nnz < FEW or len(levels) != 2 or not isinstance(levels[0], Dense):
        return 0
    pos, crd = pattern._pos[1], pattern._crd[1]
    if pos is None or crd is None or not isinstance(levels[1], Compressed):
        return 0
    if level:
        return int(crd.bincount().max())
    starts = pos.cpu().numpy()  # faster than torch for few rows, and patterns may be new in every call
    return int((starts[1:] - starts[:-1]).max())


def crowding(pattern: "Pattern") -> float:
    """The share of entries at or next to the last-level coordinate of one of the 16 preceding entries.

    Near 1 for bands and meshes, near 0 for uniformly spread entries; 0 for levels without coordinates. A few thousand
    entries are sampled.

    >>> from sparsify.storage.interop.tensors import tensor
    >>> crowding(tensor(torch.eye(9), "csr").pattern), crowding(tensor(torch.eye(40)[:, ::2], "csc").pattern)
    (1.0, 0.0)
    """
    crd = _last_coordinates(pattern)
    if crd is None or len(crd) < 2:
        return 0.0
    looked = torch.arange(1, len(crd), max(1, len(crd) // LOOKS))
    before = (looked[:, None] - torch.arange(1, BEFORE + 1)).clamp(min=0)
    distances = (crd[before].long() - crd[looked].long()[:, None]).abs()
    return float((distances <= 1).any(1).float().mean())


def coordinates_at(pattern: "Pattern", positions: Tensor) -> list[Tensor | None]:
    """The coordinates per level of the entries at some positions; `None` from a level of another kind on."""
    columns: list[Tensor | None] = [None] * len(pattern.format.levels)
    for number in range(len(columns) - 1, -1, -1):
        stored, pos, crd = pattern.format.levels[number], pattern._pos[number], pattern._crd[number]
        if isinstance(stored.level, Dense):
            extent = stored.expression.extent(pattern.shape)
            columns[number] = positions % extent
            positions = positions // extent
        elif crd is not None and (pos is not None) == isinstance(stored.level, Compressed):
            columns[number] = crd[positions]
            if pos is not None:
                positions = torch.searchsorted(pos, positions.to(pos.dtype), right=True) - 1
            elif isinstance(stored.level, Grouped):
                positions = positions // max(1, crd.numel() // max(1, pattern.positions(number)))
            elif not stored.level.is_branchless:
                return columns
        else:
            return columns
    return columns


def _distinct_outer(pattern: "Pattern", depth: int) -> int | None:
    """Distinct coordinates along the first `depth` levels, `None` if a scan of all entries would be needed."""
    last = pattern.format.levels[depth - 1].level
    if isinstance(last, Compressed) and last.unique:
        return pattern.positions(depth)
    below = pattern._pos[depth]
    if isinstance(last, Dense) and below is not None:
        return int((below.diff() > 0).sum())
    if isinstance(last, Compressed) and depth == 1 and (crd := pattern._crd[0]) is not None:
        return int((crd.diff() != 0).sum()) + 1
    return None


def _extrapolate(distinct: int, looked: int, entries: int) -> int:
    """Estimated distinct values among `entries`, when a random sample of `looked` entries has `distinct` distinct ones.

    `n (1 - (1 - 1/n)^looked) = distinct` is solved for n by bisection.
    """
    if looked >= entries or distinct >= looked:
        return distinct if looked >= entries else entries
    low, high = float(distinct), float(distinct) * looked
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if -middle * expm1(-looked / middle) < distinct else (low, middle)
    return min(entries, max(distinct, round(-low * expm1(-entries / low))))


def reach(pattern: "Pattern") -> int:
    """The median coordinate distance of entries whose position distance is the mean number of children of a parent."""
    crd = _last_coordinates(pattern)
    if crd is None or len(crd) < 2 or pattern.format.levels[-1].level.stride > 1:
        return 0
    offset = min(
        max(1, round(len(crd) / max(1, pattern.positions(len(pattern.format.levels) - 1)))), len(crd) - 1
    )
    step = max(1, (len(crd) - offset) // SAMPLES)
    first, second = crd[: len(crd) - offset : step], crd[offset::step]
    return int((first - second).abs().median())


def _last_coordinates(pattern: "Pattern") -> Tensor | None:
    """The coordinates of the last level without empty slots; `None` for a level without a list of them."""
    crd = pattern._crd[-1] if pattern._crd else None
    if crd is None or pattern.format.levels[-1].level.has_bits:
        return None
    return crd[crd >= 0] if pattern.format.levels[-1].level.has_empty_slots else crd
