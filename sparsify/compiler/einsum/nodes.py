"""Einsum programs: tensor expressions before any loop exists.

`Y[i,k] = relu(sum(j, A[i,j] * T[j,k]) + b[k])` is

    Assign(Access("Y", (Index("i"), Index("k"))), None,
           Call("relu", (Call("add", (Reduce("sum", ("j",), ...), Access("b", ...))),)))
"""

from dataclasses import dataclass

from sparsify.compiler.einsum import printer
from sparsify.compiler.ir.node import Node
from sparsify.storage.format import Format


@dataclass(frozen=True, slots=True)
class Expr(Node):
    """A scalar expression over index variables and tensor accesses."""

    def __str__(self) -> str:
        return printer.expression(self)


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """A number, `0.5`; 1 and 1.0 promote in their own ways, and -0.0 is not 0.0: neither equals the other."""

    value: float | int | bool

    def __eq__(self, other: object) -> bool:
        return type(other) is Const and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(self.value)


@dataclass(frozen=True, slots=True)
class Index(Expr):
    """An index variable, `i`: a loop when it indexes a tensor, its coordinate when it is a value."""

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
    """`float64(A[i])`: a value in another dtype; the compiler writes what programs leave to promotion."""

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
    """`stored(A[i,j])`: true where the pattern of `A` has an entry, explicit zeros included."""

    access: Access


@dataclass(frozen=True, slots=True)
class Extent(Expr):
    """`extent(j)`: how many coordinates modes have that are declared with extent `j`; passes write it."""

    name: str


@dataclass(frozen=True, slots=True)
class Assign(Node):
    """`Y[i] = value`, or with a monoid `Y[i] += value`: the whole right side is reduced."""

    target: Access
    monoid: str | None
    value: Expr

    def __str__(self) -> str:
        return printer.assignment(self)


@dataclass(frozen=True, slots=True)
class Declaration(Node):
    """How a tensor of a program is stored: `A[i,j]: float32 dense(i) compressed(j)`.

    Attributes:
        extents: per mode the index variable whose extent it has.
        index_dtypes: per level the dtypes of (pos, crd), "" where the level has no such array.
        pattern_of: the tensor whose pattern it shares; its values are then aligned with that tensor's.
        is_number: whether it is a number of Python, which promotes as a constant does; finite, and not 0.
        drops: whether entries of the result that equal the fill are not stored: values decide the pattern.
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

    def __str__(self) -> str:
        return printer.declaration(self)


@dataclass(frozen=True, slots=True)
class Program(Node):
    """Statements over declared tensors; `extents` fixes the sizes that are known while compiling."""

    statements: tuple[Assign, ...]
    declarations: tuple[Declaration, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    extents: tuple[tuple[str, int], ...] = ()

    def declaration(self, name: str) -> Declaration:
        """The declaration of tensor `name`."""
        return next(d for d in self.declarations if d.name == name)

    def __str__(self) -> str:
        return printer.program(self)
