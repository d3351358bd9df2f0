"""Tensors as operands of expressions: dense arrays, or sorted entries of a sparse tensor.

In: a `SparseTensor` of an operand, an index for each mode and a space. Out: the values at all points, and the mask of
unstored ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from sparsify.compiler.einsum.nodes import Call, Const, Expr, Extent, Index
from sparsify.compiler.ir.dtypes import Kind
from sparsify.compiler.reference.grid import Grid, Mask, exact, in_dtype
from sparsify.compiler.reference.keys import Keys, find
from sparsify.compiler.reference.space import Space
from sparsify.storage.fill import Fill
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor

_SORTED: Final = "entries sorted by coordinates"
# Coordinates in the order of their keys, the permutation of the entries, `None` for the identity, and the keys.
Sorted = tuple[Tensor, Tensor | None, Keys]


@dataclass(frozen=True, slots=True)
class DenseValues:
    """A tensor with all entries in memory.

    Attributes:
        values: entries in the order of the modes.
        is_fill: mask of fill entries; `None`: none.
        fill: value read out of bounds.
    """

    values: Tensor
    is_fill: Mask
    kind: Kind
    fill: Fill = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the modes."""
        return tuple(self.values.shape)

    def read(self, indices: Sequence[Expr], space: Space, extents: Mapping[str, int]) -> Grid:
        """The entries at the points of a space."""
        if not indices:
            return Grid(self.values, self.is_fill, self.kind)
        if _are_plain(indices, self.shape, extents):
            names = [index.name for index in indices if isinstance(index, Index)]
            is_fill = None if self.is_fill is None else _viewed(self.is_fill, names, space)
            return Grid(_viewed(self.values, names, space), is_fill, self.kind)
        places, inside = _places(indices, self.shape, space, extents)
        if self.values.numel() == 0:
            return _nothing(inside, self.fill, self.kind)
        values = self.values[tuple(places)]
        is_fill = None if self.is_fill is None else self.is_fill[tuple(places)]
        if inside is not None:
            values = torch.where(inside, values, in_dtype(exact(self.fill, values.device), self.kind))
            is_fill = ~inside if is_fill is None else is_fill | ~inside
        return Grid(values, is_fill, self.kind)


class Entries:
    """The stored entries of a tensor, sorted by their coordinates.

    Args:
        coordinates: coordinates [d, n], in the order of their keys.
        values: values [n].
        shape: extents of the modes.
        is_fill: mask of stored entries that count as fill entries; `None`: none.
    """

    def __init__(
        self,
        coordinates: Tensor,
        values: Tensor,
        shape: Sequence[int],
        kind: Kind,
        fill: Fill = 0,
        is_fill: Mask = None,
        keys: Keys | None = None,
    ) -> None:
        self.coordinates, self.values, self.shape = coordinates, values, tuple(shape)
        self.kind, self.fill, self.is_fill = kind, fill, is_fill
        self.keys = keys or Keys(list(coordinates), shape)

    @cached_property
    def fill_value(self) -> Tensor:
        """The fill, as a scalar tensor."""
        return in_dtype(exact(self.fill, self.values.device), self.kind)

    def read(self, indices: Sequence[Expr], space: Space, extents: Mapping[str, int]) -> Grid:
        """The entries at the points of a space."""
        place, is_found = self.find(indices, space, extents)
        if len(self.values) == 0:
            return _nothing(is_found, self.fill, self.kind)
        is_fill = ~is_found
        values = torch.where(is_found, self.values[place], self.fill_value)
        if self.is_fill is not None:
            is_fill = is_fill | self.is_fill[place]
        return Grid(values, is_fill, self.kind)

    def at(self, place: Tensor) -> Grid:
        """The entries at the given indices."""
        is_fill = None if self.is_fill is None else self.is_fill[place]
        return Grid(self.values[place], is_fill, self.kind)

    def find(
        self, indices: Sequence[Expr], space: Space, extents: Mapping[str, int]
    ) -> tuple[Tensor, Tensor]:
        """The indices of the entries at the points of a space, and the mask of stored points."""
        places, inside = _places(indices, self.shape, space, extents)
        place, is_found = find(self.keys.values, self.keys.of(places))
        return place, is_found if inside is None else is_found & inside


Values = DenseValues | Entries


def operand(tensor: Tensor, kind: Kind, fill: Fill, *, is_dense: bool) -> Values:
    """An operand of a program; its declaration decides whether all entries are stored."""
    if not isinstance(tensor, SparseTensor):
        return DenseValues(in_dtype(_plain(tensor), kind), None, kind, fill)
    if is_dense:
        return DenseValues(in_dtype(_plain(tensor.to_dense()), kind), None, kind, fill)
    pattern, values = tensor._pattern.validated(), _plain(tensor._vals)
    coordinates, order, keys = sorted_of(pattern, values.device)
    values = values if order is None else values.index_select(0, order)
    return Entries(coordinates, in_dtype(values, kind), pattern.shape, kind, tensor._fill, keys=keys)


def stored_of(grid: Grid, fill: float) -> Tensor:
    """The mask of values that a tensor with this fill stores."""
    if grid.is_fill is None:
        return torch.ones((), dtype=torch.bool, device=grid.values.device).expand(grid.values.shape)
    is_other = ~grid.values.isnan() if fill != fill else grid.values != fill
    return ~grid.is_fill | is_other


def entries_of(values: Values, fill: float) -> Entries:
    """The entries other than fill entries of this fill."""
    stored = stored_of(Grid(values.values, values.is_fill, values.kind), fill)
    if isinstance(values, Entries):
        if values.is_fill is None:
            return values
        kept = stored.nonzero().squeeze(1)
        coordinates = values.coordinates.index_select(1, kept)
        return Entries(coordinates, values.values[kept], values.shape, values.kind, fill)
    return Entries(stored.nonzero().T, values.values[stored], values.shape, values.kind, fill)


