"""Level functions on variables of a kernel: numbers that record operations as loop IR.

In: `parent * at.extent + coordinate` with `parent` at `i`, `coordinate` at `k0 + lane`. Out: `i * k_extent + k0`, one
step a lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ZERO, integer, minus, quotient, remainder
from sparsify.compiler.loops.lower.environment import Coordinate, LaneContext, scalar
from sparsify.compiler.loops.lower.program_facts import ProgramFacts
from sparsify.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Number:
    """A coordinate or position in the arithmetic of a level's functions."""

    value: Coordinate

    def __add__(self, other: Number | int) -> Number:
        return Number(self.value.plus(_coordinate(other)))

    def __sub__(self, other: Number | int) -> Number:
        taken = _coordinate(other)
        if self.value.is_uniform and taken.is_uniform:
            return Number(scalar(minus(self.value.start, taken.start)))
        return Number(self.value.plus(taken.times(integer(-1))))

    def __mul__(self, other: Number | int) -> Number:
        factor = _coordinate(other)
        if factor.is_uniform:
            return Number(self.value.times(factor.start))
        return Number(factor.times(_uniform(self)))

    def __floordiv__(self, other: Number | int) -> Number:
        return Number(scalar(quotient(_uniform(self), _coordinate(other).start)))

    def __mod__(self, other: Number | int) -> Number:
        return Number(scalar(remainder(_uniform(self), _coordinate(other).start)))

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: int) -> Number:
        return Number(_coordinate(other)) - self


def _coordinate(number: Number | int) -> Coordinate:
    return scalar(integer(number)) if isinstance(number, int) else number.value


def _uniform(number: Number) -> loops.Expr:
    """The value shared by all lanes.

    Raises:
        ScheduleError: the lanes differ.
    """
    if not number.value.is_uniform:
        raise ScheduleError(
            "the lanes of a vector loop have coordinates that a level divides", "vector an inner loop"
        )
    return number.value.start


@dataclass(frozen=True, slots=True)
class LevelNumbers:
    """The arrays and extents of a level in a kernel.

    Attributes:
        number: number of the level in the tensor.
        bound: number of coordinates.
        lane: the surrounding vector loop.
    """

    facts: ProgramFacts
    access: Access
    number: int
    bound: loops.Expr
    lane: LaneContext | None = None

    @property
    def extent(self) -> Number:
        """The number of coordinates."""
        return Number(scalar(self.bound))

    @property
    def width(self) -> Number:
        """The number of positions of each parent, a size of the kernel."""
        return Number(scalar(loops.Var(f"{self.access.tensor}{self.number + 1}_width", loops.INT)))

    def pos(self, index: Number | int) -> Number:
        """An entry of `pos`."""
        return self._load("pos", index)

    def crd(self, index: Number | int) -> Number:
        """An entry of `crd`, or one per lane."""
        return self._load("crd", index)

    def _load(self, role: str, index: Number | int) -> Number:
        at = _coordinate(index)
        buffer = f"{self.access.tensor}{self.number + 1}_{role}"
        if at.is_uniform:
            return Number(scalar(_wide(loops.Load(buffer, at.start, self._type(buffer, 1)))))
        if self.lane is None or at.vector is not None or at.step != integer(1):
            raise ScheduleError(
                f"the lanes of a vector loop reach different rows of {self.access}", "vector an inner loop"
            )
        kind = self._type(buffer, self.lane.lanes)
        return Number(Coordinate(ZERO, ZERO, _wide(loops.Load(buffer, at.start, kind, self.lane.count))))

    def _type(self, buffer: str, lanes: int) -> loops.Type:
        return loops.Type(self.facts.index_dtype(buffer), lanes)


def _wide(value: loops.Load) -> loops.Expr:
    """An index as int64."""
    kind = value.type
    return value if kind.dtype == "int64" else loops.Convert(value, loops.Type("int64", kind.lanes))
