"""Patterns: which entries of a tensor are stored, without their values.

In: a format, a shape and the arrays `pos` and `crd` of each level. Out: an immutable `Pattern` that tensors share
and that keeps everything derived from its structure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import Tensor

from sparsify.errors import InvalidTensorError
from sparsify.storage import expand
from sparsify.storage.arrays import Arrays as LevelArrays
from sparsify.storage.copies import copies, untraced
from sparsify.storage.format import Format
from sparsify.storage.parts import check_levels, shape_of

T = TypeVar("T")
Arrays = Sequence[Tensor | None]
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class LevelStatistics:
    """Sizes of a level: `parents` positions above, `positions` of its own, the most and the mean below a parent."""

    parents: int
    positions: int
    largest: int
    mean: float


class Pattern:
    """The stored entries of a tensor; equal only to itself, so that sharing it is cheap to see.

    Attributes:
        format: how the levels store the modes.
        shape: the extent of each mode.
        pos: per level a copy of its `pos` array, `None` where the level has none.
        crd: per level a copy of its `crd` array, `None` where the level has none.
        nnz: how many entries are stored, explicit fills and block padding included.

    Bits of a graph that is traced cannot be counted: `stored` says how many are set.

    Arrays are copied, and only copies are handed out: nobody can write to what kernels read. What the arrays hold is
    checked once, when a tensor is made of the pattern or a kernel reads it.

    Args:
        pos, crd: per level its arrays, `None` where it has none.
        stored: how many bits are set, of a graph that is traced.
        is_private: whether nobody else can reach the arrays; they are not copied then.

    Raises:
        InvalidTensorError: not one tensor or `None` for each level, or a shape of anything but extents.
        FormatError: a format of another rank.
    """

    __slots__ = ("__weakref__", "_cache", "_crd", "_equals", "_pos", "_written", "format", "nnz", "shape")

    format: Format
    shape: tuple[int, ...]
    _pos: tuple[Tensor | None, ...]
    _crd: tuple[Tensor | None, ...]
    nnz: int
    _cache: dict[object, Any]
    _equals: "WeakSet[Pattern]"
    _written: tuple[tuple[Tensor, int], ...]  # the arrays that count how often they are written to

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
        """The pattern of private arrays that were just made for it: nothing is checked, and it is trusted."""
        found = cls.__new__(cls)
        found._fill(format, shape, tuple(pos), tuple(crd))
        object.__setattr__(found, "nnz", stored)
        return found.trusted()

    def _fill(
        self,
        format: Format,
        shape: tuple[int, ...],
        pos: tuple[Tensor | None, ...],
        crd: tuple[Tensor | None, ...],
    ) -> None:
        """Sets all but the number of entries."""
        put = object.__setattr__
        put(self, "format", format)
        put(self, "shape", shape)
        put(self, "_pos", pos)
        put(self, "_crd", crd)
        put(self, "_cache", {})
        put(self, "_equals", WeakSet())
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
        """The number of modes the tensor has."""
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
        """The number of positions the first `levels` levels have together."""
        count = 1
        for number in range(levels):
            crd = self._crd[number]
            stored = self.format.levels[number]
            if crd is not None and not stored.level.has_bits:
                count = crd.shape[0]
                continue
            count = stored.level.begin(self.level_arrays(number, count), count)
            count = int(count) if stored.level.has_bits else count
        return count

    def level_arrays(self, number: int, parents: int) -> LevelArrays:
        """The arrays of a level below so many positions."""
        extent = self.format.levels[number].expression.extent(self.shape)
        return LevelArrays(extent, parents, self._pos[number], self._crd[number])

    @property
    def pos(self) -> tuple[Tensor | None, ...]:
        """Per level a copy of its `pos` array, `None` where the level has none."""
        return copies(self._pos)

    @property
    def crd(self) -> tuple[Tensor | None, ...]:
        """Per level a copy of its `crd` array, `None` where the level has none."""
        return copies(self._crd)

    def arrays(self) -> list[Tensor]:
        """Copies of the arrays that exist, level by level, `pos` before `crd`."""
        return _existing(self.pos, self.crd)

    def arrays_in_place(self) -> list[Tensor]:
        """The arrays that kernels read, in the same order; never handed to a user, whose writes nobody checks."""
        return _existing(self._pos, self._crd)

    def cached(self, key: object, make: Callable[[], T]) -> T:
        """The memoized result of `make` for `key`: everything derived from the structure is made once."""
        found = self._cache.get(key, _MISSING)
        if found is _MISSING:
            with self._untraced():
                found = self._cache[key] = make()
        return cast(T, found)

    def keep(self, key: object, value: T) -> T:
        """Keeps what was made of the structure without tensors that somebody may trace."""
        return cast(T, self._cache.setdefault(key, value))

    def _untraced(self) -> AbstractContextManager[None]:
        """Inside, nobody records what is computed from arrays that are at hand: it is no part of a graph."""
        if any(type(a) is not Tensor for a in self.arrays_in_place()):
            return nullcontext()
        return untraced()

    def recall(self, key: object) -> Any:
        """The result that `cached` made for `key`, `None` when it has not been asked for."""
        return self._cache.get(key)

    def validated(self) -> "Pattern":
        """This pattern, known to hold what its format says; arrays of a graph that is traced are not looked at.

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
        """This pattern, whose maker vouches for what the arrays hold."""
        self._cache.setdefault("valid", True)
        return self

    def coordinates(self) -> Tensor:
        """A copy of the coordinates of the stored entries in storage order, int64 [d, nnz].

        Blocks that reach over the edge hold entries whose coordinates lie outside the shape; `inside` tells.
        """
        found = self.kept_coordinates(False)
        return found if found is not self.recall("coordinates") else cast(Tensor, copies((found,))[0])

    def kept_coordinates(self, is_kept: bool = True) -> Tensor:
        """The same, maybe those that the pattern keeps; never handed to a user.

        Args:
            is_kept: whether they stay for later calls: 8 d bytes an entry, more than most formats take.
        """
        if is_kept or self.recall("coordinates") is not None:
            return self.validated().cached("coordinates", lambda: expand.mode_coordinates(self))
        with self._untraced():
            return expand.mode_coordinates(self.validated())

    def inside(self) -> Tensor | None:
        """Which entries lie inside the shape, bool [nnz], a copy; `None` when all do, as always without blocks."""
        return copies((self.kept_inside(),))[0]

    def kept_inside(self) -> Tensor | None:
        """The same that the pattern keeps; never handed to a user."""
        return self.cached("inside", lambda: expand.inside(self))

    def twin(self, format: Format) -> "tuple[Pattern, Tensor]":
        """The same entries in another format, and where each of its entries is found here.

        The permutation is int64 [nnz of the twin]: `values_twin = values[permutation]`. It is -1 for the padding
        of blocks, which has no entry here and takes the fill (`convert.permuted` does both). A twin of the twin
        in this format is this pattern.
        """
        from sparsify.storage.convert import twin

        return twin(self, format)

    def equals(self, other: "Pattern") -> bool:
        """Whether both store the same entries in the same order and format; of traced graphs, known to do so."""
        if self is other or other in self._equals:
            return True
        if self.format != other.format:
            return False
        if any(type(array) is not Tensor for array in (*self.arrays_in_place(), *other.arrays_in_place())):
            # They stand for arrays that nobody can look at yet.
            return all(
                mine is theirs
                for mine, theirs in zip(self.arrays_in_place(), other.arrays_in_place(), strict=True)
            )
        if self.shape != other.shape or self.nnz != other.nnz:
            return False
        for mine, theirs in zip((*self._pos, *self._crd), (*other._pos, *other._crd), strict=True):
            if (mine is None) != (theirs is None):
                return False
            if mine is None or theirs is None or mine is theirs:
                continue
            if mine.shape != theirs.shape or not _same(mine, theirs):
                return False
        self._equals.add(other)
        other._equals.add(self)
        return True

    def stands_for(self, other: "Pattern") -> bool:
        """Whether this is the pattern of a gradient in a traced graph, which in its calls is what it is one of."""
        is_known = all(type(array) is Tensor for array in (*self.arrays_in_place(), *other.arrays_in_place()))
        return not is_known and self.format == other.format

    def statistics(self) -> tuple[LevelStatistics, ...]:
        """The sizes of each level."""
        return self.cached("statistics", lambda: _statistics(self))

    def distinct(self) -> Mapping[tuple[int, ...], int]:
        """The number of distinct coordinates the entries have along some sets of modes (`statistics.distinct`)."""
        from sparsify.storage.statistics import distinct

        return self.validated().cached("distinct", lambda: distinct(self))

    def longest(self, level: int) -> int:
        """The most entries that share a coordinate of a level, as `statistics.longest` says."""
        from sparsify.storage.statistics import longest

        known = self.validated() if level else self
        return known.cached(("longest", level), lambda: longest(self, level))

    def note_longest(self, count: int) -> None:
        """Says how many entries the longest row has, where whoever made the pattern has counted them."""
        from sparsify.storage.statistics import FEW

        self.keep(("longest", 0), count if self.nnz >= FEW else 0)

    def counts(self, is_turned: bool = False) -> tuple[int, ...]:
        """The number of entries, level by level, and in the longest row: what choices by size are kept under.

        Args:
            is_turned: whether it is read in the other order of its modes.
        """
        from sparsify.storage.statistics import counts

        return self.cached(("counts", is_turned), lambda: counts(self, is_turned))

    def reach(self) -> int:
        """Distance of two entries of the last level that are read one parent apart, in coordinates.

        The median of a few thousand pairs spread over the pattern: small for bands, a third of the extent where
        entries lie anywhere.
        """
        from sparsify.storage.statistics import reach

        return self.cached("reach", lambda: reach(self))

    def crowding(self) -> float:
        """The part of entries beside one that was just read, as `statistics.crowding` says."""
        from sparsify.storage.statistics import crowding

        return self.cached("crowding", lambda: crowding(self))


