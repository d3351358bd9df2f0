"""Entries moved to other coordinates: the common part of slices, reshapes and joins.

In: a sparse tensor, new coordinates for its entries in a tensor of another shape. Out: the new tensor, with
gathered values, so gradients flow back to the source.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from sparsify.errors import FormatError
from sparsify.ops.register.table import refuse
from sparsify.storage import convert
from sparsify.storage.format import Format
from sparsify.storage.level.levels import Compressed, Dense, Grouped
from sparsify.storage.tensor import SparseTensor

LARGEST_KEY: Final = convert.LARGEST_KEY


class Entries(NamedTuple):
    """Entries by coordinate: columns [n] per mode, and the source position of each entry, `None` for all in order."""

    columns: list[Tensor]
    source: Tensor | None

    def selected(self, mask: Tensor) -> "Entries":
        """The entries marked by a mask [n]."""
        places = mask.nonzero().squeeze(1)
        return self.taken(places)

    def taken(self, places: Tensor) -> "Entries":
        """The entries at places [m], in order; repetitions are allowed."""
        source = places if self.source is None else self.source[places]
        return Entries([column[places] for column in self.columns], source)

    def replaced(self, mode: int, *columns: Tensor) -> "Entries":
        """The entries with one column replaced by others, by none for a removed mode."""
        return Entries([*self.columns[:mode], *columns, *self.columns[mode + 1 :]], self.source)


def entries_of(input: SparseTensor) -> Entries:
    """The stored entries of a tensor inside its shape.

    Raises:
        UnsupportedOperatorError: in a traced graph, because the entries are unknown.
    """
    pattern = input.pattern
    if any(type(array) is not Tensor for array in pattern.arrays_in_place()):
        raise refuse("moving the entries of a tensor in a traced graph", "do it before, outside of the graph")
    entries = Entries(list(pattern.kept_coordinates()), None)
    inside = pattern.kept_inside()
    return entries if inside is None else entries.selected(inside)


def moved(input: SparseTensor, entries: Entries, shape: Sequence[int], format: Format) -> SparseTensor:
    """The tensor of a shape with entries of `input`; in coordinate format if `format` cannot hold the entries."""
    return _with_values(input, _placed(entries, shape, format))


def moved_cached(
    input: SparseTensor, key: Hashable, make: Any, shape: Sequence[int], format: Format
) -> SparseTensor:
    """As `moved` with the entries `make()`; cached on the pattern under a key, for later tensors on the pattern."""

    def conversion() -> convert.Conversion:
        return _placed(make(), shape, format)

    entries_of(input)
    return _with_values(input, input.pattern.cached(("moved", key, tuple(shape), format), conversion))


def _placed(entries: Entries, shape: Sequence[int], format: Format) -> convert.Conversion:
    try:
        return convert.placed(entries.columns, entries.source, tuple(shape), format)
    except FormatError:  # the shape exceeds a fixed index width
        return convert.placed(entries.columns, entries.source, tuple(shape), plain(len(shape)))


def _with_values(input: SparseTensor, conversion: convert.Conversion) -> SparseTensor:
    values = convert.permuted(input.values(), conversion, input.fill)
    return SparseTensor(conversion.pattern, values, input.fill)


def plain(rank: int) -> Format:
    """The format for entries anywhere without padding."""
    return Format("coo", rank=rank)


def same_modes(format: Format) -> Format:
    """The format of a tensor with some entries of another: unchanged, unless the format fixes the number of entries."""
    if any(isinstance(stored.level, Grouped) for stored in format.levels):
        return Format("csr" if format.rank == 2 else "csf", rank=format.rank)
    return format


def without_modes(format: Format, gone: Sequence[int]) -> Format:
    """The format without some modes: the other levels, the last one compressed if no other lists entries."""
    rank = format.rank - len(gone)
    if not gone:
        return same_modes(format)
    levels = [stored.level for stored in format.levels]
    if not format.is_short or any(level.is_branchless or isinstance(level, Grouped) for level in levels):
        return plain(rank)
    left = [(mode, level) for mode, level in zip(format.ordering, levels, strict=True) if mode not in gone]
    remaining_modes = sorted(mode for mode, _ in left)
    chosen = [level for _, level in left]
    if not format.is_dense and all(isinstance(level, Dense) for level in chosen):
        chosen[-1] = Compressed()
    return Format(chosen, [remaining_modes.index(mode) for mode, _ in left])


def with_modes(format: Format, added: Sequence[int], rank: int) -> Format:
    """The format with modes of extent 1 added: dense levels outside of all others."""
    levels = [stored.level for stored in format.levels]
    if not added or not format.is_short or any(level.is_branchless for level in levels):
        return same_modes(format) if not added else plain(rank)
    old = [mode for mode in range(rank) if mode not in added]
    return Format([*[Dense()] * len(added), *levels], [*added, *(old[mode] for mode in format.ordering)])


def shape_after(input: Tensor, function: Any, *args: Any, **kwargs: Any) -> torch.Size:
    """The result shape of a torch function for the shape of `input`, by torch's own rules and errors."""
    example = torch.empty(input.shape, dtype=torch.bool, device="meta")
    result: Tensor = function(example, *args, **kwargs)
    return result.shape
