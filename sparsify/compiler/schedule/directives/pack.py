"""Copies of operands in the order in which they are read: `pack P = B[k, j] at i in thread`.

In:  `forall i: forall k: Y[i,k] += A[i,j] * B[j,k]` and `pack P = B[j, k] at i in thread`
Out: `forall i: let P in thread: (forall j: forall k: P[j,k] = B[j,k]); forall k: Y[i,k] += A[i,j] * P[j,k]`
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sparsify.compiler.einsum.nodes import Access, Assign, Stored
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.nodes import Forall, Let, Notation, Sequence, Temporary
from sparsify.compiler.schedule.directives.directive import NAME, NAMES, SCOPES, Directive
from sparsify.compiler.schedule.directives.precompute import access_to, check_scope, computing_dtype
from sparsify.compiler.schedule.nests import Body, accesses, assigns, replace_accesses, rewrite_loops
from sparsify.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Pack(Directive):
    """`pack P = B[j, ki] at ko in thread`: inside loop `ko`, `B` is first copied to `P`, stored in the given order.

    `pack P = B[j, ki] at ko in thread for w`: only assignments to `w` read the copy.
    """

    form: ClassVar[str] = "pack P = B[j, ki] at ko in thread [for w]"
    pattern: ClassVar[str] = (
        rf"pack\s+(?P<temporary>{NAME})\s*=\s*(?P<tensor>{NAME})\s*\[\s*(?P<indices>{NAMES})\s*\]"
        rf"\s+at\s+(?P<at>{NAME})\s+in\s+(?P<scope>{NAME})(?:\s+for\s+(?P<reader>{NAME}))?"
    )

    temporary: str
    tensor: str
    indices: tuple[str, ...]
    at: str
    scope: str
    reader: str = ""

    def __str__(self) -> str:
        at = self.at or "root"
        reader = f" for {self.reader}" if self.reader else ""
        indices = ", ".join(self.indices)
        return f"pack {self.temporary} = {self.tensor}[{indices}] at {at} in {self.scope}{reader}"

    def check(self, text: str) -> None:
        """Raises for an unknown scope."""
        check_scope(self.scope, text)

    def describe(self) -> str:
        """The meaning in words."""
        place = f"inside {self.at}" if self.at else "first"
        stored = f"stored by {', '.join(self.indices)}{f' for {self.reader}' if self.reader else ''}"
        return f"{place}, {self.tensor} is copied to {self.temporary}, {stored}, {SCOPES[self.scope]}"

    def apply(self, program: Notation) -> Notation:
        """`forall o: C(B) -> forall o: let P: (forall ..: P[..] = B[..]); C(P)`, for all readers of B or one."""

        def reads(body: Body) -> list[Access]:
            if not self.reader:
                return accesses(body, self.tensor)
            readers = [assign for assign in find(body, Assign) if assign.target.tensor == self.reader]
            return [access for assign in readers for access in accesses(assign, self.tensor)]

        def inside(body: Body) -> Let:
            found = reads(body)
            if not found or any(access != found[0] for access in found):
                raise ScheduleError(
                    f"`{self}`: {self.tensor} is read in {len(found)} ways there", "exactly one"
                )
            if assigns(body, self.tensor):
                raise ScheduleError(f"`{self}`: {self.tensor} is computed there", "another place")
            if any(n.access.tensor == self.tensor for n in find(body, Stored)):
                raise ScheduleError(
                    f"`{self}`: stored({found[0]}) asks what is stored, which a copy does not know",
                    "an operand whose values alone are read",
                )
            temporary = Temporary(
                self.temporary, self.indices, computing_dtype(program, self.tensor), self.scope
            )
            copied: Body = Assign(access_to(temporary), None, found[0])
            for name in reversed(self.indices):
                copied = Forall(name, copied)
            packed = replace_accesses(body, self.tensor, access_to(temporary), self.reader)
            return Let((temporary,), Sequence((copied, packed)))

        if not self.at:
            return replace(program, body=inside(program.body))

        def change(loop: Forall) -> Forall:
            return replace(loop, body=inside(loop.body)) if reads(loop.body) else loop

        return replace(program, body=rewrite_loops(program.body, self.at, change))