_known: "WeakValueDictionary[tuple[Any, ...], Pattern]" = WeakValueDictionary()


def shared(
    format: Format,
    shape: Sequence[int],
    pos: Arrays,
    crd: Arrays,
    stored: int | None = None,
    *,
    is_private: bool = False,
) -> Pattern:
    """The living pattern that was made of the same memory, else a new one: loaded tensors go on sharing their pattern.

    Args:
        format, shape, pos, crd, stored, is_private: as for `Pattern`.
    """
    arrays = _existing(pos, crd)
    if not arrays or torch.compiler.is_compiling() or any(type(a) is not Tensor for a in arrays):
        return Pattern(format, shape, pos, crd, stored, is_private=is_private)
    key = _key(format, shape, arrays)
    found = _known.get(key)
    if found is None or not _holds(found, arrays):
        found = _known[key] = Pattern(format, shape, pos, crd, is_private=is_private)
        _known[_key(format, shape, found.arrays_in_place())] = found
    return found


def _key(format: Format, shape: Sequence[int], arrays: Sequence[Tensor]) -> tuple[Any, ...]:
    """The places of arrays, and what they are for."""
    return format, tuple(shape), tuple((a.data_ptr(), a.shape, a.stride(), a.dtype) for a in arrays)


def _holds(pattern: Pattern, arrays: Sequence[Tensor]) -> bool:
    """Whether arrays at addresses that were met before are those of a pattern, or hold the same still."""
    pairs = list(zip(pattern.arrays_in_place(), arrays, strict=True))
    return pattern.is_unchanged() and all(
        mine.data_ptr() == theirs.data_ptr() or torch.equal(mine, theirs) for mine, theirs in pairs
    )


def _existing(pos: Arrays, crd: Arrays) -> list[Tensor]:
    """The arrays that are there, level by level, `pos` before `crd`."""
    return [a for pair in zip(pos, crd, strict=True) for a in pair if a is not None]


def _statistics(pattern: Pattern) -> tuple[LevelStatistics, ...]:
    """The sizes of each level, from its arrays."""
    found = []
    for number in range(len(pattern.format.levels)):
        parents, positions = pattern.positions(number), pattern.positions(number + 1)
        pos = pattern._pos[number]
        mean = positions / parents if parents else 0.0
        largest = round(mean) if pos is None else int(pos.diff().max()) if parents else 0
        found.append(LevelStatistics(parents, positions, largest, mean))
    return tuple(found)


def _same(mine: Tensor, theirs: Tensor) -> bool:
    """Whether two arrays of one shape hold the same numbers; it ends at the first that differ."""
    if mine.dtype != theirs.dtype:
        mine, theirs = mine.long(), theirs.long()
    return torch.equal(mine, theirs)
