"""Rematerialization instead of storage: later statements read a temporary computed again.

In:  `S[i,j] = ..; m[i] max= S[i,j]; P[i,j] = exp(S[i,j] - m[i])` and `recompute S after m`.
Out: `S[i,j] = ..; m[i] max= S[i,j]; S_again[i,j] = ..; P[i,j] = exp(S_again[i,j] - m[i])`

Neither copy of `S` outlives its consumers: both shrink to some entries at a time.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.compiler.notation.nodes import Let, Notation, Sequence, Temporary
from sparsify.compiler.schedule.directives.directive import NAME, Directive
from sparsify.compiler.schedule.nests import Body, accesses, assigns, let_of, loop_names, replace_body
from sparsify.errors import ScheduleError

AGAIN: Final = "_again"


@dataclass(frozen=True, slots=True)
class Recompute(Directive):
    """`recompute S after m`: consumers after `m` read a copy `S_again`, rematerialized like `S`."""

    form: ClassVar[str] = "recompute S after m"
    pattern: ClassVar[str] = rf"recompute\s+(?P<temporary>{NAME})\s+after\s+(?P<after>{NAME})"

    temporary: str
    after: str

    def __str__(self) -> str:
        return f"recompute {self.temporary} after {self.after}"

    def describe(self) -> str:
        """The meaning in words."""
        return f"what comes after {self.after} computes {self.temporary} again"

    def apply(self, program: Notation) -> Notation:
        """`S = e; m max= S; P = f(S, m) -> S = e; m max= S; S_again = e; P = f(S_again, m)`.

        Raises:
            ScheduleError: no such statements in this order, no later consumer of the temporary, or operands of the
                temporary changed since.
        """
        let = let_of(program, self.temporary, self)
        statements = let.body.statements if isinstance(let.body, Sequence) else (let.body,)
        computed = [n for n, statement in enumerate(statements) if assigns(statement, self.temporary)]
        ends = [n for n, statement in enumerate(statements) if assigns(statement, self.after)]
        if len(computed) != 1 or len(ends) != 1 or computed[0] >= ends[0]:
            raise ScheduleError(
                f"`{self}`: {self.temporary} is computed in {len(computed)} statements, {self.after} "
                f"in {len(ends)} beside them",
                "a temporary and what is computed after it, by one statement each",
            )
        first, rest = statements[: ends[0] + 1], statements[ends[0] + 1 :]
        if not any(accesses(statement, self.temporary) for statement in rest):
            raise ScheduleError(
                f"`{self}`: nothing after {self.after} reads {self.temporary}", "another temporary"
            )
        producer = statements[computed[0]]
        read = {access.tensor for access in find(producer, Access)} - {self.temporary}
        changed = {
            a.target.tensor for s in statements[computed[0] + 1 : ends[0] + 1] for a in find(s, Assign)
        }
        if read & changed:
            raise ScheduleError(
                f"`{self}`: {', '.join(sorted(read & changed))} is not what it was", "another temporary"
            )
        names = _names(program, producer, self.temporary)
        copy = _renamed(producer, names)
        own = next(t for t in let.temporaries if t.name == self.temporary)
        only = {self.temporary: names[self.temporary]}
        body = Sequence((*first, copy, *(_renamed(statement, only) for statement in rest)))
        temporaries = (*let.temporaries, replace(own, name=names[self.temporary]))
        return replace(program, body=replace_body(program.body, let, Let(temporaries, body)))


def _names(program: Notation, producer: Body, name: str) -> dict[str, str]:
    """New names for a temporary and for the temporaries inside its statement."""
    taken = {t.name for let in find(program.body, Let) for t in let.temporaries} | loop_names(program)
    taken |= {declared.name for declared in program.declarations}
    names = {}
    for old in (name, *(t.name for let in find(producer, Let) for t in let.temporaries)):
        new = old + AGAIN
        while new in taken:
            new += "_"
        taken.add(new)
        names[old] = new
    return names


def _renamed(body: Body, names: dict[str, str]) -> Body:
    """`body` with renamed tensors and temporaries."""

    def visit(node: Node) -> Node:
        match node:
            case Access(tensor=tensor) if tensor in names:
                return replace(node, tensor=names[tensor])
            case Temporary(name=name) if name in names:
                node = replace(node, name=names[name])
        return map_children(node, visit)

    result = visit(body)
    assert isinstance(result, Body)
    return result
