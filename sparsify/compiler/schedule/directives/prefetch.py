"""Requests of gathered elements ahead of time: `prefetch T 16`.

In: a program that gathers rows of `T`. Out: the program with the distance among its relations.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule.directives.directive import NAME, Directive


@dataclass(frozen=True, slots=True)
class Prefetch(Directive):
    """`prefetch T 16`: prefetches the elements of `T` gathered 16 stored positions later."""

    form: ClassVar[str] = "prefetch T 16"
    pattern: ClassVar[str] = rf"prefetch\s+(?P<tensor>{NAME})\s+(?P<distance>\d+)"

    tensor: str
    distance: int

    def __str__(self) -> str:
        return f"prefetch {self.tensor} {self.distance}"

    def describe(self) -> str:
        """The meaning in words."""
        return f"what is gathered from {self.tensor} {self.distance} stored positions later is asked for now"

    def apply(self, program: Notation) -> Notation:
        """The program with the prefetch distance of the tensor."""
        return replace(program, relations=(*program.relations, notation.Prefetch(self.tensor, self.distance)))
