"""Conversion between formats: the same entries, sorted and stored anew.

In: a CSR pattern and `Format("csc")`. Out: the CSC pattern and the permutation that takes values along.

Entries are sorted by their coordinates in the order of the target's levels; then each level is built from the sorted
columns. Nothing is allocated in the size of the shape except what dense levels demand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparsify.errors import FormatError
from sparsify.storage.format import Format, StoredLevel
from sparsify.storage.levels import Compressed, Dense, Singleton
from sparsify.storage.pattern import Pattern, shared

LARGEST_KEY = 2**63 - 1
MOST_POSITIONS = 2**36
NARROW = 2**31 - 1
DTYPES = {"int16": torch.int16, "int32": torch.int32, "int64": torch.int64}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A pattern and where each of its entries comes from; -1 where it is padding."""

    pattern: Pattern
    permutation: Tensor
    is_identity: bool
    is_padded: bool


def conversion(pattern: Pattern, format: Format) -> Conversion:
    """The same entries in another format; cached on the pattern, and so is the way back."""
    return pattern.cached(("conversion", format), lambda: _conversion(pattern, format))


def twin(pattern: Pattern, format: Format) -> tuple[Pattern, Tensor]:
    """See `Pattern.twin`."""
    found = conversion(pattern, format)
    return found.pattern, found.permutation


def permuted(values: Tensor, found: Conversion, fill: complex = 0) -> Tensor:
    """Values [n] in the order of a converted pattern, the fill in its padding; differentiable."""
    if found.is_identity:
        return values
    if not found.is_padded:
        return values.index_select(0, found.permutation)
    if values.shape[0] == 0:
        return values.new_full((found.pattern.nnz,), fill)
    is_entry = found.permutation >= 0
    taken = values.index_select(0, found.permutation.clamp(min=0))
    return torch.where(is_entry, taken, torch.full((), fill, dtype=values.dtype))


def from_sorted(
    columns: Sequence[Tensor], shape: Sequence[int], format: Format, dtype: torch.dtype | None = None
) -> tuple[Pattern, Tensor | None]:
    """The pattern of entries that are sorted by level, and their positions; `None` when entry `n` is at `n`.

    Args:
        columns: per level the coordinates [n], sorted as the levels of `format` nest, without duplicates.
        dtype: of `pos` and `crd` where the format does not fix it; `None`: int32 when everything fits.
    """
    levels = format.levels
    count = columns[0].shape[0] if columns else 1
    dtype = dtype or index_dtype(format, shape, count)
    pos: list[Tensor | None] = [None] * len(levels)
    crd: list[Tensor | None] = [None] * len(levels)
    places: Tensor | None = None  # of the entries, at the levels done; None: all at 0
    parents, number = 1, 0
    while number < len(levels):
        stored, column = levels[number], columns[number]
        if isinstance(stored.level, Dense):
            extent = stored.expression.extent(shape)
            places = column.long() if places is None else places * extent + column
            parents *= extent
            number += 1
            if parents > MOST_POSITIONS:
                raise FormatError(
                    f"{format} of shape {list(shape)} has {parents} positions", "compressed levels"
                )
            continue
        end = number + 1
        while end < len(levels) and isinstance(levels[end].level, Singleton):
            end += 1
        first = _opens(places, columns[number:end])
        starts = None if first is None else first.nonzero().squeeze(1)
        above = places if starts is None or places is None else places[starts]
        stored_count = count if starts is None else starts.shape[0]
        pos[number] = narrowed(_segments(above, parents, stored_count), stored, "pos", dtype)
        for level in range(number, end):
            kept = columns[level] if starts is None else columns[level][starts]
            crd[level] = narrowed(kept, levels[level], "crd", dtype)
        places = torch.arange(count) if first is None else first.cumsum(0) - 1
        parents, number = stored_count, end
    pattern = shared(format, shape, pos, crd).trusted()
    if not columns or (
        parents == count and (isinstance(levels[-1].level, Singleton | Compressed) or _is_range(places))
    ):
        return pattern, None
    return pattern, places


