"""Loop IR: imperative code over typed scalars, vectors and buffers.

    parallel for i in chunks(A2_pos, i_extent):
      w_0: float32x8 = 0
      for p in A2_pos[i]..A2_pos[i + 1]: j = A2_crd[p]; w_0 = fma(A_vals[p], T_vals[j * k_extent ..8], w_0)
      Y_vals[i * k_extent ..8] = w_0

Register arrays do not exist at this level: lowering has named each element (`w_0`, `w_1`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from sparsify.compiler.einsum.nodes import Selection
from sparsify.compiler.ir.node import Node


class Type(NamedTuple):
    """`float32`, `int64x8`, `bool`: an element dtype and a number of lanes (1: a scalar)."""

    dtype: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.dtype if self.lanes == 1 else f"{self.dtype}x{self.lanes}"


INT = Type("int64")
BOOL = Type("bool")
# Dot products of packed numbers, and the functions that add them to a sum.
ADDED_DOTS = {"dot_bfloat16": "add_dot_bfloat16", "dot_uint8_int8": "add_dot_uint8_int8"}
MOST_LOOKED_UP = 64  # vectors of a lookup table, padded by C++ to a power of two


@dataclass(frozen=True, slots=True)
class Expr(Node):
    """A value of a type."""


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A local variable, a size (`k_extent`) or a loop variable."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Literal(Expr):
    """A constant, broadcast to the lanes of the type."""

    value: float | int | bool
    type: Type


@dataclass(frozen=True, slots=True)
class Op(Expr):
    """A function of `einsum/functions.py`, or `fma floordiv mod`, on operands of one type; lane by lane.

    `add_dot_bfloat16(x, y, w)` is `w + dot_bfloat16(x, y)`, with packed numbers, int32, in x and y.
    Comparisons and logic give bool lanes; `where(c, a, b)` selects. `lookup(i, a, b)`: the lanes numbered by `i` among
    the lanes of `a`, then of `b`, and so on.
    """

    function: str
    args: tuple[Expr, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Convert(Expr):
    """`value` in another dtype with as many lanes."""

    value: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class Broadcast(Expr):
    """A scalar in every lane."""

    value: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class Lanes(Expr):
    """`start, start + 1, ...`: consecutive integers in the lanes."""

    start: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """`buffer[index]`, or with lanes the consecutive elements from `index` on; lanes >= `count` give 0."""

    buffer: str
    index: Expr
    type: Type
    count: Expr | None = None


@dataclass(frozen=True, slots=True)
class Gather(Expr):
    """`buffer[indices]`, lane by lane; lanes >= `count` give 0 and read nothing."""

    buffer: str
    indices: Expr
    type: Type
    count: Expr | None = None


@dataclass(frozen=True, slots=True)
class Bits(Expr):
    """`count` bits of `buffer[index]` from bit `first` on, or of whole bytes from `index` on, lowest first: int64."""

    buffer: str
    index: Expr
    count: int
    first: int = 0
    type: Type = INT


@dataclass(frozen=True, slots=True)
class Expand(Expr):
    """The elements of `buffer` from `index` on, one after the other, in the lanes with set bits in `bits`.

    The other lanes are 0. `end` elements may be read.
    """

    buffer: str
    index: Expr
    bits: Expr
    end: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class LaneBits(Expr):
    """The lanes with set bits: bool."""

    bits: Expr
    type: Type


@dataclass(frozen=True, slots=True)
class Horizontal(Expr):
    """All lanes of `value` combined by a function (`add`, `min`, `max`, `mul`) into a scalar.

    Lanes >= `count` are left out.
    """

    function: str
    value: Expr
    type: Type
    count: Expr | None = None


# The type of an expression.
type_of: Callable[[Expr], Type] = attrgetter("type")


@dataclass(frozen=True, slots=True)
class Stmt(Node):
    """A statement."""


@dataclass(frozen=True, slots=True)
class Block(Stmt):
    """Statements in order."""

    statements: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Comment(Stmt):
    """A line of text for the reader of the generated code."""

    text: str


@dataclass(frozen=True, slots=True)
class Declare(Stmt):
    """`var = value`, the first value of a new variable; assigned again only when `mutable`."""

    var: Var
    value: Expr
    mutable: bool = False


@dataclass(frozen=True, slots=True)
class Set(Stmt):
    """`var = value` for a mutable variable."""

    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """`buffer[index] = value`; lanes >= `count` are not written."""

    buffer: str
    index: Expr
    value: Expr
    count: Expr | None = None


@dataclass(frozen=True, slots=True)
class Scatter(Stmt):
    """`buffer[indices] = value`, lane by lane in lane order; lanes >= `count` are not written."""

    buffer: str
    indices: Expr
    value: Expr
    count: Expr | None = None


@dataclass(frozen=True, slots=True)
class Transpose(Stmt):
    """A square tile: lane `l` of `outputs[r]` becomes lane `r` of `inputs[l]`; the outputs are new variables."""

    outputs: tuple[Var, ...]
    inputs: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class HorizontalTogether(Stmt):
    """`outputs[n]` = all lanes of `inputs[n]` combined, as `Horizontal`, in one tree; the outputs are new variables."""

    outputs: tuple[Var, ...]
    function: str
    inputs: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """`for var in begin..end step step: body`."""

    var: Var
    begin: Expr
    end: Expr
    body: Stmt
    step: int = 1


@dataclass(frozen=True, slots=True)
class While(Stmt):
    """`while condition: body`."""

    condition: Expr
    body: Stmt


@dataclass(frozen=True, slots=True)
class If(Stmt):
    """`if condition: then else: otherwise`."""

    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@dataclass(frozen=True, slots=True)
class Allocate(Stmt):
    """Aligned scratch memory `buffer` of `count` elements, alive until the end of the enclosing block.

    `fill` initializes all elements; `None` leaves the elements undefined.
    """

    buffer: str
    dtype: str
    count: Expr
    fill: float | None = None


@dataclass(frozen=True, slots=True)
class Fill(Stmt):
    """Sets `count` elements of `buffer` from `begin` on to `value`."""

    buffer: str
    begin: Expr
    count: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Sort(Stmt):
    """Sorts the first `count` elements of `buffer` in ascending order."""

    buffer: str
    count: Expr


@dataclass(frozen=True, slots=True)
class Enumerate(Stmt):
    """`buffer` starts with the numbers of the nonzero entries among the first `count` of `flags`, ascending."""

    buffer: str
    flags: str
    count: Expr


@dataclass(frozen=True, slots=True)
class Mark(Stmt):
    """Marks number `index` of 0..extent in `buffer`, int8, with the layout of `loops/bitset.py`."""

    buffer: str
    index: Expr
    extent: Expr


@dataclass(frozen=True, slots=True)
class TakeMarks(Stmt):
    """`var` grows by the number of marks in `marks`; the marks are cleared.

    The marked numbers are written to `buffer` from `var` on, ascending; without a buffer they are only counted.
    The numbers stay below `end` in `buffer`; later elements are left undefined.
    """

    var: Var
    buffer: str | None
    marks: str
    extent: Expr
    end: Expr


@dataclass(frozen=True, slots=True)
class Table(Stmt):
    """An empty hash table, alive until the end of the enclosing block: `keys`, int64, and a value of `dtype` for each.

    Both buffers hold the entries in insertion order, and grow with the table.
    """

    table: str
    buffer: str
    keys: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Enter(Stmt):
    """`var` becomes the place of `key` in a table; a new key is appended, with an undefined value."""

    var: Var
    table: str
    key: Expr


@dataclass(frozen=True, slots=True)
class SortTable(Stmt):
    """Sorts the `count` entries of a table by key; no insertion until the table is cleared."""

    table: str
    count: Expr


@dataclass(frozen=True, slots=True)
class ClearTable(Stmt):
    """Removes all entries of a table."""

    table: str


@dataclass(frozen=True, slots=True)
class Compress(Stmt):
    """`var` grows by the number of kept elements of `source[begin ..count]`: different from `fill`, or selected.

    Kept elements are written to `values` from `var` on, and their numbers, counted from `first`, to `buffer`; without a
    buffer they are only counted. The entries stay below `end` in both buffers; later elements are left undefined.
    """

    var: Var
    buffer: str | None
    values: str
    source: str
    begin: Expr
    count: Expr
    first: Expr
    fill: Expr
    end: Expr
    selection: Selection | None = None


@dataclass(frozen=True, slots=True)
class Prefetch(Stmt):
    """Prefetches the cache line of `buffer[index]`."""

    buffer: str
    index: Expr


@dataclass(frozen=True, slots=True)
class ParallelFor(Stmt):
    """Threads run `setup` once each, then take chunks: `body` runs with `begin <= var < end` of the chunk.

    The range 0..extent is cut into `chunks` parts (`None`: one a thread) of equal work: of equal length, or,
    with `balance` (a buffer of `extent + 1` growing positions), of equal `positions + row_cost * rows`.
    `dynamic` hands chunks out on demand. `work` below the serial threshold keeps one thread.
    """

    begin: Var
    end: Var
    extent: Expr
    setup: Stmt
    body: Stmt
    work: Expr
    balance: str | None = None
    row_cost: int = 4
    chunks_per_thread: int = 1
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class AllocateOutput(Stmt):
    """The output slot `buffer` gets `count` elements from the caller; returns out of memory if refused."""

    buffer: str
    dtype: str
    count: Expr


@dataclass(frozen=True, slots=True)
class Return(Stmt):
    """Ends the kernel with a status code; not inside a parallel region."""

    status: int


@dataclass(frozen=True, slots=True)
class Buffer(Node):
    """An array argument: `A_vals: float32`, read, or written if `output`; `grown` ones are allocated in the kernel."""

    name: str
    dtype: str
    output: bool = False
    grown: bool = False


@dataclass(frozen=True, slots=True)
class Function(Node):
    """A kernel: sizes (int64), buffers, body. `vector_bytes` is the register width used by lowering."""

    sizes: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    body: Stmt
    vector_bytes: int
    comment: str = ""
