"""Concrete index notation: loops in an order, temporaries with a scope, no storage yet.

    forall i: let w[k] in register: (forall j: forall k: w[k] += A[i,j] * T[j,k]);
              forall k: Y[i,k] = relu(w[k] + b[k])

Expressions and assignments are shared with einsum programs. Derived index variables (split, fused, positions)
keep their provenance in `relations`; accesses go on using the original index variables.
"""

from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Assign, Declaration, Expr
from sparsify.compiler.ir.node import Node


@dataclass(frozen=True, slots=True)
class Kind(Node):
    """The execution order of the iterations of a loop."""


@dataclass(frozen=True, slots=True)
class Serial(Kind):
    """Iterations in sequence."""


@dataclass(frozen=True, slots=True)
class Parallel(Kind):
    """Over threads: `static` rows, balanced by `positions` of a tensor, or `dynamic` balanced chunks.

    `chunks` is the average number of chunks per thread; `by` names the balancing tensor. All threads share
    the sums of a row with more than `hubs` positions, 0 for no row.
    """

    policy: str = "static"
    by: str = ""
    chunks: int = 1
    hubs: int = 0


@dataclass(frozen=True, slots=True)
class Vector(Kind):
    """In the lanes of vector registers, with a masked remainder."""


@dataclass(frozen=True, slots=True)
class Unrolled(Kind):
    """Unrolled; the extent is a constant."""


@dataclass(frozen=True, slots=True)
class Transposed(Kind):
    """Unrolled, one register a row: with a vector loop inside, square tiles are transposed in registers."""


@dataclass(frozen=True, slots=True)
class Statement(Node):
    """A statement of concrete index notation."""


@dataclass(frozen=True, slots=True)
class Forall(Statement):
    """`forall i: body`."""

    index: str
    body: "Statement | Assign"
    kind: Kind = Serial()


@dataclass(frozen=True, slots=True)
class Sequence(Statement):
    """`first; second`: executed in order."""

    statements: tuple["Statement | Assign", ...]


@dataclass(frozen=True, slots=True)
class Temporary(Node):
    """`w[k]: float32 in register`: a tensor that lives as long as the body of its `let`.

    Attributes:
        indices: index variables of the modes, derived ones allowed.
        scope: register, thread (one per thread), kernel or memory.
        layout: storage order of the modes, outermost first, as positions in `indices`.
        pattern_of: tensor with the same stored positions, `None` for a dense temporary.
        pattern_indices: index variables at the modes of the pattern tensor. Other modes are
            dense: outermost if before the last pattern index, innermost if after. Inside loops over outer
            levels of the tensor, `indices` are the remaining loops, and positions count from the beginning
            of the segment.
        listed: whether a list of the entries in use is kept; reading loops run over the list.
        marked: whether the entries in use are marked; the pattern of the result is made first, from the marks.
    """

    name: str
    indices: tuple[str, ...]
    dtype: str
    scope: str = "memory"
    layout: tuple[int, ...] = ()
    pattern_of: str | None = None
    pattern_indices: tuple[str, ...] = ()
    listed: bool = False
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Let(Statement):
    """`let temporaries in body`."""

    temporaries: tuple[Temporary, ...]
    body: "Statement | Assign"


@dataclass(frozen=True, slots=True)
class If(Statement):
    """`if condition: body`."""

    condition: Expr
    body: "Statement | Assign"


@dataclass(frozen=True, slots=True)
class Relation(Node):
    """Origin of derived index variables."""


@dataclass(frozen=True, slots=True)
class Split(Relation):
    """`index = outer * size + inner`; the last tile is cut into the sizes of `tail`, the rest is masked.

    `masked`: whole tiles have no separate body.
    """

    index: str
    outer: str
    inner: str
    size: int
    tail: tuple[int, ...] = ()
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Fuse(Relation):
    """`fused = first * extent(second) + second`."""

    first: str
    second: str
    fused: str


@dataclass(frozen=True, slots=True)
class Position(Relation):
    """`index = crd[position]`: the loop runs over the stored positions of the level of `index` in `tensor`."""

    index: str
    position: str
    tensor: str


@dataclass(frozen=True, slots=True)
class Prefetch(Relation):
    """Prefetch of the entry `distance` positions ahead, while `tensor` is gathered through positions."""

    tensor: str
    distance: int


@dataclass(frozen=True, slots=True)
class Notation(Node):
    """A body with the provenance of the index variables and the declarations of the tensors."""

    body: Statement | Assign
    relations: tuple[Relation, ...]
    declarations: tuple[Declaration, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    extents: tuple[tuple[str, int], ...] = ()