def sorted_entries(
    coordinates: Tensor, values: Tensor, shape: Sequence[int], kind: Kind, fill: float
) -> Entries:
    """Entries in the order of their keys."""
    found = Entries(coordinates, values, shape, kind, fill)
    keys = found.keys.values
    if keys.numel() > 1 and not bool((keys.diff() > 0).all()):
        order = keys.argsort()
        found.keys.values = keys[order]
        found.coordinates, found.values = coordinates.index_select(1, order), values[order]
    return found


def permutation(pattern: Pattern, device: torch.device) -> Tensor | None:
    """The permutation from sorted entries to the entries of a pattern, on a device; `None`: the identity."""
    return sorted_of(pattern, device)[1]


def sorted_of(pattern: Pattern, device: torch.device) -> Sorted:
    """The sorted entries of a pattern on the device of its values; patterns themselves are in main memory."""
    found: Sorted = pattern.cached(_SORTED, lambda: _sorted(pattern))
    if device == found[0].device:
        return found
    moved: Sorted = pattern.cached((_SORTED, device), lambda: _moved(found, device))
    return moved


def _moved(found: Sorted, device: torch.device) -> Sorted:
    coordinates, order, keys = found
    return coordinates.to(device), None if order is None else order.to(device), keys.on(device)


def _plain(tensor: Tensor) -> Tensor:
    found: Tensor = tensor.detach()
    return found.resolve_conj().resolve_neg()


def _sorted(pattern: Pattern) -> Sorted:
    """The in-bounds coordinates of the entries in the order of their keys, and the indices of the entries."""
    coordinates = pattern.kept_coordinates(False)
    inside = pattern.kept_inside()
    kept = None if inside is None else inside.nonzero().squeeze(1)
    if kept is not None:
        coordinates = coordinates.index_select(1, kept)
    keys = Keys(list(coordinates), pattern.shape)
    if keys.values.numel() < 2 or bool((keys.values.diff() > 0).all()):
        return coordinates, kept, keys
    order = keys.values.argsort()
    keys.values = keys.values[order]
    return coordinates.index_select(1, order), order if kept is None else kept[order], keys


def _nothing(like: Mask, fill: Fill, kind: Kind) -> Grid:
    """Fill entries everywhere."""
    assert like is not None, "an empty tensor has a mode without coordinates"
    value = in_dtype(exact(fill, like.device), kind)
    return Grid(value.expand(like.shape), torch.ones_like(like), kind)


def _are_plain(indices: Sequence[Expr], shape: Sequence[int], extents: Mapping[str, int]) -> bool:
    """Whether the indices are distinct index variables that stay in bounds."""
    names = [index.name for index in indices if isinstance(index, Index)]
    if len(names) < len(indices) or len(set(names)) < len(names):
        return False
    return all(extents[name] <= size for name, size in zip(names, shape, strict=True))


def _viewed(values: Tensor, names: Sequence[str], space: Space) -> Tensor:
    """A tensor at the points of a space: a view along modes with an axis, gathered along modes bound by points."""
    bound = [mode for mode, name in enumerate(names) if name in space.points]
    free = [mode for mode, name in enumerate(names) if name not in space.points]
    free.sort(key=lambda mode: space.ranges[names[mode]].axis)
    found = values.permute([*bound, *free])
    for at, mode in enumerate(free, len(bound)):
        ends = space.ranges[names[mode]]
        found = found.narrow(at, ends.start, len(ends))
    if bound:
        place: Any = 0
        for mode in bound:
            place = place * values.shape[mode] + space.points[names[mode]]
        rows = found.reshape(-1, *found.shape[len(bound) :]) if len(bound) > 1 else found
        found = rows.index_select(0, place)
    shape = [1] * len(space.shape)
    if bound:
        shape[0] = found.shape[0]
    for mode in free:
        ends = space.ranges[names[mode]]
        shape[ends.axis] = len(ends)
    return found.reshape(shape)


def _places(
    indices: Sequence[Expr], shape: Sequence[int], space: Space, extents: Mapping[str, int]
) -> tuple[list[Tensor], Mask]:
    """The coordinates of each mode at the points of a space, and the mask of in-bounds points, `None`: all."""
    places: list[Tensor] = []
    inside: Mask = None
    for index, size in zip(indices, shape, strict=True):
        place = index_values(index, space, extents)
        is_in = None
        if place.is_floating_point():
            is_in, place = place == place.floor(), place.floor().long()
        if not (isinstance(index, Index) and extents[index.name] <= size):
            within = (place >= 0) & (place < size)
            is_in = within if is_in is None else is_in & within
        if is_in is not None:
            place = torch.where(is_in, place, 0)
            inside = is_in if inside is None else inside & is_in
        places.append(place)
    return places, inside


def index_values(index: Expr, space: Space, extents: Mapping[str, int]) -> Tensor:
    """The coordinates given by an affine index; a non-integer is out of bounds."""
    match index:
        case Const(value):
            return torch.tensor(int(value), device=space.device)
        case Index(name):
            return space.coordinates(name)
        case Extent(name):
            return torch.tensor(extents[name], device=space.device)
        case Call("neg", (arg,)):
            return -index_values(arg, space, extents)
        case Call(function, (left, right)):
            one, other = index_values(left, space, extents), index_values(right, space, extents)
            match function:
                case "add":
                    return one + other
                case "sub":
                    return one - other
                case "mul":
                    return one * other
                case "div":
                    return one.double() / other
    raise AssertionError(f"{index} is no index")
