"""Einsum programs: tensor expressions before any loop exists.

`Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])` is

    Assign(Access("Y", (Index("i"), Index("k"))), None,
           Call("relu", (Call("add", (Reduce("sum", ("j",), ...), Access("b", ...))),)))
"""

from dataclasses import dataclass

from sparsify.compiler.ir.node import Node
from sparsify.runtime.padded_memory import Interior
from sparsify.storage.format import Format


@dataclass(frozen=True, slots=True)
class Expr(Node):
    """A scalar expression over index variables and tensor accesses."""


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """A number, `0.5`; unequal constants: 1 and 1.0, which promote differently, and 0.0 and -0.0."""

    value: float | int | bool

    def __eq__(self, other: object) -> bool:
        return type(other) is Const and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(self.value)


@dataclass(frozen=True, slots=True)
class Index(Expr):
    """An index variable, `i`: a loop as an index of a tensor, its coordinate as a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Access(Expr):
    """`A[i, j]`: the entry of tensor `A`; each index is an affine expression. A scalar has no indices."""

    tensor: str
    indices: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A function of `functions.py` applied to its arguments, `add(x, y)`, printed `x + y`."""

    function: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """`float64(A[i])`: a value in another dtype; the compiler makes implicit promotions explicit."""

    dtype: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """`sum(j, body)`: `body` combined over index variables by a monoid of `monoids.py`."""

    monoid: str
    indices: tuple[str, ...]
    body: Expr


@dataclass(frozen=True, slots=True)
class Stored(Expr):
    """`stored(A[i,j])`: true at stored entries of `A`, explicit zeros included."""

    access: Access


@dataclass(frozen=True, slots=True)
class Extent(Expr):
    """`extent(j)`: the number of coordinates of modes declared with extent `j`; created by passes."""

    name: str


@dataclass(frozen=True, slots=True)
class Assign(Node):
    """`Y[i] = value`, or with a monoid `Y[i] += value`: the whole right side is reduced."""

    target: Access
    monoid: str | None
    value: Expr


@dataclass(frozen=True, slots=True)
class Selection(Node):
    """The stored entries of each row of a result: the `kept` largest of every `size` neighbours.

    Ties keep the first entries, NaN counts as the largest, and selected entries are stored even if equal to the fill.

    Attributes:
        kept: number of entries kept in a block.
        size: entries of a block of the last level; 0: a whole row.
        is_signed: whether entries are compared by value, not by magnitude.
    """

    kept: int
    size: int = 0
    is_signed: bool = False

    def __str__(self) -> str:
        sign = "signed " if self.is_signed else ""
        return f"largest {sign}{self.kept}{f' of {self.size}' if self.size else ''}"


@dataclass(frozen=True, slots=True)
class Declaration(Node):
    """The dtype and format of a tensor of a program: `A[i,j]: float32 dense(i) compressed(j)`.

    Attributes:
        extents: for each mode the index variable that names its extent.
        index_dtypes: for each level the dtypes of (pos, crd), "" for a missing array.
        pattern_of: owner of a shared pattern, with which the values are aligned.
        is_number: whether the tensor is a Python number, which promotes like a constant; finite and not 0.
        drops: whether entries of the result equal to the fill are not stored: values decide the pattern.
        selection: selection of the stored entries of a row, instead of entries other than the fill.
        interior: place of a dense tensor inside rows of zeros; None for contiguous memory.
    """

    name: str
    extents: tuple[str, ...]
    format: Format
    dtype: str
    fill: float = 0.0
    index_dtypes: tuple[tuple[str, str], ...] = ()
    pattern_of: str | None = None
    is_number: bool = False
    drops: bool = False
    selection: Selection | None = None
    interior: Interior | None = None

    @property
    def is_assembled(self) -> bool:
        """Whether the kernel computes the pattern of the result."""
        return self.pattern_of is None and not self.format.is_dense


@dataclass(frozen=True, slots=True)
class Program(Node):
    """Statements over declared tensors; `extents` fixes the sizes known at compile time."""

    statements: tuple[Assign, ...]
    declarations: tuple[Declaration, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    extents: tuple[tuple[str, int], ...] = ()

    def declaration(self, name: str) -> Declaration:
        """The declaration of tensor `name`."""
        return next(d for d in self.declarations if d.name == name)
