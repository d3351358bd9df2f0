"""Conversion between formats: the same entries, sorted and stored anew.

In: a CSR pattern and `Format("csc")`. Out: the CSC pattern and the permutation of the values.

Entries are sorted by their coordinates in the order of the target's levels; then each level is built from the sorted
columns. No allocation grows with the shape, except for dense levels.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from sparsify.errors import FormatError
from sparsify.storage.format import Format, StoredLevel
from sparsify.storage.level.arrays import Arrays
from sparsify.storage.level.entries import Entries
from sparsify.storage.level.levels import Compressed, Dense
from sparsify.storage.modes import inverse
from sparsify.storage.pattern import Pattern, shared

LARGEST_KEY = 2**63 - 1
MOST_POSITIONS = 2**36
NARROW = 2**31 - 1
# Above this number of rows or columns per entry, sorting is faster than counting.
MOST_EMPTY = 64
_CSR, _CSC = Format("csr"), Format("csc")
_TURNS = ((_CSR, _CSC), (_CSC, _CSR))
DTYPES = {"int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64}


# Converts the arrays of CSR with a number of columns to CSC and source positions; `None` if unsupported.
Turn = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor] | None]
_turn: Turn | None = None


def turn_by(turn: Turn) -> None:
    """Registers the compiled transposition of matrices from a higher package."""
    global _turn
    _turn = turn


@dataclass(frozen=True, slots=True)
class Conversion:
    """A pattern and the source of each entry; -1 for padding."""

    pattern: Pattern
    permutation: Tensor
    is_identity: bool
    is_padded: bool


def conversion(pattern: Pattern, format: Format) -> Conversion:
    """The same entries in another format; cached on the pattern, the reverse conversion by weak reference.

    Nothing cached on a pattern refers back to it: patterns are freed at once, without the garbage collector.
    """
    cached = pattern.recall(("conversion", format))
    if cached is not None:
        return cast(Conversion, cached)
    if format == pattern.format:
        places = pattern.cached("places", lambda: torch.arange(pattern.nnz))
        return Conversion(pattern, places, is_identity=True, is_padded=False)
    return _way_back(pattern, format) or pattern.cached(
        ("conversion", format), lambda: _conversion(pattern, format)
    )


def permuted_pattern(pattern: Pattern, modes: tuple[int, ...]) -> Pattern:
    """The pattern with mode `modes[n]` as mode `n`; the inverse permutation gives the same object again."""
    if modes == tuple(range(pattern.rank)):
        return pattern

    def make() -> Pattern:
        shape = [pattern.shape[mode] for mode in modes]
        arrays = pattern._pos, pattern._crd
        result = Pattern(pattern.format.permuted(modes), shape, *arrays, pattern.nnz, is_private=True)
        if pattern.validated().recall("valid"):
            result.trusted()
        origin = weakref.ref(pattern)  # caches of a pattern never refer to the pattern
        result.cached(("permuted from", inverse(modes)), lambda: origin)
        return result

    cached: Pattern | None = pattern.recall(("permuted", modes))
    if cached is None and (reference := pattern.recall(("permuted from", modes))) is not None:
        cached = reference()
    return cached or pattern.cached(("permuted", modes), make)


def permuted(values: Tensor, entries: Conversion, fill: complex = 0) -> Tensor:
    """Values [n] in the order of a converted pattern, the fill in padding; differentiable."""
    if entries.is_identity:
        return values
    permutation = entries.permutation.to(values.device)
    if not entries.is_padded:
        return values.index_select(0, permutation)
    if values.shape[0] == 0:
        return values.new_full((entries.pattern.nnz,), fill)
    taken = values.index_select(0, permutation.clamp(min=0))
    return torch.where(permutation >= 0, taken, torch.full((), fill, dtype=values.dtype))


def from_sorted(
    columns: Sequence[Tensor], shape: Sequence[int], format: Format, dtype: torch.dtype | None = None
) -> tuple[Pattern, Tensor | None]:
    """The pattern of entries sorted by level, and their positions; `None` when entry `n` is at `n`.

    Args:
        columns: per level the coordinates [n], sorted in the nesting order of the levels of `format`, without
            duplicates.
        dtype: dtype of `pos` and `crd` unless fixed by the format; `None`: int32 when everything fits.
    """
    levels = format.levels
    count = columns[0].shape[0] if columns else 1
    dtype = dtype or index_dtype(format, shape, count)
    pos: list[Tensor | None] = [None] * len(levels)
    crd: list[Tensor | None] = [None] * len(levels)
    places: Tensor | None = None  # of the entries, at the levels done; None: all at 0
    moved: Tensor | None = None  # the entries in the order of their places, if levels do not keep their order
    parents = 1
    for number, stored in enumerate(levels):
        run = number + 1
        while not stored.level.is_branchless and run < len(levels) and levels[run].level.is_branchless:
            run += 1
        extent = stored.expression.extent(shape)
        entries = Entries(
            places, parents, columns[number:run], extent, partial(_name, format, columns, number)
        )
        built = stored.level.store(entries, Arrays(extent, parents))
        places, parents = built.places, built.positions
        if stored.level.has_empty_slots and number + 1 < len(levels):
            sorting = torch.argsort(places, stable=True)
            places, columns = places[sorting], [column[sorting] for column in columns]
            moved = sorting if moved is None else moved[sorting]
        if parents > MOST_POSITIONS:
            raise FormatError(f"{format} of shape {list(shape)} has {parents} positions", "compressed levels")
        if built.pos is not None:
            pos[number] = narrowed(built.pos, stored, "pos", dtype)
        if built.crd is not None:
            crd[number] = narrowed(built.crd, stored, "crd", dtype)
    pos, crd = _without_shared_memory(pos, columns), _without_shared_memory(crd, columns)
    pattern = shared(format, shape, pos, crd, is_private=True).trusted()
    if moved is not None and places is not None:
        return pattern, torch.empty_like(places).index_copy_(0, moved, places)
    if places is None or (parents == count and (levels[-1].level.can_append or _is_range(places))):
        return pattern, None
    return pattern, places


def _without_shared_memory(arrays: Sequence[Tensor | None], columns: Sequence[Tensor]) -> list[Tensor | None]:
    """The arrays, copied if sharing memory with columns, because the owner may write to the columns."""
    if any(type(column) is not Tensor for column in columns):
        return list(arrays)
    taken = {column.untyped_storage()._cdata for column in columns}
    return [
        array.clone() if type(array) is Tensor and array.untyped_storage()._cdata in taken else array
        for array in arrays
    ]


def _name(format: Format, columns: Sequence[Tensor], number: int, entry: int) -> str:
    """The coordinates of an entry in the levels above `number`, `i = 3, j/4 = 1`."""
    parts = [
        f"{stored.expression} = {int(column[entry])}"
        for stored, column in zip(format.levels[:number], columns, strict=False)
    ]
    return ", ".join(parts) or "the tensor"


def order(columns: Sequence[Tensor], extents: Sequence[int]) -> Tensor | None:
    """The stable permutation sorting entries by their columns, outermost first; `None` if already sorted."""
    keys = linear_keys(columns, extents)
    if not keys or keys[0].shape[0] < 2:
        return None
    if len(keys) == 1:
        key = keys[0]
        return None if bool((key[1:] >= key[:-1]).all()) else torch.argsort(key, stable=True)
    return torch.from_numpy(np.lexsort([key.numpy() for key in reversed(keys)]))


def linear_keys(columns: Sequence[Tensor], extents: Sequence[int]) -> list[Tensor]:
    """The fewest int64 keys that hold the columns without overflow, outermost first."""
    keys: list[Tensor] = []
    room = 0
    for column, extent in zip(columns, extents, strict=True):
        size = max(extent, 1)
        if keys and room <= LARGEST_KEY // size:
            keys[-1] = keys[-1] * size + column
            room *= size
        else:
            keys.append(column.long())
            room = size
    return keys


def level_columns(format: Format, coordinates: Sequence[Tensor], shape: Sequence[int]) -> list[Tensor]:
    """The coordinates [n] of entries per level, from the coordinates per mode of a tensor of `shape`."""
    columns = []
    for stored in format.levels:
        expression = stored.expression
        column = coordinates[expression.mode]
        match expression.kind:
            case "block":
                column = column // expression.size
            case "within":
                column = column % expression.size
            case "difference":
                assert expression.other is not None, "a difference has two modes"
                column = column.long() - coordinates[expression.other] - expression.lowest(shape)
        columns.append(column)
    return columns


def extents(format: Format, shape: Sequence[int]) -> list[int]:
    """The number of coordinates of each level."""
    return [stored.expression.extent(shape) for stored in format.levels]


def index_dtype(format: Format, shape: Sequence[int], count: int) -> torch.dtype:
    """int32 when all coordinates and positions of `count` entries fit, else int64."""
    inner = 1
    for stored in reversed(format.levels):
        if not stored.level.is_full:
            break
        inner *= stored.expression.extent(shape)
    largest = max([count * (inner if not format.is_dense else 1), *extents(format, shape)])
    return torch.int32 if largest <= NARROW else torch.int64


def _conversion(pattern: Pattern, format: Format) -> Conversion:
    if format.rank != pattern.rank:
        raise FormatError(
            f"{format} stores {format.rank} modes, the tensor has {pattern.rank}", "another format"
        )
    inside_positions: Tensor | None = None
    result = _transposed_by_counting(pattern, format) or _panelled(pattern, format)
    if result is None:
        coordinates = pattern.kept_coordinates()
        inside = pattern.kept_inside()
        inside_positions = None if inside is None else inside.nonzero().squeeze(1)
        columns = list(coordinates if inside_positions is None else coordinates[:, inside_positions])
        result = placed(columns, inside_positions, pattern.shape, format)
    if inside_positions is None and pattern.nnz == result.pattern.nnz and not result.is_padded:
        origin = weakref.ref(pattern)
        result.pattern.cached(("converted from", pattern.format), lambda: origin)
    return result


def _transposed_by_counting(pattern: Pattern, format: Format) -> Conversion | None:
    """Conversion of CSR to CSC, or CSC to CSR, by counting; `None` for other formats."""
    if (pattern.format, format) not in _TURNS or pattern.device.type != "cpu":
        return None
    pos, crd = pattern.validated()._pos[1], pattern._crd[1]
    if type(pos) is not Tensor or type(crd) is not Tensor or {pos.dtype, crd.dtype} != {torch.int32}:
        return None
    extent = pattern.shape[format.ordering[0]]
    if pattern.nnz == 0 or extent > pattern.nnz * MOST_EMPTY:
        return None
    arrays_by_count = None if _turn is None else _turn(pos.contiguous(), crd.contiguous(), extent)
    if arrays_by_count is None:
        return None
    arrays = (None, arrays_by_count[0]), (None, arrays_by_count[1])
    result = Pattern.of_arrays(format, pattern.shape, *arrays, pattern.nnz)
    return Conversion(result, arrays_by_count[2], is_identity=False, is_padded=False)


def _panelled(pattern: Pattern, format: Format) -> Conversion | None:
    """Conversion of CSR or CSC to panels of rows or columns, by counting; `None` for other formats.

    CSR and CSC list the entries of a panel in a row one after the other: these runs are moved as a whole.
    """
    mode = panel_mode(format)
    if mode is None or pattern.format not in (_CSR, _CSC):
        return None
    other, by_mode = 1 - mode, _CSR if mode == 1 else _CSC
    if pattern.format != by_mode:
        transposed = pattern.recall(("conversion", by_mode)) or _transposed_by_counting(pattern, by_mode)
        if transposed is None:
            return None
        by_panel = _panelled(transposed.pattern, format)
        return (
            None
            if by_panel is None
            else replace(by_panel, permutation=transposed.permutation[by_panel.permutation])
        )
    pos, crd = pattern.validated()._pos[1], pattern._crd[1]
    if type(pos) is not Tensor or type(crd) is not Tensor or not crd.is_cpu or pattern.nnz == 0:
        return None
    width, rows = format.levels[0].expression.size, pattern.shape[other]
    panels = -(-pattern.shape[mode] // width)
    if panels * rows > pattern.nnz * MOST_EMPTY:
        return None
    pos, crd = pos.long(), crd.long()
    panel = crd // width
    row = torch.repeat_interleave(torch.arange(rows), pos.diff(), output_size=pattern.nnz)
    lengths = torch.bincount(row.add_(panel * rows), minlength=panels * rows)
    ends, ends_before = lengths.cumsum(0), lengths.view(panels, rows).t().reshape(-1).cumsum(0)
    moved = ends_before.view(rows, panels).t().reshape(-1) - ends
    permutation = torch.repeat_interleave(moved, lengths, output_size=pattern.nnz)
    permutation += torch.arange(pattern.nnz)
    within = (crd - panel * width).index_select(0, permutation)
    dtype = index_dtype(format, pattern.shape, pattern.nnz)
    begins = torch.zeros(panels * rows + 1, dtype=dtype)
    begins[1:] = ends
    arrays = (None, None, begins), (None, None, within.to(dtype))
    result_pattern = Pattern.of_arrays(format, pattern.shape, *arrays, pattern.nnz)
    return Conversion(result_pattern, permutation, is_identity=False, is_padded=False)


def panel_mode(format: Format) -> int | None:
    """The mode in panels, of a matrix stored as panels of columns or rows; `None` for other formats.

    >>> panel_mode(Format("j/192: dense, i: dense, j%192: compressed"))
    1
    """
    if format.rank != 2 or len(format.levels) != 3:
        return None
    block, row, within = (stored.expression for stored in format.levels)
    kinds = (block.kind, row.kind, within.kind) == ("block", "whole", "within")
    levels = tuple(stored.level for stored in format.levels)
    if not kinds or levels != (Dense(), Dense(), Compressed()):
        return None
    is_panel = block.mode == within.mode != row.mode and block.size == within.size
    return block.mode if is_panel else None


def placed(
    coordinates: Sequence[Tensor], source: Tensor | None, shape: Sequence[int], format: Format
) -> Conversion:
    """Entries at new coordinates, stored in a format.

    Args:
        coordinates: coordinates [n] of the entries per mode of the result, in any order, each once.
        source: number of the source entry of each entry [n]; `None`: entry `n`.
        shape: shape of the result.
    """
    columns = level_columns(format, coordinates, shape)
    count = coordinates[0].shape[0]
    sorting = order(columns, extents(format, shape))
    if sorting is not None:
        columns = [column[sorting] for column in columns]
    pattern, places = from_sorted(columns, shape, format)
    identity = sorting is None and source is None
    taken = torch.arange(count) if source is None else source
    taken = taken if sorting is None else taken[sorting]
    if places is None:
        return Conversion(pattern, taken, is_identity=identity, is_padded=False)
    permutation = torch.full((pattern.nnz,), -1)
    permutation[places] = taken
    return Conversion(pattern, permutation, is_identity=False, is_padded=count < pattern.nnz)


def _way_back(pattern: Pattern, format: Format) -> Conversion | None:
    """The reverse of an earlier conversion, giving the original pattern; `None` if the original is freed."""
    reference = pattern.recall(("converted from", format))
    origin: Pattern | None = None if reference is None else reference()
    there = None if origin is None else origin.recall(("conversion", pattern.format))
    if origin is None or there is None:
        return None

    def undone() -> Tensor:
        if there.is_identity:
            return cast(Tensor, there.permutation)
        return inverted(there.permutation)

    permutation = pattern.cached(("permutation from", format), undone)
    return Conversion(origin, permutation, is_identity=there.is_identity, is_padded=False)


def inverted(permutation: Tensor) -> Tensor:
    """The inverse of a permutation, int64 [n].

    >>> inverted(torch.tensor([2, 0, 1])).tolist()
    [1, 2, 0]
    """
    result = torch.empty_like(permutation)
    result[permutation] = torch.arange(permutation.shape[0])
    return result


def narrowed(array: Tensor, stored: StoredLevel, role: str, default: torch.dtype) -> Tensor:
    """An array [n] in the dtype fixed by its level, else in the default dtype.

    Raises:
        FormatError: a number does not fit.
    """
    fixed = getattr(stored.level, role, None)
    dtype = default if fixed is None else DTYPES[fixed]
    if dtype.itemsize < array.dtype.itemsize and array.shape[0]:
        largest = int(array.max())
        if largest > torch.iinfo(dtype).max:
            name = str(dtype).removeprefix("torch.")
            raise FormatError(
                f"{largest} in {role} of the level {stored} of {name}", f"a wider {role}, int64"
            )
    return array.to(dtype).contiguous()


def _is_range(places: Tensor | None) -> bool:
    """Whether entry `n` is at position `n` for all entries."""
    return places is None or places.shape[0] == 0 or bool((places == torch.arange(places.shape[0])).all())
