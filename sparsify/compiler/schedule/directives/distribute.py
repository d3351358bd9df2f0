"""Products distributed over sums, so that the loops of a sum may run around all others.

In:  `forall i: forall j: let w: (forall k: w += G[k,i] * X[k,j]); S[i,j] = A[i,j] * w` and `distribute w`.
Out: `forall i: forall j: forall k: S[i,j] += A[i,j] * (G[k,i] * X[k,j])`
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr
from sparsify.compiler.notation.nodes import Notation, Sequence
from sparsify.compiler.schedule.directives.directive import NAME, Directive
from sparsify.compiler.schedule.nests import accesses, close_chain, let_of, loop_chain, replace_body
from sparsify.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Distribute(Directive):
    """`distribute w`: distributes a product over the sum `w`: the terms are multiplied, then summed in the result."""

    form: ClassVar[str] = "distribute w"
    pattern: ClassVar[str] = rf"distribute\s+(?P<temporary>{NAME})"

    temporary: str

    def __str__(self) -> str:
        return f"distribute {self.temporary}"

    def describe(self) -> str:
        """The meaning in words."""
        return f"what {self.temporary} collects is multiplied entry by entry and added to the result"

    def apply(self, program: Notation) -> Notation:
        """`let w: (forall k: w += e); Y = c * w -> forall k: Y += c * e`.

        Raises:
            ScheduleError: the temporary is not a scalar sum of one statement, or its reader is not a product with it.
        """
        let = let_of(program, self.temporary, self)
        statements = let.body.statements if isinstance(let.body, Sequence) else (let.body,)
        (temporary, *others), (first, *rest) = let.temporaries, statements
        chain, summed = loop_chain(first)
        reader = rest[0] if len(rest) == 1 else None
        if (
            others
            or temporary.indices
            or not isinstance(summed, Assign)
            or not isinstance(reader, Assign)
            or summed.monoid != "sum"
            or reader.monoid is not None
        ):
            raise ScheduleError(
                f"`{self}`: {temporary} is not a number that one statement sums and one reads",
                "another place",
            )
        dtypes = {declared.name: declared.dtype for declared in program.declarations}
        value = distributed(reader.value, temporary.name, summed.value)
        if value is None or dtypes.get(reader.target.tensor) != temporary.dtype:
            raise ScheduleError(
                f"`{self}`: {reader} is no product with {temporary} of the same dtype",
                "leave it a temporary",
            )
        nest = close_chain(chain, Assign(reader.target, "sum", value))
        return replace(program, body=replace_body(program.body, let, nest))


def distributed(value: Expr, name: str, term: Expr) -> Expr | None:
    """`c * w -> c * e` and `where(c, w, 0) -> where(c, e, 0)`, `None` for values not proportional to `w`."""

    def has(part: Expr) -> bool:
        return bool(accesses(part, name))

    match value:
        case Access(tensor=tensor) if tensor == name:
            return term
        case Call("mul", (left, right)) if has(left) != has(right):
            parts = [distributed(part, name, term) if has(part) else part for part in (left, right)]
        case Call("where", (condition, chosen, Const(other))) if has(chosen) and not has(condition):
            parts = [condition, distributed(chosen, name, term) if other == 0 else None, Const(other)]
        case _:
            return None
    found = [part for part in parts if part is not None]
    return Call(value.function, tuple(found)) if len(found) == len(parts) else None
