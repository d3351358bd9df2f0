"""Statements that reduce into one tensor as one statement, each sum written out.

In: `y[i] += A[i,j]`, `y[k] += b[k]`. Out: `y[i] = sum(j, A[i,j]) + b[i]`.
"""

from dataclasses import replace

from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Assign, Call, Expr, Index, Program, Reduce
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_indices
from sparsify.compiler.einsum.sums import free_indices


def collect(program: Program) -> Program:
    """`program` with one plain assignment a result, at the place of its last statement."""
    groups: dict[str, list[Assign]] = {}
    for statement in program.statements:
        name = statement.target.tensor
        groups[name] = [*groups.pop(name, []), statement]
    statements = tuple(_collected(group) for group in groups.values())
    return program if statements == program.statements else replace(program, statements=statements)


def _collected(group: list[Assign]) -> Assign:
    """`y[i] += a; y[k] += b -> y[i] = sum(.., a) + sum(.., b)`."""
    target = group[0].target
    value = _written_out(group[0])
    for statement in group[1:]:
        assert statement.monoid is not None, "a second statement reduces"
        combine = MONOIDS[statement.monoid].combine
        value = Call(combine, (value, _written_out(_at(statement, target.indices))))
    return Assign(target, None, value)


def _at(statement: Assign, indices: tuple[Expr, ...]) -> Assign:
    """`statement` with the index variables of another target; its own others give way."""
    wanted = [index.name for index in indices if isinstance(index, Index)]
    own = [index.name for index in statement.target.indices if isinstance(index, Index)]
    names = dict(zip(own, wanted, strict=True))
    taken = {*wanted, *all_indices((statement,))}
    for name in all_indices((statement,)):
        if name not in names and name in wanted:
            names[name] = fresh(name, taken)
            taken.add(names[name])
    return rename_indices(statement, names)


def _written_out(statement: Assign) -> Expr:
    """`y[i] += A[i,j] -> sum(j, A[i,j])`."""
    if statement.monoid is None:
        return statement.value
    kept = free_indices(statement.target)
    reduced = tuple(name for name in free_indices(statement.value) if name not in kept)
    return Reduce(statement.monoid, reduced, statement.value) if reduced else statement.value
