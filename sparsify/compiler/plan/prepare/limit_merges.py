"""Statements that merge many sparse operands, split into several statements with few operands each.

In: `Y[i,j] = A[i,j] + B[i,j] + C[i,j] + D[i,j] + E[i,j] + F[i,j]`, all compressed by row.
Out: `w[i,j] = A[i,j] + B[i,j] + C[i,j]`, `w1[i,j] = w[i,j] + D[i,j] + E[i,j]` and `Y[i,j] = w1[i,j] + F[i,j]`.
`where(w, C, D)` with too many sparse modes becomes the sum of two.

Every subset of the operands may be stored at a coordinate, and each lattice point has code of its own: loops over the
union of n operands have about 3^n bodies.
"""

from dataclasses import replace
from math import log, prod
from typing import Final, cast

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.format import infer_format
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Const,
    Expr,
    Index,
    Program,
    Reduce,
    Stored,
)
from sparsify.compiler.einsum.rename import all_indices, fresh
from sparsify.compiler.ir.dtypes import FLOATING, category
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.compiler.ir.rewrite import bottom_up
from sparsify.compiler.loops.lower.declared import DeclaredTensors
from sparsify.compiler.loops.lower.lattice import expression_regions

# Most bodies of the loops over one expression.
MOST_BODIES: Final = 60


def narrow(program: Program) -> Program:
    """`program` without statements of too many lattice cases; the same object if nothing changes."""
    taken = {declared.name for declared in program.declarations} | set(all_indices(program.statements))
    statements: list[Assign] = []
    tensors = DeclaredTensors({declared.name: declared for declared in program.declarations})
    for statement in program.statements:
        narrowing = _Narrowing(tensors, taken, free_indices(statement.target))
        value = cast(Expr, narrowing.visit(statement.value))
        tensors = narrowing.tensors
        statements += [*narrowing.before, replace(statement, value=value)]
    if len(statements) == len(program.statements):
        return program
    return infer_format(replace(program, statements=tuple(statements)))


class _Narrowing:
    """One statement, and the preceding statements that compute its split subexpressions."""

    def __init__(self, tensors: DeclaredTensors, taken: set[str], order: tuple[str, ...]) -> None:
        self.tensors, self.taken, self.order = tensors, taken, order
        self.before: list[Assign] = []

    def visit(self, node: Node) -> Node:
        """The expression with temporaries for subexpressions whose combination has too many cases."""
        node = map_children(node, self.visit)
        if not isinstance(node, Call):
            return node
        while bodies(node, self.tensors) > MOST_BODIES:
            parts = [n for n in node.args if isinstance(n, Call) and bodies(n, self.tensors) > 1]
            if not parts:
                return self.apart(node)
            widest = max(parts, key=lambda part: bodies(part, self.tensors))
            target = self.computed(widest)
            node = replace(node, args=tuple(target if arg is widest else arg for arg in node.args))
        return node

    def apart(self, node: Call) -> Call:
        """`where(w, c, d) -> where(w, c, -0.0) + where(w, -0.0, d)`, each a separate tensor with two operands.

        -0.0 is the exact identity of addition, also for -0.0. Truth values become `where(w, c, False) or where(w,
        False, d)`.
        """
        match node:
            case Call("where", (Access() as condition, Access() as first, Access() as second)):
                pass
            case _:
                return node
        declared = [self.tensors.declarations[access.tensor] for access in (first, second)]
        are_true = {category(d.dtype) < category("int8") for d in declared}
        if len(are_true) > 1:
            return node
        combine = "logical_or" if True in are_true else "add"
        nothing = Const(-0.0 if any(category(d.dtype) >= FLOATING for d in declared) else 0)
        nothing = Const(False) if True in are_true else nothing
        chosen = Call("where", (condition, first, nothing)), Call("where", (condition, nothing, second))
        if sum(bodies(part, self.tensors) for part in chosen) >= bodies(node, self.tensors):
            return node
        return Call(combine, tuple(map(self.computed, chosen)))

    def computed(self, part: Expr) -> Access:
        """The temporary of a subexpression, computed by a new statement."""
        free = free_indices(part)
        names = sorted(free, key=lambda n: self.order.index(n) if n in self.order else len(self.order))
        target = Access(fresh("w", self.taken), tuple(map(Index, names)))
        self.taken.add(target.tensor)
        statement = Assign(target, None, part)
        self.before.append(statement)
        known = Program((statement,), tuple(self.tensors.declarations.values()), (), (target.tensor,))
        found = infer_format(known).declaration(target.tensor)
        self.tensors = DeclaredTensors({**self.tensors.declarations, target.tensor: found})
        return target


def bodies(expr: Expr, tensors: DeclaredTensors) -> int:
    """Approximate number of bodies of the loops over an expression."""
    plain = cast(Expr, bottom_up(expr, _without_sum))
    reads = [n.access if isinstance(n, Stored) else n for n in find(plain, Access, Stored)]
    merged: dict[str, set[Access]] = {}
    for root in map(tensors.root_of, reads):
        for stored in tensors.declarations[root.tensor].format.levels:
            if not stored.level.is_full:
                for name in free_indices(root.indices[stored.expression.mode]):
                    merged.setdefault(name, set()).add(root)
    counts = [_cases(plain, frozenset(found), tensors) for found in merged.values() if len(found) > 1]
    nested = sum(count > 1 for count in counts)
    # One loop over n operands has 3^n bodies, two nested ones 5^n: an operand absent outside is absent inside.
    return min(prod(counts), round(max(counts) ** (log(2 * nested + 1) / log(3)))) if nested else 1


def _without_sum(node: Node) -> Node | None:
    """`sum(j, x) -> x`."""
    return node.body if isinstance(node, Reduce) else None


def _cases(expr: Expr, sparse: frozenset[Access], tensors: DeclaredTensors) -> int:
    """The number of pairs of lattice points of an expression, one below or equal to the other."""
    found = expression_regions(expr, sparse, tensors, frozenset(), {}).points
    points = (*found, frozenset[Access]())
    return sum(other <= point for point in points for other in points)
