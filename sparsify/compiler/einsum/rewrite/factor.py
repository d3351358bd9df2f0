"""Loop-invariant factors, hoisted out of sums.

In:  `S[i,j] = sum(k, A[i,j] * Q[i,k] * K[j,k])` and `Y[i,l] += P[i,j] * V[j,l] / D[i]`.
Out: `S[i,j] = A[i,j] * sum(k, Q[i,k] * K[j,k])` and `Y[i,l] = sum(j, P[i,j] * V[j,l]) / D[i]`.

A stored entry has to meet the same values as before, and an unstored one nothing: a sparse factor is hoisted out of a
sum of dense operands; a factor is hoisted out of a sum of stored entries if its value is known to be finite and nonzero
for an empty sum, so that the result stays 0 there.
"""

from dataclasses import replace
from math import isfinite

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.dtype import declared_kind, kind_of
from sparsify.compiler.einsum.infer.patterns import pattern_access
from sparsify.compiler.einsum.infer.sparsity import infer_sparsity
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import (
    Access,
    Assign,
    Call,
    Const,
    Declaration,
    Expr,
    Index,
    Program,
    Reduce,
)
from sparsify.compiler.ir.node import Node
from sparsify.compiler.ir.rewrite import bottom_up


def factor(program: Program) -> Program:
    """`program` with as few factors as possible inside each sum; the same object if nothing changes."""
    factoring = _Factoring(program)
    statements = tuple(factoring.statement(statement) for statement in program.statements)
    return program if statements == program.statements else replace(program, statements=statements)


class _Factoring:
    """Facts about the tensors of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.declarations: dict[str, Declaration] = {d.name: d for d in program.declarations}
        self.kinds = {d.name: declared_kind(d) for d in program.declarations}
        names = [statement.target.tensor for statement in program.statements]
        self.definitions = {
            s.target.tensor: s for s in program.statements if names.count(s.target.tensor) == 1
        }

    def statement(self, assign: Assign) -> Assign:
        """`Y += a * b -> Y = a * sum(.., b)` if `a` may be hoisted; otherwise rewrites the sums inside the value."""
        target = assign.target
        if assign.monoid is None:
            value = bottom_up(assign.value, self._rule)
            assert isinstance(value, Expr)
            return assign if value is assign.value else replace(assign, value=value)
        free = free_indices(assign.value)
        reduced = tuple(name for name in free if name not in free_indices(target))
        if assign.monoid != "sum" or not reduced or target.tensor not in self.definitions:
            return assign
        found = self._rule(Reduce("sum", reduced, assign.value))
        return assign if found is None else Assign(target, None, found)

    def _rule(self, node: Node) -> Expr | None:
        """`sum(k, a * b / c) -> a * sum(k, b) / c`."""
        if not isinstance(node, Reduce) or node.monoid != "sum":
            return None
        factors = _factors(node.body)
        inner = [(f, power) for f, power in factors if set(free_indices(f)) & set(node.indices)]
        rest = _product(inner)
        if rest is None or len(inner) == len(factors):
            return None
        leaving = [f for f in factors if f not in inner and self._may_leave(f, rest, node.indices)]
        if not leaving:
            return None
        kept = _product([f for f in factors if f not in leaving])
        assert kept is not None
        numerator = _product([f for f in leaving if f[1] > 0])
        total: Expr = Reduce("sum", node.indices, kept)
        if kind_of(total, self.kinds).dtype != kind_of(node, self.kinds).dtype:
            return None  # the sum of truth values, or of smaller integers, would have another dtype
        total = total if numerator is None else Call("mul", (numerator, total))
        for divisor in (f for f, power in leaving if power < 0):
            total = Call("div", (total, divisor))
        return total

    def _may_leave(self, factor: tuple[Expr, int], rest: Expr, reduced: tuple[str, ...]) -> bool:
        """Whether the factor may be hoisted out of the sum of `rest`."""
        outer, power = factor
        sparsity = infer_sparsity(rest, self.declarations)
        if sparsity.fill is None:
            found = infer_sparsity(outer, self.declarations)
            return power > 0 and found.fill == 0 and not found.is_number
        if sparsity.fill != 0 or sparsity.pattern is None:
            return False
        root = pattern_access(self.program, Access(*sparsity.pattern))
        if isinstance(outer, Access) and self.declarations[outer.tensor].is_number:
            return True
        value = self._where_empty(outer, root, reduced)
        return value is not None and isfinite(value) and value != 0

    def _where_empty(self, expr: Expr, root: Access, reduced: tuple[str, ...]) -> float | None:
        """The value of `expr` at coordinates of `root` without entries along `reduced`, if constant."""
        match expr:
            case Const(value):
                return float(value)
            case Access(tensor) if tensor in self.definitions:
                return self._reduced_where_empty(expr, root, reduced)
            case Call(function, args):
                values = [self._where_empty(arg, root, reduced) for arg in args]
                if function == "where" and values[0] is not None:
                    return values[1] if values[0] else values[2]
                known = [value for value in values if value is not None]
                return float(FUNCTIONS[function].evaluate(*known)) if len(known) == len(values) else None
        return None

    def _reduced_where_empty(self, access: Access, root: Access, reduced: tuple[str, ...]) -> float | None:
        """The identity of the reduction that defines `access`, if it runs over the same entries."""
        definition = self.definitions[access.tensor]
        monoid, body = definition.monoid, definition.value
        if monoid is None and isinstance(body, Reduce):
            monoid, body = body.monoid, body.body
        sparsity = infer_sparsity(body, self.declarations)
        if monoid is None or sparsity.pattern is None:
            return None
        neutral = MONOIDS[monoid].neutral
        entries = pattern_access(self.program, Access(*sparsity.pattern))
        if sparsity.fill != neutral or entries.tensor != root.tensor:
            return None
        names = dict(zip(definition.target.indices, access.indices, strict=True))
        for mine, theirs in zip(root.indices, entries.indices, strict=True):
            summed = isinstance(mine, Index) and mine.name in reduced
            if (theirs in names) == summed or (not summed and names[theirs] != mine):
                return None
        return float(neutral)


def _factors(expr: Expr) -> list[tuple[Expr, int]]:
    """The factors of a product or quotient with their powers, 1 or -1, from left to right."""
    match expr:
        case Call("mul", (left, right)):
            return [*_factors(left), *_factors(right)]
        case Call("div", (left, right)):
            return [*_factors(left), (right, -1)]
    return [(expr, 1)]


def _product(factors: list[tuple[Expr, int]]) -> Expr | None:
    """The product of the factors, from left to right; `None` without a numerator."""
    numerators = [f for f, power in factors if power > 0]
    if not numerators:
        return None
    result = numerators[0]
    for value in numerators[1:]:
        result = Call("mul", (result, value))
    for divisor in (f for f, power in factors if power < 0):
        result = Call("div", (result, divisor))
    return result
