"""One loop in place of two: `fuse i j f`, `join n in Y` and `merge j`.

In:  `(forall j: s += A[i,j] * x[j]); (forall j: m max= x[j])` and `merge j`
Out: `forall j: (s += A[i,j] * x[j]; m max= x[j])`
"""

from dataclasses import dataclass, replace
from typing import ClassVar, TypeGuard

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, Notation, Sequence, Serial, Statement
from sparsify.compiler.schedule.directives.directive import NAME, Directive, refuse, require_new
from sparsify.compiler.schedule.nests import Body, assigns, rewrite_loops, sequence
from sparsify.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Fuse(Directive):
    """`fuse h i hi`: one loop `hi` over all pairs of `h` and `i`."""

    form: ClassVar[str] = "fuse i j f"
    pattern: ClassVar[str] = rf"fuse\s+(?P<first>{NAME})\s+(?P<second>{NAME})\s+(?P<fused>{NAME})"

    first: str
    second: str
    fused: str

    def __str__(self) -> str:
        return f"fuse {self.first} {self.second} {self.fused}"

    def describe(self) -> str:
        """The meaning in words."""
        return f"{self.fused} runs over all pairs of {self.first} and {self.second}"

    def apply(self, program: Notation) -> Notation:
        """`forall i: forall j: body -> forall f: body`."""

        def change(loop: Forall) -> Statement:
            if not isinstance(loop.body, Forall) or loop.body.index != self.second:
                raise ScheduleError(
                    f"`{self}`: {self.second} is not right inside {self.first}", "order them first"
                )
            if not isinstance(loop.kind, notation.Serial) or not isinstance(loop.body.kind, notation.Serial):
                raise ScheduleError(f"`{self}` comes after another directive on its loops", "fuse first")
            return Forall(self.fused, loop.body.body)

        derived = {r.inner for r in program.relations if isinstance(r, notation.Split)}
        derived |= {r.outer for r in program.relations if isinstance(r, notation.Split)}
        derived |= {r.position for r in program.relations if isinstance(r, notation.Position)}
        if found := derived & {self.first, self.second}:
            raise ScheduleError(f"`{self}`: {min(found)} is a part of another loop", "fuse first, then split")
        require_new(program, self, self.fused)
        relation = notation.Fuse(self.first, self.second, self.fused)
        body = rewrite_loops(program.body, self.first, change)
        if body == program.body:
            return program
        return replace(program, body=body, relations=(*program.relations, relation))


@dataclass(frozen=True, slots=True)
class Join(Directive):
    """`join n in Y`: in the nest of `Y` the loops over tiles of `n` and inside a tile become one loop over `n`."""

    form: ClassVar[str] = "join n in Y"
    pattern: ClassVar[str] = rf"join\s+(?P<index>{NAME})\s+in\s+(?P<nest>{NAME})"

    index: str
    nest: str

    def __str__(self) -> str:
        return f"join {self.index} in {self.nest}"

    def describe(self) -> str:
        """The meaning in words."""
        return f"{self.nest} is computed in one loop over {self.index}, whose tiles are counted in it"

    def apply(self, program: Notation) -> Notation:
        """`forall ko: forall ki: Y[k] = ... -> forall k: Y[k] = ...`; operands stored sparse by tiles need both loops.

        If the tiles are split again, their outer loop stays around: `k` then runs over the remaining part.
        """
        splits = {r.index: r for r in program.relations if isinstance(r, notation.Split)}
        relation = splits.get(self.index)
        if relation is None:
            refuse(self, f"{self.index} is not split", program)
        outer, inner = relation.outer, relation.inner
        if outer in splits:
            outer = splits[outer].inner
        temporaries = [t for let in find(program.body, notation.Let) for t in let.temporaries]
        # Temporaries with a row along the index for each stored entry: dense along the index.
        rows = {t.name for t in temporaries if t.pattern_of and self.index not in t.pattern_indices}

        def change(loop: Forall) -> Statement:
            if not assigns(loop, self.nest):
                return loop
            if not isinstance(loop.body, Forall) or loop.body.index != inner:
                raise ScheduleError(f"`{self}`: {inner} is not right inside {outer}", "order them first")
            if not isinstance(loop.kind, notation.Serial) or not isinstance(loop.body.kind, notation.Serial):
                raise ScheduleError(f"`{self}` comes after another directive on its loops", "join first")
            sparse = {declared.name for declared in program.declarations if not declared.format.is_dense}
            read = [n for n in find(loop, Access) if n.tensor in sparse and n.tensor not in rows]
            if found := [access for access in read if self.index in index_names(access)]:
                raise ScheduleError(f"`{self}`: {found[0]} is stored sparse", "keep the loops over tiles")
            return Forall(self.index, loop.body.body)

        return replace(program, body=rewrite_loops(program.body, outer, change))


@dataclass(frozen=True, slots=True)
class Merge(Directive):
    """`merge j`: fuses neighbouring loops over `j` into one loop with the statements of all."""

    form: ClassVar[str] = "merge j"
    pattern: ClassVar[str] = rf"merge\s+(?P<index>{NAME})"

    index: str

    def __str__(self) -> str:
        return f"merge {self.index}"

    def describe(self) -> str:
        """The meaning in words."""
        return f"neighbouring loops over {self.index} are one"

    def apply(self, program: Notation) -> Notation:
        """`(forall j: a); (forall j: b) -> forall j: (a; b)` if neither accesses a tensor written by the other."""

        def visit(node: Node) -> Node:
            node = map_children(node, visit)
            return _merged(node, self.index) if isinstance(node, Sequence) else node

        body = visit(program.body)
        assert isinstance(body, Statement)
        return replace(program, body=body)


def _merged(statements: Sequence, index: str) -> Body:
    """The statements with runs of loops over the index fused."""
    found: list[Body] = []
    for statement in statements.statements:
        before = found[-1] if found else None
        if _is_loop(before, index) and _is_loop(statement, index) and not _meet(before, statement):
            found[-1] = Forall(index, sequence([before.body, statement.body]))
        else:
            found.append(statement)
    return statements if len(found) == len(statements.statements) else sequence(found)


def _is_loop(statement: Body | None, index: str) -> TypeGuard[Forall]:
    """Whether a statement is a serial loop over the index."""
    return isinstance(statement, Forall) and statement.index == index and isinstance(statement.kind, Serial)


def _meet(first: Node, second: Node) -> bool:
    """Whether two statements depend on each other: one accesses a tensor written by the other."""
    return bool(_written(first) & _touched(second) or _written(second) & _touched(first))


def _written(node: Node) -> set[str]:
    return {assign.target.tensor for assign in find(node, Assign)}


def _touched(node: Node) -> set[str]:
    return {access.tensor for access in find(node, Access)}
