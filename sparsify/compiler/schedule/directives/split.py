"""Tiles of a loop: `split k ko ki 64`.

In: `forall k: body` and `split k ko ki 64`. Out: `forall ko: forall ki: body` with `k = 64 ko + ki`.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sparsify.compiler.ir.node import find
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.nodes import Forall, Notation
from sparsify.compiler.schedule.directives.directive import NAME, Directive, require_new
from sparsify.compiler.schedule.nests import rewrite_loops
from sparsify.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Split(Directive):
    """`split k ko ki 64 tail 32 8`: `k = ko * 64 + ki`; the last tile runs in pieces of 32 and 8, the rest masked.

    `split k ko ki 64 masked`: all tiles run under masks, with one body for whole tiles and the last.
    """

    form: ClassVar[str] = "split k ko ki 64 [tail 32 8|masked]"
    pattern: ClassVar[str] = (
        rf"split\s+(?P<index>{NAME})\s+(?P<outer>{NAME})\s+(?P<inner>{NAME})\s+(?P<size>\d+)"
        r"(?:\s+tail(?P<tail>(?:\s+\d+)+)|\s+(?P<masked>masked))?"
    )

    index: str
    outer: str
    inner: str
    size: int
    tail: tuple[int, ...] = ()
    masked: bool = False

    def __str__(self) -> str:
        tail = f" tail {' '.join(map(str, self.tail))}" if self.tail else " masked" if self.masked else ""
        return f"split {self.index} {self.outer} {self.inner} {self.size}{tail}"

    def check(self, text: str) -> None:
        """Raises for tiles of one iteration, and for pieces of the last tile in another order than falling."""
        if self.size < 2:
            raise ScheduleError(f"`{text}`: a tile of {self.size}", "a size of 2 or more")
        if list(self.tail) != sorted({piece for piece in self.tail if 0 < piece < self.size}, reverse=True):
            raise ScheduleError(f"`{text}`: the tail {self.tail}", f"falling sizes below {self.size}")

    def describe(self) -> str:
        """The meaning in words."""
        pieces = f"in pieces of {', '.join(map(str, self.tail))}, the rest masked" if self.tail else "masked"
        which = "every" if self.masked else "the last"
        return f"{self.index} = {self.size} {self.outer} + {self.inner}; {which} tile {pieces}"

    def apply(self, program: Notation) -> Notation:
        """`forall k: body -> forall ko: forall ki: body`.

        Raises:
            ScheduleError: a taken name, or an earlier directive on the loop.
        """
        for temporary in (t for n in find(program.body, notation.Let) for t in n.temporaries):
            if self.index in temporary.indices and temporary.scope != "memory":
                raise ScheduleError(f"`{self}` comes after {temporary} took {self.index}", "split first")
        require_new(program, self, self.outer, self.inner)
        relation = notation.Split(self.index, self.outer, self.inner, self.size, self.tail, self.masked)

        def change(loop: Forall) -> Forall:
            if not isinstance(loop.kind, notation.Serial | notation.Parallel):
                raise ScheduleError(f"`{self}` comes after another directive on {loop.index}", "split first")
            return Forall(self.outer, Forall(self.inner, loop.body), loop.kind)

        body = rewrite_loops(program.body, self.index, change)
        if body == program.body:
            return program
        return replace(program, body=body, relations=(*program.relations, relation))
