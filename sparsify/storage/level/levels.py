"""Level formats: storage of the coordinates of one level of a tensor.

In: `compressed(crd=int16)`. Out: `Compressed(crd="int16")`.

A level states its capabilities and three functions of positions and coordinates. The functions are arithmetic, written
once: storage evaluates them on torch's tensors, the compiler on variables of the generated kernel. Positions
below the parents 0, 1, 2 ... are consecutive, or interleaved for a few neighbouring parents (`stride`).

Source: Chou, Kjolstad and Amarasinghe, Format Abstraction for Sparse Tensor Algebra Compilers, 2018.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sparsify.errors import FormatError

if TYPE_CHECKING:
    from sparsify.storage.level.entries import Built, Entries

CRD_DTYPES = ("int8", "int16", "int32", "int64")
POS_DTYPES = ("int16", "int32", "int64")
ARRAY_DTYPES = {"pos": POS_DTYPES, "crd": CRD_DTYPES}
# Integers with `+ - * // %`: tensors, or expressions of a kernel.
Number = Any


class Stored(Protocol):
    """Arguments of the level functions.

    Attributes:
        extent: number of coordinates.
        width: number of positions of each parent, if equal for all and determined by the data.
    """

    @property
    def extent(self) -> Number: ...

    @property
    def width(self) -> Number: ...

    def pos(self, index: Number) -> Number:
        """An entry of the `pos` array."""

    def crd(self, index: Number) -> Number:
        """An entry of the `crd` array."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level format; the class has the name in format texts and the letter of printed IR.

    Attributes:
        arrays: names of the arrays, among `pos` and `crd`.
        can_iterate: positions and coordinates can be listed.
        can_locate: the position of a coordinate is computed by `locate`.
        can_append: coordinates can be stored in ascending order, their number unknown before.
        can_insert: coordinates can be stored in any order.
        is_full: every coordinate has a position.
        is_branchless: every position above has exactly one position.
        is_padded: positions without entries exist and hold the fill.
        holds_all: any set of coordinates can be stored.
        has_width: all parents have the same number of positions, determined by the data.
        has_bits: `crd` is no list of coordinates but has a bit for each.
        has_empty_slots: positions without a coordinate exist, -1 in `crd`; positions are in any order.
    """

    name: ClassVar[str]
    letter: ClassVar[str]
    arrays: ClassVar[tuple[str, ...]] = ()
    can_iterate: ClassVar[bool] = True
    can_locate: ClassVar[bool] = False
    can_append: ClassVar[bool] = False
    can_insert: ClassVar[bool] = False
    is_full: ClassVar[bool] = False
    is_branchless: ClassVar[bool] = False
    is_padded: ClassVar[bool] = False
    has_bits: ClassVar[bool] = False
    has_empty_slots: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for role, allowed in ARRAY_DTYPES.items():
            dtype = getattr(self, role, None)
            if dtype is not None and dtype not in allowed:
                raise FormatError(f"{role}={dtype} of a {self.name} level", f"one of {', '.join(allowed)}")

    def unfixed(self) -> "Level":
        """The level without fixed dtypes of arrays."""
        fixed = {f.name: None for f in fields(self) if f.name in self.arrays}
        return replace(self, **fixed) if fixed else self

    @property
    def is_unique(self) -> bool:
        """Whether no coordinate occurs twice below a parent."""
        return True

    @property
    def is_ordered(self) -> bool:
        """Whether coordinates ascend below a parent."""
        return True

    @property
    def holds_all(self) -> bool:
        return True

    @property
    def has_width(self) -> bool:
        return False

    @property
    def stride(self) -> int:
        """Distance of consecutive positions of a parent: the number of parents with interleaved positions."""
        return 1

    def begin(self, at: Stored, parent: Number) -> Number:
        """The first position below a parent; the last one precedes the first of the parent `stride` further."""
        return at.pos(parent)

    def coordinate(self, at: Stored, parent: Number, position: Number) -> Number:
        """The coordinate at a position."""
        return at.crd(position)

    def locate(self, at: Stored, parent: Number, coordinate: Number) -> Number:
        """The position of a coordinate."""
        raise FormatError(f"a {self.name} level cannot locate a coordinate", "a dense level")

    def check(self, extent: int) -> None:
        """Raises `FormatError` unless the level can have `extent` coordinates."""

    def store(self, entries: "Entries", at: Stored) -> "Built":
        """Stores sorted entries in the level; by default for a level without arrays.

        Raises:
            InvalidTensorError: the level cannot hold the entries.
        """
        from sparsify.storage.level.entries import located

        above = entries.places if entries.places is not None else 0
        places = self.locate(at, above, entries.column.long())
        count = int(self.begin(at, entries.parents))
        return located(entries, places, count, self.coordinate(at, above, places))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters in parentheses: `("nonunique", "crd=int16")`."""
        words = []
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool):
                words += [] if value else [FLAG_WORDS[f.name]]
            elif isinstance(value, int):
                words.append(str(value))
            elif isinstance(value, str):
                words.append(f"{f.name}={value}")
        return tuple(words)

    def __str__(self) -> str:
        return spelled(self.name, self.parameters)


