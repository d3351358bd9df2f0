"""Statements that reduce into one tensor, combined into one statement with explicit sums.

In: `y[i] += A[i,j]`, `y[k] += b[k]`. Out: `y[i] = sum(j, A[i,j]) + b[i]`.
"""

from dataclasses import replace

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.dtype import declared_kind, kind_of
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Assign, Call, Cast, Expr, Index, Program, Reduce
from sparsify.compiler.einsum.register import expand_functions
from sparsify.compiler.einsum.rename import all_indices, fresh, rename_indices
from sparsify.compiler.ir.dtypes import NUMBER


def collect(program: Program) -> Program:
    """`program` with one plain assignment for each result, at the position of its last statement."""
    groups: dict[str, list[Assign]] = {}
    for statement in program.statements:
        name = statement.target.tensor
        groups[name] = [*groups.pop(name, []), statement]
    statements = tuple(_collected(program, group) for group in groups.values())
    return program if statements == program.statements else replace(program, statements=statements)


def _collected(program: Program, group: list[Assign]) -> Assign:
    """`y[i] += a; y[k] += b -> y[i] = sum(.., a) + sum(.., b)`."""
    target = group[0].target
    if len(group) == 1:
        return Assign(target, None, _written_out(group[0]))
    value, *others = (_as_result(program, _written_out(_at(s, target.indices)), target.tensor) for s in group)
    for statement, other in zip(group[1:], others, strict=True):
        assert statement.monoid is not None, "a second statement reduces"
        value = expand_functions(Call(MONOIDS[statement.monoid].combine, (value, other)))
    return Assign(target, None, value)


def _as_result(program: Program, value: Expr, result: str) -> Expr:
    """`value` in the dtype in which `result` is reduced: sums of bools count, sums of int8 do not wrap."""
    kinds = {declared.name: declared_kind(declared) for declared in program.declarations}
    dtype, kind = kinds[result].dtype, kind_of(value, kinds)
    is_converted = kind.strength == NUMBER or dtype in ("bool", kind.dtype)
    return value if is_converted else Cast(dtype, value)


def _at(statement: Assign, indices: tuple[Expr, ...]) -> Assign:
    """`statement` with the index variables of another target; clashing variables are renamed."""
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
