"""Rows of a marked workspace with the same pattern as the previous row.

In: rows of `Y[i,k] += A[i,j] * B[j,k]`, and A has the same columns in this row as in the previous one of the thread.
Out: the count of the previous row, or its coordinates with the values of this row: no marks are made. Unknowns of one
node of a mesh have equal columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, both, compare, integer, minus, plus
from sparsify.compiler.loops.lower.assembly import BOUND, COUNT, FILL, VALUES, Assembly
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered, Range
from sparsify.compiler.loops.lower.levels.places import place_of
from sparsify.compiler.loops.lower.levels.search import located
from sparsify.compiler.loops.lower.levels.stored import level_range
from sparsify.compiler.loops.lower.rows import upper_bound
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.concretize import index_names


@dataclass(frozen=True, slots=True)
class Before:
    """The previous row of a thread: its number, and the place of its columns in the operand."""

    row: loops.Var
    begin: loops.Var
    end: loops.Var

    @classmethod
    def nothing(cls, context: Context, operand: str) -> Before:
        """Declared once a thread, with columns different from every row."""
        row, begin, end = (
            context.fresh_int(f"{operand}_{name}") for name in ("row_before", "begin_before", "end_before")
        )
        context.setups[-1] += [
            loops.Declare(row, ZERO, True),
            loops.Declare(begin, ZERO, True),
            loops.Declare(end, integer(-1), True),
        ]
        return cls(row, begin, end)

    def now(self, row: loops.Expr, reach: Range) -> Lowered:
        """Makes the current row the previous one."""
        return [
            loops.Set(self.row, row),
            loops.Set(self.begin, reach.begin),
            loops.Set(self.end, reach.end),
        ]


def rows(
    context: Context, assembly: Assembly, loop: notation.Forall, made: Lowered, env: Environment
) -> Lowered:
    """The row: `made`, counted or filled, or a repetition of the previous row if the columns are equal."""
    phase = assembly.phase
    access = _columns_of(context, assembly, loop, env)
    if phase in (BOUND, VALUES) or access is None:
        return made
    place = place_of(context, access, env)
    level = place.levels
    reach = level_range(context, access, place)
    begin, end = (context.fresh_int(f"{access.tensor}_{name}") for name in ("begin", "end"))
    here = Range(begin, end)
    before = Before.nothing(context, access.tensor)
    same = context.fresh_int(f"{access.tensor}_same")
    equal_length = compare("eq", minus(end, begin), minus(before.end, before.begin))
    shift = minus(before.begin, begin)
    crd = f"{access.tensor}{level + 1}_crd"
    kind = loops.Type(context.index_dtype(crd))
    pair = (loops.Load(crd, same, kind), loops.Load(crd, plus(same, shift), kind))
    search = loops.While(
        both(both(equal_length, compare("lt", same, end)), compare("eq", *pair)),
        loops.Set(same, plus(same, ONE)),
    )
    row = assembly.row(env)
    repeats = both(equal_length, compare("eq", same, end))
    again = loops.Block(tuple(_again(context, assembly, loop, before.row, env)))
    return [
        loops.Declare(begin, reach.begin),
        loops.Declare(end, reach.end),
        loops.Declare(same, begin, True),
        search,
        loops.If(repeats, again, loops.Block(tuple(made))),
        *before.now(row, here),
    ]


def _again(
    context: Context, assembly: Assembly, loop: notation.Forall, before: loops.Expr, env: Environment
) -> Lowered:
    """The count of the previous row, or its coordinates and then the values at the coordinates."""
    counter = assembly.counters[-1]
    if assembly.phase == COUNT:
        return [loops.Set(counter, upper_bound.needed_room(assembly, before))]
    count = assembly.position(plus(before, ONE))
    place = context.fresh_int(f"p{assembly.name}")
    source = plus(upper_bound.begin_of(assembly, before), place)
    put = assembly.put_coordinate(plus(assembly.first, place), assembly.read_coordinate(source))
    copy = loops.For(place, ZERO, count, put)
    assembly.phase = VALUES
    values = located(context, loop.body, env)
    assembly.phase = FILL
    return [copy, loops.Set(counter, plus(counter, count)), *values]


def _columns_of(
    context: Context, assembly: Assembly, loop: notation.Forall, env: Environment
) -> Access | None:
    """The operand whose columns in a row alone determine the pattern of the result's row; `None` without one.

    The operand must be the only one with a pattern addressed by a row variable, and have one level below the rows, for
    another variable. Windows moving with the rows are excluded, because they may leave the bounds of a tensor.
    """
    names = set(assembly.variables[:-1])
    if loop.index != assembly.variables[-2]:
        return None
    reads = {context.root_of(n) for n in find(loop.body, Access) if names & set(index_names(n))}
    stored = [
        access
        for access in reads
        if access.tensor != assembly.name
        and not (access.tensor in context.declarations and context.declaration(access.tensor).format.is_dense)
    ]
    if len(stored) != 1 or stored[0].tensor not in context.program.inputs or stored[0] in env.absent:
        return None
    if not all(isinstance(index, Index) for read in reads for index in read.indices):
        return None
    access = stored[0]
    levels = context.levels(access.tensor)
    if access.indices[levels[-1].expression.mode].name in names:  # type: ignore[attr-defined]
        return None
    place = place_of(context, access, env)
    is_last = place.levels + 1 == len(levels) and place.position.is_uniform
    return access if is_last and set(levels[-1].level.arrays) == {"pos", "crd"} else None