@dataclass(frozen=True, slots=True)
class Dense(Level):
    """Every coordinate has a position: `position = parent * extent + coordinate`; no arrays."""

    name: ClassVar[str] = "dense"
    letter: ClassVar[str] = "d"
    can_locate: ClassVar[bool] = True
    can_insert: ClassVar[bool] = True
    is_full: ClassVar[bool] = True
    is_padded: ClassVar[bool] = True

    def begin(self, at: Stored, parent: Number) -> Number:
        return parent * at.extent

    def coordinate(self, at: Stored, parent: Number, position: Number) -> Number:
        return position - parent * at.extent

    def locate(self, at: Stored, parent: Number, coordinate: Number) -> Number:
        return parent * at.extent + coordinate


@dataclass(frozen=True, slots=True)
class Compressed(Level):
    """The stored coordinates of parent `p` are `crd[pos[p]:pos[p + 1]]`.

    Attributes:
        unique: no coordinate occurs twice below a parent; not so above a singleton level.
        ordered: coordinates ascend below a parent.
        pos: fixed dtype of `pos`, or `None`.
        crd: fixed dtype of `crd`, or `None`.
    """

    name: ClassVar[str] = "compressed"
    letter: ClassVar[str] = "s"
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    can_append: ClassVar[bool] = True
    unique: bool = True
    ordered: bool = True
    pos: str | None = None
    crd: str | None = None

    @property
    def is_unique(self) -> bool:
        return self.unique

    @property
    def is_ordered(self) -> bool:
        return self.ordered

    def store(self, entries: "Entries", at: Stored) -> "Built":
        from sparsify.storage.level.entries import compressed

        return compressed(entries)


@dataclass(frozen=True, slots=True)
class Singleton(Level):
    """Every position of a listing level above has exactly one coordinate, `crd[position]`."""

    name: ClassVar[str] = "singleton"
    letter: ClassVar[str] = "q"
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    can_append: ClassVar[bool] = True
    is_branchless: ClassVar[bool] = True
    crd: str | None = None

    def begin(self, at: Stored, parent: Number) -> Number:
        return parent

    def store(self, entries: "Entries", at: Stored) -> "Built":
        from sparsify.storage.level.entries import single

        return single(entries)


@dataclass(frozen=True, slots=True)
class Grouped(Level):
    """Exactly `n` distinct coordinates, in order, below every parent `p`: `crd[p * n:(p + 1) * n]`.

    Attributes:
        n: number of coordinates; `None` for the count of the fullest parent, as in ELLPACK.
        crd: fixed dtype of `crd`, or `None`.
    """

    name: ClassVar[str] = "grouped"
    letter: ClassVar[str] = "g"
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    is_padded: ClassVar[bool] = True
    n: int | None = None
    crd: str | None = None

    def __post_init__(self) -> None:
        Level.__post_init__(self)
        if self.n is not None and self.n < 1:
            raise FormatError(f"grouped({self.n})", "1 or more entries a group")

    @property
    def holds_all(self) -> bool:
        return self.n is None

    @property
    def has_width(self) -> bool:
        return self.n is None

    def begin(self, at: Stored, parent: Number) -> Number:
        return parent * (at.width if self.n is None else self.n)

    def check(self, extent: int) -> None:
        if self.n is not None and self.n > extent:
            raise FormatError(
                f"{self} of {extent} coordinates", f"at most {extent} distinct coordinates a group"
            )

    def store(self, entries: "Entries", at: Stored) -> "Built":
        from sparsify.storage.level.entries import fixed

        return fixed(entries, self.n)


