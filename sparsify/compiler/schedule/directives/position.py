"""Loops over stored positions: `pos j p A`.

In: `forall j: Y[i] += A[i,j] * x[j]` and `pos j p A`. Out: `forall p in positions(A): Y[i] += A[i,j] * x[j]`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sparsify.compiler.ir.node import find
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.nodes import Forall, Notation
from sparsify.compiler.schedule.directives.directive import NAME, Directive, require_new
from sparsify.compiler.schedule.nests import accesses, rewrite_loops


@dataclass(frozen=True, slots=True)
class Pos(Directive):
    """`pos j p A`: the loop over `j` becomes a loop `p` over the stored positions of `A`."""

    form: ClassVar[str] = "pos j p A"
    pattern: ClassVar[str] = rf"pos\s+(?P<index>{NAME})\s+(?P<position>{NAME})\s+(?P<tensor>{NAME})"

    index: str
    position: str
    tensor: str

    def __str__(self) -> str:
        return f"pos {self.index} {self.position} {self.tensor}"

    def describe(self) -> str:
        """The meaning in words."""
        return (
            f"{self.position} runs over the stored positions of {self.tensor}, {self.index} is read from them"
        )

    def apply(self, program: Notation) -> Notation:
        """`forall j: body -> forall p in positions(A): body` if the body reads `A`, or a tensor on its pattern."""
        lets = find(program.body, notation.Let)
        kept = [t.name for let in lets for t in let.temporaries if t.pattern_of == self.tensor]

        def change(loop: Forall) -> Forall:
            is_read = any(accesses(loop.body, name) for name in (self.tensor, *kept))
            return replace(loop, index=self.position) if is_read else loop

        require_new(program, self, self.position)
        relation = notation.Position(self.index, self.position, self.tensor)
        body = rewrite_loops(program.body, self.index, change)
        if body == program.body:
            return program
        return replace(program, body=body, relations=(*program.relations, relation))
