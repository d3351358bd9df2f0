"""Softmax over the entries of a relation in canonical form, independent of the spelling in the model.

In: `m[i,h] = max(j, where(stored(A[i,j]), s[i,j,h], -inf)); p[i,j,h] = exp(s[i,j,h] - m[i,h]); d[i,h] = sum(j, A[i,j] *
p[i,j,h]) + 1e-16; y[i,h,k] = sum(j, A[i,j] * (p[i,j,h] / d[i,h] * v[j,h,k]))`, A the numbers of edges.
Out: the same with `s[h,i,j] = where(stored(L[i,j]), .. + L[i,j], -inf)`, L the logarithms of the edge numbers,
`p[h,i,j] = exp(s[h,i,j] - m[h,i])`, `d[h,i] = sum(j, p[h,i,j])`: duplicate edges have equal scores and count with their
multiplicity, `n * exp(s) = exp(s + log(n))`.

A row without entries is 0. The summand by which models avoid a division by 0 is dropped: the largest term of the sum is
1.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Call, Const, Expr, Reduce, Stored
from sparsify.compiler.ir.node import Node, find, map_children
from sparsify.passes.program.model import ModelProgram, Relation

NEGLIGIBLE: Final = 1e-15


@dataclass(frozen=True)
class Softmax:
    """The statements of a softmax over the entries of a relation, by name.

    Attributes:
        relation: relation of the entries.
        scores: operand of the softmax.
        largest: largest score of each row, None without subtraction.
        powers: `exp(scores - largest)`.
        total: sum of the powers over each row.
    """

    relation: Relation
    scores: str
    largest: str | None
    powers: str
    total: str


def normalise(program: ModelProgram, outside_reads: Set[str]) -> None:
    """Rewrites each softmax over a relation to canonical form, in place.

    Args:
        outside_reads: tensors with further readers.
    """
    for relation in list(program.relations.values()):
        for name in list(program.statements):
            softmax = softmax_of(program, relation, name)
            if softmax is not None and outside_reads.isdisjoint(
                (softmax.scores, softmax.largest, softmax.powers, softmax.total)
            ):
                put_in_form(program, softmax)


def softmax_of(program: ModelProgram, relation: Relation, name: str) -> Softmax | None:
    """The softmax whose powers are a given statement, `None` for other statements."""
    largest: str | None
    match program.statements[name].value:
        case Call("where", (Stored(entry), Call("exp", (exponent,)), Const(0))) if (
            entry.tensor == relation.name
        ):
            match exponent:
                case Call("sub", (Access(scores), Access(subtracted))):
                    largest = subtracted
                case Access(scores):
                    largest = None
                case _:
                    return None
        case _:
            return None
    readers = program.readers()
    totals = [
        r for r in readers.get(name, ()) if is_total(program.statements[r].value, relation, name, largest)
    ]
    if len(totals) != 1 or readers[scores] - {name, largest} or not is_over(program, scores, relation):
        return None
    if largest is not None and (
        readers[largest] != {name} or not is_largest(program, largest, relation, scores)
    ):
        return None
    softmax = Softmax(relation, scores, largest, name, totals[0])
    return softmax if all(is_weighted_sum(program, softmax, r) for r in readers[name] - {totals[0]}) else None


def is_over(program: ModelProgram, name: str, relation: Relation) -> bool:
    """Whether a statement has the entries of a relation: `s[i,j,h] = where(stored(A[i,j]), .., 0)`."""
    match program.statements.get(name):
        case Assign(target, _, Call("where", (Stored(entry), _, Const(0)))) if entry.tensor == relation.name:
            return target.indices[: len(entry.indices)] == entry.indices
    return False


def is_largest(program: ModelProgram, name: str, relation: Relation, scores: str) -> bool:
    """Whether a statement is `m[i,h] = max(j, where(stored(A[i,j]), s[i,j,h], -inf))`."""
    match program.statements[name].value:
        case Reduce(
            "max", _, Call("where", (Stored(entry), Call("detach", (Access(tensor),)), Const(value)))
        ):
            return entry.tensor == relation.name and tensor == scores and value == -inf
        case Reduce("max", _, Call("where", (Stored(entry), Access(tensor), Const(value)))):
            return entry.tensor == relation.name and tensor == scores and value == -inf
    return False


def is_total(value: Expr, relation: Relation, powers: str, largest: str | None) -> bool:
    """Whether an expression is `sum(j, A[i,j] * p[i,j,h]) + c` with a negligible c."""
    match value:
        case Call("add", (total, Const(c))) if (
            largest is not None and isinstance(c, int | float) and 0 <= c <= NEGLIGIBLE
        ):
            return is_total(total, relation, powers, largest)
        case Reduce("sum", _, Call("mul", (Access(entry), Access(tensor)))):
            return entry == relation.name and tensor == powers
    return False


def is_weighted_sum(program: ModelProgram, softmax: Softmax, reader: str) -> bool:
    """Whether a statement reads powers only in sums over the relation, each divided by the total."""
    value = program.statements[reader].value
    sums = [r for r in find(value, Reduce) if counted(r, softmax.relation) is not None]
    inside = [
        access for r in sums for access in find(r, Access) if access.tensor in (softmax.powers, softmax.total)
    ]
    every = [access for access in find(value, Access) if access.tensor in (softmax.powers, softmax.total)]
    divided = [
        access for call in find(value, Call) if call.function == "div"
        for access in [call.args[1]] if isinstance(access, Access) and access.tensor == softmax.total
    ]  # fmt: skip
    totals = [access for access in every if access.tensor == softmax.total]
    return len(inside) == len(every) and len(divided) == len(totals) > 0


def counted(reduction: Reduce, relation: Relation) -> Expr | None:
    """`x` of `sum(j, A[i,j] * x)`, `None` for other reductions."""
    match reduction:
        case Reduce("sum", _, Call("mul", (Access(entry), body))) if entry == relation.name:
            return body
    return None


def put_in_form(program: ModelProgram, softmax: Softmax) -> None:
    """Rewrites the statements of a softmax in place, as described in the module docstring."""
    relation = logarithms(program, softmax.relation)
    statement = program.statements[softmax.scores]
    width = len(program.sizes[relation.name])
    modes, rest = statement.target.indices[:width], statement.target.indices[width:]
    entry = Access(relation.name, modes)
    largest = softmax.largest or f"{softmax.powers}_largest"
    scores, powers = (Access(name, (*rest, *modes)) for name in (softmax.scores, softmax.powers))
    top, total = (Access(name, (*rest, modes[0])) for name in (largest, softmax.total))
    bound = tuple(map(str, modes[1:]))
    value = statement.value.args[1]  # type: ignore[attr-defined]
    value = Call("add", (value, entry)) if relation.by == "logarithms" else value
    readers = {r: program.statements[r] for r in program.readers()[softmax.powers] - {softmax.total}}
    shift = Call("where", (Call("eq", (top, Const(-inf))), Const(0), top))
    values = {
        scores: Call("where", (Stored(entry), value, Const(-inf))),
        top: Reduce("max", bound, scores),
        powers: Call("exp", (Call("sub", (scores, shift)),)),
        total: Reduce("sum", bound, powers),
    }
    for target, expression in values.items():
        source = program.source[softmax.powers]
        program.assign(target.tensor, tuple(map(str, target.indices)), expression, source)
        program.dtypes[target.tensor] = relation.dtype
    for reader, consumer in readers.items():
        program.statements[reader] = replace(consumer, value=weighted(consumer.value, softmax, width))


def weighted(value: Expr, softmax: Softmax, width: int) -> Expr:
    """`sum(j, A[i,j] * (p[i,j,h] / d[i,h] * v)) -> sum(j, p[h,i,j] / where(d[h,i] == 0, 1, d[h,i]) * v)`."""

    def visit(node: Node) -> Node:
        match node:
            case Reduce(monoid, bound, body) if counted(node, softmax.relation) is not None and reads(node):
                assert isinstance(body, Call), "it is a product"
                return Reduce(monoid, bound, visit(body.args[1]))  # type: ignore[arg-type]
            case Access(tensor, indices) if tensor == softmax.powers:
                return Access(tensor, (*indices[width:], *indices[:width]))
            case Access(tensor, indices) if tensor == softmax.total:
                total = Access(tensor, (*indices[1:], indices[0]))
                return Call("where", (Call("eq", (total, Const(0))), Const(1), total))
        return map_children(node, visit)

    def reads(node: Node) -> bool:
        return any(access.tensor == softmax.powers for access in find(node, Access))

    result = visit(value)
    assert isinstance(result, Expr)
    return result


def logarithms(program: ModelProgram, relation: Relation) -> Relation:
    """The relation of the logarithms of edge numbers; unchanged if each edge has a separate entry."""
    if relation.by != "nodes":
        return relation
    ends = (relation.rows, relation.columns, "logarithms", relation.dtype)
    return next(
        candidate
        for candidate in program.relations.values()
        if (candidate.rows, candidate.columns, candidate.by, candidate.dtype) == ends
    )
