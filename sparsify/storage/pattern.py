"""Patterns: the stored entries of a tensor, without values.

In: a format, a shape and the arrays `pos` and `crd` of each level. Out: an immutable `Pattern`, shared by tensors,
with a cache of everything derived from the structure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor

from sparsify.errors import InvalidTensorError
from sparsify.storage import expand
from sparsify.storage.copies import copies, untraced
from sparsify.storage.format import Format
from sparsify.storage.level.arrays import Arrays as LevelArrays
from sparsify.storage.parts import check_levels, shape_of

T = TypeVar("T")
Arrays = Sequence[Tensor | None]
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class LevelStatistics:
    """Sizes of a level: `parents` positions above, `positions` in the level, maximum and mean below a parent."""

    parents: int
    positions: int
    largest: int
    mean: float


class Pattern:
    """The stored entries of a tensor; compared by identity, so sharing is detected cheaply.

    Attributes:
        format: storage of the modes by levels.
        shape: extent of each mode.
        pos: copy of the `pos` array per level, `None` for a level without one.
        crd: copy of the `crd` array per level, `None` for a level without one.
        nnz: number of stored entries, explicit fills and block padding included.

    Bits of a traced graph cannot be counted: `stored` is the number of set bits.

    Arrays are copied, and only copies are handed out, so nobody can write to arrays read by kernels. The contents of
    arrays are checked once, when a tensor is made of the pattern or a kernel reads the pattern.

    Args:
        pos, crd: arrays per level, `None` for a level without one.
        stored: number of set bits, for a traced graph.
        is_private: whether nobody else can reach the arrays; such arrays are not copied.

    Raises:
        InvalidTensorError: not one tensor or `None` for each level, or a shape of anything but extents.
        FormatError: a format of another rank.
    """

    __slots__ = ("__weakref__", "_cache", "_compared", "_crd", "_pos", "_written", "format", "nnz", "shape")

    format: Format
    shape: tuple[int, ...]
    _pos: tuple[Tensor | None, ...]
    _crd: tuple[Tensor | None, ...]
    nnz: int
    _cache: dict[object, Any]
    _compared: "WeakKeyDictionary[Pattern, bool]"
    _written: tuple[tuple[Tensor, int], ...]  # the arrays with version counters

    def __init__(
        self,
        format: Format,
        shape: Sequence[int],
        pos: Arrays,
        crd: Arrays,
        stored: int | None = None,
        *,
        is_private: bool = False,
    ) -> None:
        checked = shape_of(shape)
        check_levels(format, checked, pos, crd)
        arrays = (tuple(pos), tuple(crd)) if is_private else (copies(pos), copies(crd))
        self._fill(format, checked, *arrays)
        is_told = (
            stored is not None
            and format.has_bits
            and any(type(a) is not Tensor for a in self.arrays_in_place())
        )
        object.__setattr__(self, "nnz", stored if is_told else self.positions(len(format.levels)))

    @classmethod
    def of_arrays(
        cls, format: Format, shape: tuple[int, ...], pos: Arrays, crd: Arrays, stored: int
    ) -> "Pattern":
        """The pattern of newly made private arrays: trusted without a check."""
        pattern = cls.__new__(cls)
        pattern._fill(format, shape, tuple(pos), tuple(crd))
        object.__setattr__(pattern, "nnz", stored)
        return pattern.trusted()

    def _fill(
        self,
        format: Format,
        shape: tuple[int, ...],
        pos: tuple[Tensor | None, ...],
        crd: tuple[Tensor | None, ...],
    ) -> None:
        """Sets all attributes except the number of entries."""
        put = object.__setattr__
        put(self, "format", format)
        put(self, "shape", shape)
        put(self, "_pos", pos)
        put(self, "_crd", crd)
        put(self, "_cache", {})
        put(self, "_compared", WeakKeyDictionary())
        counting = [a for a in self.arrays_in_place() if type(a) is Tensor and not a.is_inference()]
        put(self, "_written", tuple([(a, a._version) for a in counting]))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Pattern is immutable, {name} cannot be set; make a new one")

    def __reduce__(self) -> tuple[Any, ...]:
        return Pattern, (self.format, self.shape, self._pos, self._crd)

    def __copy__(self) -> "Pattern":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pattern":
        return self

    def __repr__(self) -> str:
        return f"Pattern({self.format}; shape {list(self.shape)}, {self.nnz} stored)"

    @property
    def rank(self) -> int:
        """The number of modes of the tensor."""
        return len(self.shape)

    @property
    def device(self) -> torch.device:
        """The device of the arrays."""
        return next((a.device for a in (*self._pos, *self._crd) if a is not None), torch.device("cpu"))

    @property
    def density(self) -> float:
        """The stored share of all entries; 1 for an empty tensor."""
        return self.nnz / entries if (entries := math.prod(self.shape)) else 1.0

    def positions(self, levels: int) -> int:
        """The total number of positions of the first `levels` levels."""
        count = 1
        for number in range(levels):
            crd = self._crd[number]
            stored = self.format.levels[number]
            if crd is not None and not stored.level.has_bits:
                count = crd.shape[0]
                continue
            has_positions, pos = "pos" in stored.level.arrays, self._pos[number]
            if has_positions and (pos is None or pos.numel() <= count // stored.level.stride):
                return 0  # too few positions, an error of `validate.pattern`
            count = stored.level.begin(self.level_arrays(number, count), count)
            count = int(count) if has_positions else count
        return count

    def level_arrays(self, number: int, parents: int) -> LevelArrays:
        """The arrays of a level below a number of positions."""
        extent = self.format.levels[number].expression.extent(self.shape)
        return LevelArrays(extent, parents, self._pos[number], self._crd[number])

    @property
    def pos(self) -> tuple[Tensor | None, ...]:
        """Copy of the `pos` array per level, `None` for a level without one."""
        return copies(self._pos)

    @property
    def crd(self) -> tuple[Tensor | None, ...]:
        """Copy of the `crd` array per level, `None` for a level without one."""
        return copies(self._crd)

    def arrays(self) -> list[Tensor]:
        """Copies of the existing arrays, level by level, `pos` before `crd`."""
        return _existing(self.pos, self.crd)

    def arrays_in_place(self) -> list[Tensor]:
        """The arrays read by kernels, ordered as in `arrays`; never handed to a user, as writes are not checked."""
        return _existing(self._pos, self._crd)

    def cached(self, key: object, make: Callable[[], T]) -> T:
        """The memoized result of `make` for `key`: everything derived from the structure is made once."""
        value = self._cache.get(key, _MISSING)
        if value is _MISSING:
            with self._untraced():
                value = self._cache[key] = make()
        return cast(T, value)

    def keep(self, key: object, value: T) -> T:
        """Caches a value derived from the structure without traceable tensors."""
        return cast(T, self._cache.setdefault(key, value))

    def _untraced(self) -> AbstractContextManager[None]:
        """Context manager: computations on concrete arrays are not recorded in a traced graph."""
        if any(type(a) is not Tensor for a in self.arrays_in_place()):
            return nullcontext()
        return untraced()

    def recall(self, key: object) -> Any:
        """The cached result of `cached` for `key`, `None` if not computed yet."""
        return self._cache.get(key)

    def validated(self) -> "Pattern":
        """This pattern, validated against its format; arrays of a traced graph are not read.

        Raises:
            InvalidTensorError: malformed arrays, or arrays written to since the pattern was made.
        """
        if not self.is_unchanged():
            raise InvalidTensorError(
                f"pos or crd of {self} was written to after the pattern was made",
                "make a new tensor of changed copies; a pattern never changes",
            )
        if "valid" not in self._cache and all(type(a) is Tensor for a in self.arrays_in_place()):
            from sparsify.storage import validate

            with self._untraced():
                validate.pattern(self)
            self.trusted()
        return self

    def is_unchanged(self) -> bool:
        """Whether nobody has written to the arrays since the pattern was made."""
        return all(array._version == version for array, version in self._written)

    def trusted(self) -> "Pattern":
        """This pattern, marked as valid by its maker."""
        self._cache.setdefault("valid", True)
        return self

    def coordinates(self) -> Tensor:
        """A copy of the coordinates of the stored entries in storage order, int64 [d, nnz].

        Blocks beyond the edge hold entries with coordinates outside the shape; `inside` is the mask of the others.
        """
        result = self.kept_coordinates(False)
        return result if result is not self.recall("coordinates") else cast(Tensor, copies((result,))[0])

    def kept_coordinates(self, is_kept: bool = True) -> Tensor:
        """The coordinates without a copy, possibly cached by the pattern; never handed to a user.

        Args:
            is_kept: whether to cache the coordinates: 8 d bytes an entry, more than most formats take.
        """
        if is_kept or self.recall("coordinates") is not None:
            return self.validated().cached("coordinates", lambda: expand.mode_coordinates(self))
        with self._untraced():
            return expand.mode_coordinates(self.validated())

    def inside(self) -> Tensor | None:
        """The mask of entries inside the shape, bool [nnz], a copy; `None` when all are, as always without blocks."""
        return copies((self.kept_inside(),))[0]

    def kept_inside(self) -> Tensor | None:
        """The cached mask of `inside` without a copy; never handed to a user."""
        return self.cached("inside", lambda: expand.inside(self))

    def converted(self, format: Format) -> "tuple[Pattern, Tensor]":
        """The same entries in another format, and the source position of each entry.

        The permutation is int64 [nnz of the result]: `new_values = values[permutation]`. Padding of blocks has -1:
        no source entry, and the fill as value (`convert.permuted` does both). Conversion of the result back to
        this format returns this pattern.
        """
        from sparsify.storage.convert import conversion

        result = conversion(self, format)
        return result.pattern, result.permutation

    def equals(self, other: "Pattern") -> bool:
        """Whether both patterns store the same entries in the same order and format; for traced graphs, provably."""
        if self is other:
            return True
        cached = self._compared.get(other)
        if cached is not None:
            return cached
        if self.format != other.format:
            return False
        if any(type(array) is not Tensor for array in (*self.arrays_in_place(), *other.arrays_in_place())):
            # Proxies of arrays without readable contents.
            return all(
                mine is theirs
                for mine, theirs in zip(self.arrays_in_place(), other.arrays_in_place(), strict=True)
            )
        are_equal = self.shape == other.shape and self.nnz == other.nnz and self._has_arrays_of(other)
        self._compared[other] = other._compared[self] = are_equal
        return are_equal

    def _has_arrays_of(self, other: "Pattern") -> bool:
        """Whether the arrays of both patterns have equal contents."""
        for mine, theirs in zip((*self._pos, *self._crd), (*other._pos, *other._crd), strict=True):
            if (mine is None) != (theirs is None):
                return False
            if mine is None or theirs is None or mine is theirs:
                continue
            if mine.shape != theirs.shape or not _same(mine, theirs):
                return False
        return True

    def stands_for(self, other: "Pattern") -> bool:
        """Whether this is the pattern of a gradient in a traced graph, equal at run time to the pattern `other`."""
        is_known = all(type(array) is Tensor for array in (*self.arrays_in_place(), *other.arrays_in_place()))
        return not is_known and self.format == other.format

    def statistics(self) -> tuple[LevelStatistics, ...]:
        """The sizes of each level."""
        return self.cached("statistics", lambda: _statistics(self))

    def distinct(self) -> Mapping[tuple[int, ...], int]:
        """The number of distinct coordinates of the entries along some sets of modes (`statistics.distinct`)."""
        from sparsify.storage.statistics import distinct

        return self.validated().cached("distinct", lambda: distinct(self))

    def longest(self, level: int) -> int:
        """The maximum number of entries with one coordinate of a level, see `statistics.longest`."""
        from sparsify.storage.statistics import longest

        checked = self.validated() if level else self
        return checked.cached(("longest", level), lambda: longest(self, level))

    def note_longest(self, count: int) -> None:
        """Stores the number of entries of the longest row, if counted by the maker of the pattern."""
        from sparsify.storage.statistics import FEW

        self.keep(("longest", 0), count if self.nnz >= FEW else 0)

    def counts(self, is_turned: bool = False) -> tuple[int, ...]:
        """The number of entries, level by level, and in the longest row: the cache key of choices by size.

        Args:
            is_turned: whether the modes are read in the other order.
        """
        from sparsify.storage.statistics import counts

        return self.cached(("counts", is_turned), lambda: counts(self, is_turned))

    def reach(self) -> int:
        """Distance of two entries of the last level accessed one parent apart, in coordinates.

        The median of a few thousand pairs spread over the pattern: small for bands, a third of the extent for uniformly
        spread entries.
        """
        from sparsify.storage.statistics import reach

        return self.cached("reach", lambda: reach(self))

    def crowding(self) -> float:
        """The share of entries close to a recently read one, see `statistics.crowding`."""
        from sparsify.storage.statistics import crowding

        return self.cached("crowding", lambda: crowding(self))


_living: "WeakValueDictionary[tuple[Any, ...], Pattern]" = WeakValueDictionary()


def shared(
    format: Format,
    shape: Sequence[int],
    pos: Arrays,
    crd: Arrays,
    stored: int | None = None,
    *,
    is_private: bool = False,
) -> Pattern:
    """The living pattern of the same memory, else a new one: loaded tensors continue to share their pattern.

    Args:
        format, shape, pos, crd, stored, is_private: as for `Pattern`.
    """
    arrays = _existing(pos, crd)
    if not arrays or torch.compiler.is_compiling() or any(type(a) is not Tensor for a in arrays):
        return Pattern(format, shape, pos, crd, stored, is_private=is_private)
    key = _key(format, shape, arrays)
    pattern = _living.get(key)
    if pattern is None or not _holds(pattern, arrays):
        pattern = _living[key] = Pattern(format, shape, pos, crd, is_private=is_private)
        _living[_key(format, shape, pattern.arrays_in_place())] = pattern
    return pattern


def _key(format: Format, shape: Sequence[int], arrays: Sequence[Tensor]) -> tuple[Any, ...]:
    """The cache key of arrays: format, shape, addresses, shapes, strides and dtypes."""
    return format, tuple(shape), tuple((a.data_ptr(), a.shape, a.stride(), a.dtype) for a in arrays)


def _holds(pattern: Pattern, arrays: Sequence[Tensor]) -> bool:
    """Whether arrays at known addresses are the arrays of a pattern, or have equal contents."""
    pairs = list(zip(pattern.arrays_in_place(), arrays, strict=True))
    return pattern.is_unchanged() and all(
        mine.data_ptr() == theirs.data_ptr() or torch.equal(mine, theirs) for mine, theirs in pairs
    )


def _existing(pos: Arrays, crd: Arrays) -> list[Tensor]:
    """The existing arrays, level by level, `pos` before `crd`."""
    return [a for pair in zip(pos, crd, strict=True) for a in pair if a is not None]


def _statistics(pattern: Pattern) -> tuple[LevelStatistics, ...]:
    """The sizes of each level, from the arrays."""
    levels = []
    for number in range(len(pattern.format.levels)):
        parents, positions = pattern.positions(number), pattern.positions(number + 1)
        pos = pattern._pos[number]
        mean = positions / parents if parents else 0.0
        largest = round(mean) if pos is None else int(pos.diff().max()) if parents else 0
        levels.append(LevelStatistics(parents, positions, largest, mean))
    return tuple(levels)


def _same(mine: Tensor, theirs: Tensor) -> bool:
    """Whether two arrays of one shape hold the same numbers; stops at the first difference."""
    if mine.dtype != theirs.dtype:
        mine, theirs = mine.long(), theirs.long()
    return torch.equal(mine, theirs)
