"""Level formats: how one level of a tensor stores its coordinates.

In: `compressed(crd=int16)`. Out: `Compressed(crd="int16")`.

A level states what it can do and three functions of positions and coordinates. They are arithmetic, written once:
storage evaluates them on torch's tensors, the compiler on the variables of the kernel that it generates. Positions
below the parents 0, 1, 2 ... follow one another, or those of a few neighbours take turns (`stride`).

Source: Chou, Kjolstad and Amarasinghe, Format Abstraction for Sparse Tensor Algebra Compilers, 2018.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sparsify.errors import FormatError

if TYPE_CHECKING:
    from sparsify.storage.entries import Built, Entries

CRD_DTYPES = ("int8", "int16", "int32", "int64")
POS_DTYPES = ("int16", "int32", "int64")
ARRAY_DTYPES = {"pos": POS_DTYPES, "crd": CRD_DTYPES}
# Integers with `+ - * // %`: tensors of them, or expressions of a kernel.
Number = Any


class Stored(Protocol):
    """Arguments that the functions of a level read.

    Attributes:
        extent: how many coordinates there are.
        width: how many positions each parent has, where that is the same for all and found in the data.
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
    """A level format; its class has the name that formats spell and the letter of printed IR.

    Attributes:
        arrays: which of `pos` and `crd` it has.
        can_iterate: its positions and their coordinates can be listed.
        can_locate: the position of a coordinate is computed by `locate`.
        can_append: coordinates can be stored in ascending order, their number unknown before.
        can_insert: coordinates can be stored in any order.
        is_full: every coordinate has a position.
        is_branchless: every position above has exactly one position.
        is_padded: it has positions that entries did not ask for; they hold the fill.
        holds_all: it can hold any set of coordinates.
        has_width: all parents have the same number of positions, which is found in the data.
        has_bits: its `crd` is no list of coordinates but has a bit for each.
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

    def __post_init__(self) -> None:
        for role, allowed in ARRAY_DTYPES.items():
            dtype = getattr(self, role, None)
            if dtype is not None and dtype not in allowed:
                raise FormatError(f"{role}={dtype} of a {self.name} level", f"one of {', '.join(allowed)}")

    def unfixed(self) -> "Level":
        """The level without dtypes of its arrays."""
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
        """Distance of the positions of a parent: those of as many neighbouring parents take turns."""
        return 1

    def begin(self, at: Stored, parent: Number) -> Number:
        """The first position below a parent; the last one comes before the first of the parent `stride` further."""
        return at.pos(parent)

    def coordinate(self, at: Stored, parent: Number, position: Number) -> Number:
        """The coordinate at a position."""
        return at.crd(position)

    def locate(self, at: Stored, parent: Number, coordinate: Number) -> Number:
        """The position of a coordinate."""
        raise FormatError(f"a {self.name} level cannot locate a coordinate", "a dense level")

    def check(self, extent: int) -> None:
        """Nothing when the level can have `extent` coordinates, else `FormatError`."""

    def store(self, entries: "Entries", at: Stored) -> "Built":
        """The level that holds sorted entries; here that of a level without arrays.

        Raises:
            InvalidTensorError: it cannot hold them.
        """
        from sparsify.storage.entries import located

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
        pos: dtype of `pos` where the format fixes it.
        crd: dtype of `crd` where the format fixes it.
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
        from sparsify.storage.entries import compressed

        return compressed(entries)


@dataclass(frozen=True, slots=True)
class Singleton(Level):
    """Every position of the level above, which lists coordinates, has exactly one coordinate, `crd[position]`."""

    name: ClassVar[str] = "singleton"
    letter: ClassVar[str] = "q"
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    can_append: ClassVar[bool] = True
    is_branchless: ClassVar[bool] = True
    crd: str | None = None

    def begin(self, at: Stored, parent: Number) -> Number:
        return parent

    def store(self, entries: "Entries", at: Stored) -> "Built":
        from sparsify.storage.entries import single

        return single(entries)


@dataclass(frozen=True, slots=True)
class Grouped(Level):
    """Exactly `n` distinct coordinates, in order, below every parent `p`: `crd[p * n:(p + 1) * n]`.

    Attributes:
        n: how many; `None` for as many as the fullest parent of a tensor has, as in ELLPACK.
        crd: dtype of `crd` where the format fixes it.
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
        from sparsify.storage.entries import fixed

        return fixed(entries, self.n)


@dataclass(frozen=True, slots=True)
class OnePerParent(Grouped):
    """A `singleton` below a level that does not list coordinates: one below every parent, `crd[p]`.

    It is a group of one: a parent without an entry is padded, and needs no position of the level above to exist.
    """

    name: ClassVar[str] = "singleton"
    letter: ClassVar[str] = "q"
    n: int | None = 1

    @property
    def parameters(self) -> tuple[str, ...]:
        return () if self.crd is None else (f"crd={self.crd}",)


@dataclass(frozen=True, slots=True)
class Bitmap(Level):
    """A bit for each coordinate below parent `p`; the entries of those that are set follow from `pos[p]` on.

    `crd` has whole bytes below every parent: coordinate `c` is bit `c % 8` of byte `c // 8`.
    """

    name: ClassVar[str] = "bitmap"
    letter: ClassVar[str] = "m"
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    has_bits: ClassVar[bool] = True
    crd: ClassVar[str] = "int8"

    def coordinate(self, at: Stored, parent: Number, position: Number) -> Number:
        from sparsify.storage.bits import coordinates

        return coordinates(at.crd(slice(None)), at.extent)[position]

    def store(self, entries: "Entries", at: Stored) -> "Built":
        from sparsify.storage.bits import bitmap

        return bitmap(entries)


@dataclass(frozen=True, slots=True)
class Sliced(Level):
    """Slices of `n` neighbouring parents that have as many positions each, as the fullest of them; they take turns.

    Slot `s` of parent `p` is at `(pos[p // n] + s) * n + p % n`: the coordinates of all parents of a slice lie side by
    side, slot by slot, and what one parent lacks is padded. Its parents are those of `i%n: dense`.

    Attributes:
        n: parents of a slice.
        crd: dtype of `crd` where the format fixes it.

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
        # Of tensors; positions may be more than `pos`, which counts slots, can say in its dtype.
        first = first.long() if hasattr(first, "long") else first
        return first * self.n + parent % self.n

    def store(self, entries: "Entries", at: Stored) -> "Built":
        from sparsify.storage.slices import sliced

        return sliced(entries, self.n)


FLAG_WORDS = {"unique": "nonunique", "ordered": "unordered"}


def spelled(name: str, parameters: tuple[str, ...]) -> str:
    """A level with its parameters: `compressed(crd=int16)`."""
    return f"{name}({', '.join(parameters)})" if parameters else name
