"""Loops as vector lanes, unrolled, or transposed in registers: `vector k`, `unroll k` and `transpose i k in w`.

In: `forall k: body` and `vector k`. Out: `vector forall k: body`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule.directives.directive import IN_NEST, NAME, Directive, in_nest, of_nest, refuse
from sparsify.compiler.schedule.nests import with_kind


@dataclass(frozen=True, slots=True)
class Vector(Directive):
    """`vector k [in w]`: the iterations of `k` (in the nest of `w`) run in vector lanes."""

    form: ClassVar[str] = "vector k [in w]"
    pattern: ClassVar[str] = rf"vector\s+(?P<index>{NAME}){IN_NEST}"

    index: str
    nest: str = ""

    def __str__(self) -> str:
        return f"vector {self.index}{in_nest(self.nest)}"

    def describe(self) -> str:
        """The meaning in words."""
        return f"the iterations of {self.index}{of_nest(self.nest)} are the lanes of vector registers"

    def apply(self, program: Notation) -> Notation:
        """`forall k: body -> vector forall k: body`."""
        return with_kind(program, self.index, notation.Vector(), self.nest)


@dataclass(frozen=True, slots=True)
class Unroll(Directive):
    """`unroll i [in w]`: the iterations of `i` (in the nest of `w`) are unrolled."""

    form: ClassVar[str] = "unroll k [in w]"
    pattern: ClassVar[str] = rf"unroll\s+(?P<index>{NAME}){IN_NEST}"

    index: str
    nest: str = ""

    def __str__(self) -> str:
        return f"unroll {self.index}{in_nest(self.nest)}"

    def describe(self) -> str:
        """The meaning in words."""
        return f"the iterations of {self.index}{of_nest(self.nest)} are written out"

    def apply(self, program: Notation) -> Notation:
        """`forall k: body -> unrolled forall k: body`."""
        return with_kind(program, self.index, notation.Unrolled(), self.nest)


@dataclass(frozen=True, slots=True)
class Transpose(Directive):
    """`transpose i k in w`: the square tiles of `i` and `k` read in the nest of `w` are transposed in registers."""

    form: ClassVar[str] = "transpose i k in w"
    pattern: ClassVar[str] = rf"transpose\s+(?P<rows>{NAME})\s+(?P<lanes>{NAME})\s+in\s+(?P<nest>{NAME})"

    rows: str
    lanes: str
    nest: str

    def __str__(self) -> str:
        return f"transpose {self.rows} {self.lanes} in {self.nest}"

    def describe(self) -> str:
        """The meaning in words."""
        return (
            f"square tiles of {self.rows} and {self.lanes} that {self.nest} reads are transposed in registers"
        )

    def apply(self, program: Notation) -> Notation:
        """`forall i: forall k: w = e -> transposed forall i: vector forall k: w = e`.

        Raises:
            ScheduleError: a loop is missing around the assignment.
        """
        rows = with_kind(program, self.rows, notation.Transposed(), self.nest)
        tiles = with_kind(rows, self.lanes, notation.Vector(), self.nest)
        if rows == program or tiles == rows:
            missing = self.rows if rows == program else self.lanes
            refuse(self, f"no loop over {missing} around {self.nest}", program)
        return tiles
