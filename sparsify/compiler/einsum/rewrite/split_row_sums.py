"""Sums inside of rows on the pattern of an operand, as separate statements; parts of one tensor are merged.

In:  `H[t,e,h] = G[t,e] * silu(sum(d, X[t,d] * U[e,0,h,d])) * sum(d, X[t,d] * U[e,1,h,d])`, H on the pattern of G.
Out: `w[t,e,p,h] = where(stored(G[t,e]), sum(d, X[t,d] * U[e,p,h,d]), 0)` and
     `H[t,e,h] = G[t,e] * silu(w[t,e,0,h]) * w[t,e,1,h]`.

Gradients of this form are sums over the entries of the operand only, and the gradient of all parts of U is one product.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.infer.patterns import pattern_access
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Index, Program, Reduce, Stored
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_indices
from sparsify.compiler.einsum.rename import replace as substitute
from sparsify.compiler.ir.node import Node, find, holds, map_children


def rows_apart(program: Program, extents: Mapping[str, int]) -> Program:
    """`program` with separate sums of its sparse temporaries; the same object without any.

    Args:
        extents: known extents by name: parts of a tensor are merged if all of them are read.
    """
    apart = _Apart(program, extents)
    statements: list[Assign] = []
    for statement in program.statements:
        declared = program.declaration(statement.target.tensor)
        is_row = not declared.format.is_dense and declared.name not in program.outputs
        if not is_row or statement.monoid is not None or _is_apart(statement.value):
            statements.append(statement)
            continue
        value = apart.without_sums(statement)
        statements += [*apart.taken_out(), replace(statement, value=value)]
    if len(statements) == len(program.statements):
        return program
    return infer_format(replace(program, statements=tuple(statements)))


def _is_apart(value: Expr) -> bool:
    """Whether the value at stored entries is just a sum."""
    match value:
        case Call("where", (Stored(), Reduce(_, _, body), Const(0))):
            return not holds(body, Reduce)
    return False


@dataclass
class _Rows:
    """The sums of one tensor: `body` summed over `summed`, with parts indexed by `part` if any."""

    name: str
    summed: str
    body: Expr
    part: str


@dataclass
class _Apart:
    """The sums of one program.

    Attributes:
        found: sums of the current statement.
        free: index variables of its target.
        whole: modes of which all parts are read.
        gate: pattern of the statement.
    """

    program: Program
    extents: Mapping[str, int]
    found: list[_Rows] = field(default_factory=list)
    free: tuple[str, ...] = ()
    whole: frozenset[str] = frozenset()
    gate: Access | None = None

    def __post_init__(self) -> None:
        self.names = {d.name for d in self.program.declarations} | set(all_indices(self.program.statements))

    def without_sums(self, statement: Assign) -> Expr:
        """The value of a statement with sums replaced by accesses."""
        self.found, self.free = [], free_indices(statement.target)
        self.gate = pattern_access(self.program, statement.target)

        def visit(node: Node) -> Node:
            if isinstance(node, Reduce):
                return self._read(node) or node
            return map_children(node, visit)

        parts = self._parts(statement.value)
        self.whole = frozenset(part for part in parts if self._has_all_parts(statement.value, part))
        return cast(Expr, visit(statement.value))

    def taken_out(self) -> list[Assign]:
        """The statements of the separate sums."""
        assert self.gate is not None, "a statement was looked at"
        return [
            Assign(
                _access(rows, self.free, Index(rows.part)),
                None,
                Call("where", (Stored(self.gate), Reduce("sum", (rows.summed,), rows.body), Const(0))),
            )
            for rows in self.found
        ]

    def _read(self, node: Reduce) -> Access | None:
        """The access that replaces a sum; `None` unless a plain sum of dense operands."""
        if node.monoid != "sum" or len(node.indices) != 1 or holds(node.body, Reduce):
            return None
        if any(not self.program.declaration(a.tensor).format.is_dense for a in find(node.body, Access)):
            return None
        if set(free_indices(node.body)) - {*self.free, *node.indices}:
            return None
        body, part, place = self._general(node.body)
        for rows in self.found:
            same = rename_indices(body, {node.indices[0]: rows.summed})
            if same == rows.body and rows.part == part:
                return _access(rows, self.free, place)
        name = fresh("w", self.names)
        self.names.add(name)
        self.found.append(_Rows(name, node.indices[0], body, part))
        return _access(self.found[-1], self.free, place)

    def _general(self, body: Expr) -> tuple[Expr, str, Expr]:
        """A product with its part generalized to a variable, the variable, and the part."""
        for access in find(body, Access):
            for part in self._parts(access):
                if part in self.whole:
                    place = self.program.declaration(access.tensor).extents.index(part)
                    indices = (*access.indices[:place], Index(part), *access.indices[place + 1 :])
                    general = substitute(body, access, Access(access.tensor, indices))
                    return general, part, access.indices[place]
        return body, "", Const(0)

    def _parts(self, value: Expr) -> list[str]:
        """The extents of modes read at constant indices."""
        return [
            self.program.declaration(access.tensor).extents[place]
            for access in find(value, Access)
            for place, index in enumerate(access.indices)
            if isinstance(index, Const)
        ]

    def _has_all_parts(self, value: Expr, part: str) -> bool:
        """Whether all coordinates of a mode are read: no unread part may be computed."""
        read = {
            index.value
            for access in find(value, Access)
            for own, index in zip(
                self.program.declaration(access.tensor).extents, access.indices, strict=True
            )
            if own == part and isinstance(index, Const)
        }
        return part not in all_indices(self.program.statements) and len(read) == self.extents.get(part)


def _access(rows: _Rows, free: tuple[str, ...], place: Expr) -> Access:
    """`w[t,e,p,h]`: a part precedes the last mode."""
    kept = tuple(map(Index, free))
    return Access(rows.name, (*kept[:-1], place, kept[-1]) if rows.part else kept)
