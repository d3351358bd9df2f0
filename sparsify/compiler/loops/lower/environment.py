"""The environment of lowering at a place in the loop nest: coordinates, ranges, positions, lanes.

In: loops entered so far. Out: `coordinates["k"] = k0 + 8 + lane`, `positions[A[i,j]] = (2 levels, pA2)`.
"""

from dataclasses import dataclass, field, replace

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.loops.arithmetic import ONE, ZERO, lanes_of, plus, times
from sparsify.compiler.loops.nodes import Broadcast, Expr, Lanes, Op, Stmt, Type, Var
from sparsify.compiler.notation.nodes import Let, Temporary

Lowered = list[Stmt]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A coordinate or position: `start + lane * step`, or one value a lane in `vector`."""

    start: Expr
    step: Expr = ZERO
    vector: Expr | None = None

    @property
    def is_uniform(self) -> bool:
        """Whether all lanes have the same value."""
        return self.vector is None and self.step == ZERO

    def plus(self, other: "Coordinate") -> "Coordinate":
        """The lane-wise sum of two coordinates."""
        if self == Coordinate(ZERO) or other == Coordinate(ZERO):
            return other if self == Coordinate(ZERO) else self
        if self.vector is None and other.vector is None:
            return Coordinate(plus(self.start, other.start), plus(self.step, other.step))
        vector = self.vector or other.vector
        assert vector is not None
        lanes = lanes_of(vector)
        kind = Type("int64", lanes)
        return Coordinate(ZERO, ZERO, Op("add", (self.as_vector(lanes), other.as_vector(lanes)), kind))

    def times(self, factor: Expr) -> "Coordinate":
        """Every lane times a scalar."""
        if self.vector is None:
            return Coordinate(times(self.start, factor), times(self.step, factor))
        kind = Type("int64", lanes_of(self.vector))
        return Coordinate(ZERO, ZERO, Op("mul", (self.vector, Broadcast(factor, kind)), kind))

    def as_vector(self, lanes: int) -> Expr:
        """One int64 a lane."""
        if self.vector is not None:
            return self.vector
        kind = Type("int64", lanes)
        if self.step == ZERO:
            return Broadcast(self.start, kind)
        if self.step == ONE:
            return Lanes(self.start, kind)
        steps = Op("mul", (Lanes(ZERO, kind), Broadcast(self.step, kind)), kind)
        return Op("add", (Broadcast(self.start, kind), steps), kind)


@dataclass(frozen=True, slots=True)
class Range:
    """The iterations `begin <= x < end`; at most `bound` of them if the bound is constant.

    `exact`: exactly `bound` iterations, so unrolled and vector code needs no masks.
    `origin`: origin of the tile count, if the range is a thread's part of a longer range.
    """

    begin: Expr
    end: Expr
    bound: int | None = None
    exact: bool = False
    origin: Expr | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an access within its levels: `levels` are done, at `position`.

    After a level with repeated coordinates (`segment_end` set) the next level runs over the segment. `segment`
    is the start of the segment of the last compressed level. `part` is the range of positions of the next level
    visited by loops, `None` for all.
    """

    levels: int
    position: Coordinate
    segment_end: Expr | None = None
    segment: Expr | None = None
    part: Range | None = None


@dataclass(frozen=True, slots=True)
class LaneContext:
    """The current vector loop: `count` of the `lanes` are in use, `None` for all.

    Of the lanes in use, only lanes with a set bit in `bits` have an entry of `expanded`; the entries are consecutive in
    memory.
    """

    index: str
    lanes: int
    count: Expr | None = None
    bits: Expr | None = None
    expanded: Access | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """A temporary in registers: each element is a variable named by the constants of its indices.

    `is_reduced`: the lanes are combined with each other later. `vectors`: number of vectors along `vector_index`.
    """

    name: str
    indices: tuple[str, ...]
    vector_index: str | None
    type: Type
    is_reduced: bool = False
    vectors: int = 1


@dataclass(frozen=True, slots=True)
class Held:
    """A temporary of a `let` in registers, and the variables of its elements."""

    let: Let
    temporary: Temporary
    variables: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class Hub:
    """A row of `tensor` at `index` with sums shared by the threads: `size` stored positions at a time.

    `held` are the temporaries in registers of all enclosing `let`s, inside the row.
    """

    tensor: str
    index: str
    size: int
    held: dict[str, Held] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything known at one place of the loop nest; extended, never changed.

    Windows, by access and mode: `inside` are known to be in bounds; `masked` are in bounds in some lanes, and the
    others are `clamped` to the ends for loads of entries; for `cut` windows the first lanes are in bounds. `own` are
    the temporaries private to each thread of a parallel loop, made before the iterations. Loops over `filled` positions
    have an iteration.
    """

    coordinates: dict[str, Coordinate] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    bases: dict[str, Expr] = field(default_factory=dict)
    places: dict[Access, Place] = field(default_factory=dict)
    absent: frozenset[Access] = frozenset()
    registers: dict[str, Register] = field(default_factory=dict)
    rows: dict[Access, tuple[Expr, ...]] = field(default_factory=dict)
    lane: LaneContext | None = None
    inside: frozenset[tuple[Access, int]] = frozenset()
    masked: frozenset[tuple[Access, int]] = frozenset()
    clamped: frozenset[tuple[Access, int]] = frozenset()
    cut: frozenset[tuple[Access, int]] = frozenset()
    own: tuple[Let, ...] = ()
    in_parallel: bool = False
    hub: Hub | None = None
    filled: frozenset[str] = frozenset()

    def with_coordinate(self, index: str, value: Coordinate) -> "Environment":
        """With index variable `index` at `value`."""
        return replace(self, coordinates={**self.coordinates, index: value})

    def with_range(self, index: str, value: Range) -> "Environment":
        """With the iterations of `index` fixed."""
        return replace(self, ranges={**self.ranges, index: value})

    def with_base(self, index: str, value: Expr) -> "Environment":
        """With the current tile of `index` starting at `value`."""
        return replace(self, bases={**self.bases, index: value})

    def without(self, accesses: frozenset[Access]) -> "Environment":
        """With `accesses` known to be unstored."""
        return replace(self, absent=self.absent | accesses)


def scalar(expr: Expr) -> Coordinate:
    """A value shared by all lanes."""
    return Coordinate(expr)