def order(columns: Sequence[Tensor], extents: Sequence[int]) -> Tensor | None:
    """The stable permutation that sorts entries by their columns, outermost first; `None` when they are sorted."""
    keys = linear_keys(columns, extents)
    if not keys or keys[0].shape[0] < 2:
        return None
    if len(keys) == 1:
        key = keys[0]
        return None if bool((key[1:] >= key[:-1]).all()) else torch.argsort(key, stable=True)
    return torch.from_numpy(np.lexsort([key.numpy() for key in reversed(keys)]))


def linear_keys(columns: Sequence[Tensor], extents: Sequence[int]) -> list[Tensor]:
    """As few int64 keys as hold the columns without overflow, outermost first."""
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


def level_columns(format: Format, coordinates: Sequence[Tensor]) -> list[Tensor]:
    """Per level the coordinates [n] of entries, from those of the modes."""
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
                raise FormatError(
                    f"{format}: difference levels cannot be stored", "csr, coo or another format"
                )
        columns.append(column)
    return columns


def extents(format: Format, shape: Sequence[int]) -> list[int]:
    """Per level how many coordinates it has."""
    return [stored.expression.extent(shape) for stored in format.levels]


def index_dtype(format: Format, shape: Sequence[int], count: int) -> torch.dtype:
    """int32 when all coordinates and positions of `count` entries fit, else int64."""
    inner = 1
    for stored in reversed(format.levels):
        if not isinstance(stored.level, Dense):
            break
        inner *= stored.expression.extent(shape)
    largest = max([count * (inner if not format.is_dense else 1), *extents(format, shape)])
    return torch.int32 if largest <= NARROW else torch.int64


def _conversion(pattern: Pattern, format: Format) -> Conversion:
    if format == pattern.format:
        return Conversion(pattern, torch.arange(pattern.nnz), is_identity=True, is_padded=False)
    if format.rank != pattern.rank:
        raise FormatError(
            f"{format} stores {format.rank} modes, the tensor has {pattern.rank}", "another format"
        )
    coordinates = pattern.coordinates()
    inside = pattern.inside()
    kept = None if inside is None else inside.nonzero().squeeze(1)
    columns = level_columns(format, list(coordinates if kept is None else coordinates[:, kept]))
    sorting = order(columns, extents(format, pattern.shape))
    if sorting is not None:
        columns = [column[sorting] for column in columns]
    found, places = from_sorted(columns, pattern.shape, format)
    count = pattern.nnz if kept is None else kept.shape[0]
    source = torch.arange(count) if sorting is None else sorting
    source = source if kept is None else kept[source]
    if places is None:
        identity = sorting is None and kept is None
        result = Conversion(found, source, is_identity=identity, is_padded=False)
    else:
        permutation = torch.full((found.nnz,), -1)
        permutation[places] = source
        result = Conversion(found, permutation, is_identity=False, is_padded=count < found.nnz)
    if count == pattern.nnz == found.nnz and not result.is_padded:
        _remember_way_back(pattern, result)
    return result


def _remember_way_back(pattern: Pattern, result: Conversion) -> None:
    """The twin of the twin is the pattern itself."""
    inverse = result.permutation
    if not result.is_identity:
        inverse = torch.empty_like(result.permutation)
        inverse[result.permutation] = torch.arange(pattern.nnz)
    back = Conversion(pattern, inverse, is_identity=result.is_identity, is_padded=False)
    result.pattern.cached(("conversion", pattern.format), lambda: back)


def _opens(places: Tensor | None, columns: Sequence[Tensor]) -> Tensor | None:
    """Which sorted entries open a new position, bool [n]; `None` when all do."""
    count = columns[0].shape[0]
    if count == 0:
        return None
    first = torch.ones(count, dtype=torch.bool)
    changes = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        changes |= column[1:] != column[:-1]
    if places is not None:
        changes |= places[1:] != places[:-1]
    first[1:] = changes
    return None if bool(first.all()) else first


def _segments(places: Tensor | None, parents: int, count: int) -> Tensor:
    """`pos` of `count` positions that lie below the parents `places`."""
    if places is None:
        return torch.tensor([0, count])
    pos = torch.zeros(parents + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(places, minlength=parents), 0, out=pos[1:])
    return pos


def narrowed(array: Tensor, stored: StoredLevel, role: str, default: torch.dtype) -> Tensor:
    """An array [n] in the dtype that its level fixes, else in the default.

    Raises:
        FormatError: a number in it does not fit.
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
