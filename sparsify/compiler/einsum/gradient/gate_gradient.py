"""Gradients of rows on the pattern of a gate as statements with one loop nest over entries each.

In:  `d_V[e,o,h] = sum(t, g[t,o] * (G[t,e] * relu(w[t,e,h])))`, w on the pattern of G.
Out: `r[t,e,h] = where(stored(G[t,e]), G[t,e] * relu(w[t,e,h]), 0)` and `d_V[e,o1,h] = sum(t, g[t,o1] * r[t,e,h])`.

Values read many times are computed once for an entry; values read by entries only are computed at stored coordinates
only.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.infer.patterns import pattern_access
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Program, Reduce, Stored
from sparsify.compiler.einsum.products import factors, product
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_indices
from sparsify.compiler.einsum.rewrite.split_row_sums import rows_apart
from sparsify.compiler.ir.node import Node, find, map_children

ROWS: Final = "r"


def by_entries(program: Program, gate: Access, extents: Mapping[str, int]) -> Program:
    """`program` in the form above, as far as possible.

    Args:
        program: adjoint.
        gate: access to the entries, `G[t,e]` for tokens and experts.
        extents: known extents by name.
    """
    program = rows_apart(_confined(program, gate), extents)
    statements = _Statements(program, gate)
    for statement in program.statements:
        statements.add(statement)
    return infer_format(replace(program, statements=tuple(statements.made)))


def _confined(program: Program, gate: Access) -> Program:
    """`program` with dense temporaries that only entries read confined to the stored entries."""
    statements = list(program.statements)
    for place, statement in enumerate(program.statements):
        target = statement.target
        declared = program.declaration(target.tensor)
        is_inside = declared.format.is_dense and declared.name not in program.outputs
        if not is_inside or not set(gate.indices) <= set(target.indices) or statement.monoid is not None:
            continue
        readers = [
            s for s in program.statements if any(a.tensor == declared.name for a in find(s.value, Access))
        ]
        if all(_is_zero_outside(_summed(reader.value), program, gate, declared.name) for reader in readers):
            value = Call("where", (Stored(gate), statement.value, Const(0)))
            statements[place] = replace(statement, value=value)
    if statements == list(program.statements):
        return program
    given = {*program.inputs, *program.outputs}
    declarations = tuple(d for d in program.declarations if d.name in given)
    return infer_format(replace(program, statements=tuple(statements), declarations=declarations))


def _summed(value: Expr) -> Expr:
    """The operand of a sum; other values unchanged."""
    return value.body if isinstance(value, Reduce) and value.monoid == "sum" else value


def _is_zero_outside(value: Expr, program: Program, gate: Access, but: str) -> bool:
    """Whether a value is 0 at unstored coordinates of the gate, for any values of the tensor `but`."""

    def visit(expr: Expr) -> bool:
        match expr:
            case Access(tensor, _) if tensor == but:
                return False
            case Access():
                declared = program.declaration(expr.tensor)
                is_stored = not declared.format.is_dense and declared.fill == 0
                return is_stored and pattern_access(program, expr) == gate
            case Call("mul", (left, right)):
                return visit(left) or visit(right)
            case Call("add" | "sub", (left, right)):
                return visit(left) and visit(right)
            case Call("where", (Stored(access), yes, Const(0))):
                return access == gate or visit(yes)
            case Call("where", (_, yes, no)):
                return visit(yes) and visit(no)
            case Stored(access):
                return access == gate
            case Const(number):
                return number == 0
        return False

    return visit(value)


class _Statements:
    """The statements of a program, each with few loop nests.

    Attributes:
        made: statements so far.
    """

    def __init__(self, program: Program, gate: Access) -> None:
        self.program, self.gate = program, gate
        self.token, self.expert = free_indices(gate)
        self.made: list[Assign] = []
        self.names = {d.name for d in program.declarations} | set(all_indices(program.statements))
        given = {*program.inputs, *program.outputs}
        self.rows = {d.name for d in program.declarations if d.name not in given and not d.format.is_dense}

    def add(self, statement: Assign) -> None:
        """Adds a statement, after new statements for its operands."""
        names = set(free_indices(statement.target))
        if statement.target.tensor in self.rows:
            statement = self._of_row(statement)
        if statement.target.tensor in self.program.outputs:
            if self.expert in names and self.token not in names:
                statement = self._of_matrix(statement)
            elif {self.expert, self.token} == names:
                statement = self._of_gate(statement)
            elif self.expert not in names:
                statement = replace(statement, value=_one_sum(statement.value))
        self.made.append(statement)

    def _of_row(self, statement: Assign) -> Assign:
        """`H[t,e,h] = stored(G[t,e]) * f(..) -> H[t,e,h] = where(stored(G[t,e]), stored(G[t,e]) * f(..), 0)`."""
        match statement.value:
            case Call("where", (Stored(access), _, Const(0))) if access == self.gate:
                return statement
            case Reduce():
                pass
            case value if not _is_zero_outside(value, self.program, self.gate, ""):
                return statement
        return replace(statement, value=Call("where", (Stored(self.gate), statement.value, Const(0))))

    def _of_matrix(self, statement: Assign) -> Assign:
        """`d_V[e,o,h] = sum(t, g[t,o] * f(..)) -> d_V[e,o,h] = sum(t, g[t,o] * r[t,e,h])`, with fresh indices."""
        own = [name for name in free_indices(statement.target) if name != self.expert]
        match statement.value:
            case Reduce("sum", (token,), body) if token == self.token and len(own) > 1:
                pass
            case _:
                return statement
        found = factors(body)
        entries = [factor for factor in found if self.expert in free_indices(factor)]
        others = [factor for factor in found if factor not in entries]
        if not set(own) & set(free_indices(product(entries))):
            entries += [factor for factor in others if own[-1] in free_indices(factor)]
            others = [factor for factor in found if factor not in entries]
        if len(entries) > 1 or not isinstance(entries[0], Access) or entries[0].tensor not in self.rows:
            entries = [self._row(product(entries), own)]
        value = Reduce("sum", (token,), product([*others, *entries]))
        renamed = {name: fresh(f"{name}1", self.names) for name in own[:-1]}
        self.names |= set(renamed.values())
        return rename_indices(replace(statement, value=value), renamed)

    def _of_gate(self, statement: Assign) -> Assign:
        """`sum(o, h, g[t,o] * V[e,o,h] * H[t,e,h]) -> sum(h, r[t,e,h] * H[t,e,h])`, r the sum over o."""

        def visit(node: Node) -> Node:
            if not isinstance(node, Reduce) or len(node.indices) != 2:
                return map_children(node, visit)
            found = factors(node.body)
            for inner, kept in (node.indices, node.indices[::-1]):
                within = [factor for factor in found if inner in free_indices(factor)]
                rest = [factor for factor in found if factor not in within]
                if rest and all(kept in free_indices(f) for f in rest) and len(within) == 2:
                    row = self._row(Reduce("sum", (inner,), product(within)), [kept])
                    return Reduce("sum", (kept,), product([row, *rest]))
            return node

        return replace(statement, value=cast(Expr, visit(statement.value)))

    def _row(self, value: Expr, order: list[str]) -> Access:
        """A tensor with a row for each entry."""
        free = free_indices(value)
        indices = (*self.gate.indices, *(Index(name) for name in order if name in free))
        name = fresh(ROWS, self.names)
        self.names.add(name)
        target = Access(name, indices)
        self.made.append(Assign(target, None, Call("where", (Stored(self.gate), value, Const(0)))))
        return target


def _one_sum(value: Expr) -> Expr:
    """`sum(e, h, a) + sum(e, h, b) -> sum(e, h, a + b)`."""
    match value:
        case Call("add", (left, right)):
            match _one_sum(left), _one_sum(right):
                case Reduce("sum", first, a), Reduce("sum", second, b) if set(first) == set(second):
                    return Reduce("sum", first, Call("add", (a, b)))
    return value