@dataclass(frozen=True, slots=True)
class OnePerParent(Grouped):
    """A `singleton` below a level without listed coordinates: one coordinate below every parent, `crd[p]`.

    A group of one: a parent without an entry is padded, and positions of the level above exist without entries.
    """

    name: ClassVar[str] = "singleton"
    letter: ClassVar[str] = "q"
    n: int | None = 1

    @property
    def parameters(self) -> tuple[str, ...]:
        return () if self.crd is None else (f"crd={self.crd}",)


@dataclass(frozen=True, slots=True)
class Bitmap(Level):
    """A bit for each coordinate below parent `p`; the entries of set bits follow from `pos[p]` on.

    `crd` has whole bytes below every parent: coordinate `c` is bit `c % 8` of byte `c // 8`.
    """

    name: ClassVar[str] = "bitmap"
    letter: ClassVar[str] = "m"
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    has_bits: ClassVar[bool] = True
    crd: ClassVar[str] = "int8"

    def coordinate(self, at: Stored, parent: Number, position: Number) -> Number:
        from sparsify.storage.level.bits import coordinates

        return coordinates(at.crd(slice(None)), at.extent)[position]

    def store(self, entries: "Entries", at: Stored) -> "Built":
        from sparsify.storage.level.bits import bitmap

        return bitmap(entries)


@dataclass(frozen=True, slots=True)
class Sliced(Level):
    """Slices of `n` neighbouring parents with interleaved positions, as many for each as for the fullest parent.

    Slot `s` of parent `p` is at `(pos[p // n] + s) * n + p % n`: the coordinates of all parents of a slice are
    interleaved, slot by slot, and missing coordinates of a parent are padded.
    The parents are the coordinates of `i%n: dense`.

    Attributes:
        n: parents of a slice.
        crd: fixed dtype of `crd`, or `None`.

    Source: sliced ELLPACK of Monakov, Lokhmotov and Avetisyan, Automatically Tuning Sparse Matrix-Vector
    Multiplication for GPU Architectures, 2010.
    """

    name: ClassVar[str] = "sliced"
    letter: ClassVar[str] = "e"
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    is_padded: ClassVar[bool] = True
    n: int = 16
    crd: str | None = None

    def __post_init__(self) -> None:
        Level.__post_init__(self)
        if self.n < 1:
            raise FormatError(f"sliced({self.n})", "1 or more parents a slice")

    @property
    def stride(self) -> int:
        return self.n

    def begin(self, at: Stored, parent: Number) -> Number:
        first = at.pos(parent // self.n)
        # In tensors, positions may exceed the dtype of `pos`, which counts slots.
        first = first.long() if hasattr(first, "long") else first
        return first * self.n + parent % self.n

    def store(self, entries: "Entries", at: Stored) -> "Built":
        from sparsify.storage.level.slices import sliced

        return sliced(entries, self.n)


@dataclass(frozen=True, slots=True)
class Ragged(Level):
    """The first coordinates below parent `p`, `pos[p + 1] - pos[p]` of them: rows of different lengths.

    Entries up to the last coordinate of a parent are stored, so no `crd` is needed; missing ones are padded.

    Attributes:
        pos: fixed dtype of `pos`, or `None`.

    Source: jagged tensors, `torch.nested`.
    """

    name: ClassVar[str] = "ragged"
    letter: ClassVar[str] = "r"
    arrays: ClassVar[tuple[str, ...]] = ("pos",)
    is_padded: ClassVar[bool] = True
    pos: str | None = None

    def coordinate(self, at: Stored, parent: Number, position: Number) -> Number:
        return position - at.pos(parent)

    def store(self, entries: "Entries", at: Stored) -> "Built":
        from sparsify.storage.level.entries import leading

        return leading(entries)


FLAG_WORDS = {"unique": "nonunique", "ordered": "unordered"}


def spelled(name: str, parameters: tuple[str, ...]) -> str:
    """The text of a level with parameters: `compressed(crd=int16)`."""
    return f"{name}({', '.join(parameters)})" if parameters else name
