"""Rows bounded by the entries of their operands: filled at once into the upper bounds, then compacted.

In: `Y[i,j] = A[i,j] + B[i,j]`, all compressed by row. Out: arrays for `A_nnz + B_nnz` entries, one merge that appends
each row to the previous one, from `A2_pos[i] + B2_pos[i]` on at the first row of a thread, and a loop that closes the
gaps between the parts of threads. The arrays may be longer than the positions require; the caller cuts them.

Source: numeric-first assembly into upper bounds, as in Liu and Vinter, An efficient GPU general sparse matrix-matrix
multiplication for irregular data, 2014.
"""

from __future__ import annotations

from typing import Final

from sparsify.compiler.einsum.nodes import Access, Index
from sparsify.compiler.ir.dtypes import BYTES
from sparsify.compiler.ir.node import find, holds
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, both, compare, integer, minus, plus, quotient, times
from sparsify.compiler.loops.lower.assembly import Assembly
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.lattice import statement_points
from sparsify.compiler.loops.lower.levels.places import is_located
from sparsify.compiler.loops.lower.levels.search import located
from sparsify.compiler.loops.lower.program_facts import ProgramFacts
from sparsify.compiler.notation import nodes as notation

NOWHERE: Final = integer(-1)
# Dtypes stored unconverted in vectors.
WHOLE: Final = ("float32", "float64", "int32", "int64")


def bounding(assembly: Assembly, column: notation.Forall) -> tuple[str, ...]:
    """The operands with together at least as many entries in each row as the result; none if unknown.

    Args:
        assembly: the result under construction.
        column: the loop over the last level of the result.
    """
    facts, body = assembly.facts, assembly.facts.program.body
    if not assembly.by_rows or holds(body, notation.Let, notation.Sequence):
        return ()
    reads = dict.fromkeys(facts.root_of(n) for n in find(body, Access) if n.tensor != assembly.name)
    stored = [access for access in reads if not facts.declaration(access.tensor).format.is_dense]
    if not stored or not all(_has_rows_of(facts, access, assembly.variables) for access in stored):
        return ()
    points = statement_points(column.body, frozenset(stored), facts, frozenset())
    if not points or frozenset() in points:
        return ()
    always = [access for access in stored if all(access in point for point in points)]
    return tuple(access.tensor for access in (always[:1] or stored))


def _has_rows_of(facts: ProgramFacts, access: Access, variables: list[str]) -> bool:
    """Whether an operand has the rows of the result, with sorted coordinates per row."""
    *above, last = facts.levels(access.tensor)
    plain = all(isinstance(index, Index) for index in access.indices)
    if (
        not plain
        or not all(is_located(stored) for stored in above)
        or set(last.level.arrays) != {"pos", "crd"}
    ):
        return False
    return [facts.level_variable(access, stored) for stored in (*above, last)] == variables


def phases(context: Context, assembly: Assembly) -> Lowered:
    """Allocation of the bound, one pass over the rows, and compaction."""
    room: loops.Expr = ZERO if assembly.bounds else assembly.whole_room()
    for tensor in assembly.bounds:
        room = plus(room, loops.Var(f"{tensor}_nnz", loops.INT))
    assembly.filling = True
    body = located(context, context.program.body, Environment())
    return [
        *assembly.allocate_positions(),
        *assembly.allocate_entries(room),
        *filled(context, assembly, body),
    ]


def filled(context: Context, assembly: Assembly, body: Lowered) -> Lowered:
    """Filling of consecutive rows in each part, then compaction of all."""
    counter = assembly.counters[-1]
    alone = [] if context.is_parallel else [loops.Declare(counter, ZERO, True)]
    return [
        loops.Allocate(_first(assembly), "int64", assembly.row_count(), 0),
        *alone,
        *body,
        loops.Comment(f"close the gaps between rows of {assembly.name}"),
        *_together(assembly),
    ]


def memory(assembly: Assembly) -> loops.Stmt:
    """Allocates the row bounds, zeroed; row `i` at `i + 1`."""
    return loops.Allocate(_room(assembly), "int64", plus(assembly.row_count(), ONE), 0)


def no_room(assembly: Assembly) -> loops.Stmt:
    """Resets the row bounds to zero."""
    return loops.Fill(_room(assembly), ZERO, plus(assembly.row_count(), ONE), ZERO)


def sum_up(assembly: Assembly) -> tuple[loops.Var, Lowered]:
    """Statements for the prefix sum of the row bounds, and the total bound."""
    name, room = assembly.name, _room(assembly)
    total, row = (assembly.fresh_int(f"{name}_{n}") for n in ("room_total", "room_row"))
    after = plus(row, ONE)
    body = (
        loops.Set(total, plus(total, loops.Load(room, after, loops.INT))),
        loops.Store(room, after, total),
    )
    return total, [
        loops.Declare(total, ZERO, True),
        loops.For(row, ZERO, assembly.row_count(), loops.Block(body)),
    ]


def put_room(assembly: Assembly, row: loops.Expr, count: loops.Expr) -> loops.Stmt:
    """Stores the bound of a row."""
    return loops.Store(_room(assembly), plus(row, ONE), count)


def needed_room(assembly: Assembly, row: loops.Expr) -> loops.Expr:
    """The bound of a row, before the prefix sum."""
    return loops.Load(_room(assembly), plus(row, ONE), loops.INT)


def row_room(assembly: Assembly, row: loops.Expr) -> loops.Expr:
    """The bound of a row, after the prefix sum."""
    return minus(needed_room(assembly, row), loops.Load(_room(assembly), row, loops.INT))


def part(assembly: Assembly) -> loops.Stmt:
    """Marks the start of a thread's part: the counter is set at the first row."""
    return loops.Declare(assembly.counters[-1], NOWHERE, True)


def _start(assembly: Assembly, row: loops.Expr) -> loops.Expr:
    """The position behind the bounds of all earlier rows."""
    if not assembly.bounds and not assembly.phase:
        return times(row, assembly.row_room())
    if not assembly.bounds:
        return loops.Load(_room(assembly), row, loops.INT)
    place: loops.Expr = ZERO
    for tensor in assembly.bounds:
        levels = len(assembly.facts.levels(tensor))
        place = plus(place, assembly.read(f"{tensor}{levels}_pos", row))
    return place


def around_row(assembly: Assembly, body: Lowered, env: Environment) -> Lowered:
    """Stores the start and the number of entries of a row."""
    counter, first, row = assembly.counters[-1], assembly.first, assembly.row(env)
    is_first = compare("lt", counter, ZERO)
    return [
        *([loops.If(is_first, loops.Set(counter, _start(assembly, row)))] if env.in_parallel else []),
        loops.Declare(first, counter),
        *body,
        loops.Store(_first(assembly), row, first),
        assembly.put_count(row, minus(counter, first)),
    ]


def begin_of(assembly: Assembly, row: loops.Expr) -> loops.Expr:
    """The start of a filled row."""
    return loops.Load(_first(assembly), row, loops.INT)


def _first(assembly: Assembly) -> str:
    """The name of the array of row starts."""
    return f"{assembly.name}_first"


def _room(assembly: Assembly) -> str:
    """The name of the array of row bounds."""
    return f"{assembly.name}_room"


def _together(assembly: Assembly) -> Lowered:
    """Compaction: counts become positions, and runs of adjacent rows are moved to their positions."""
    name = assembly.name
    row, count, begin = (assembly.fresh_int(f"{name}_{n}") for n in ("row", "count", "found"))
    source, target, length = (assembly.fresh_int(f"{name}_{n}") for n in ("from", "to", "run"))
    total = assembly.total = assembly.fresh_int(f"{name}_total")
    begins_run = both(compare("gt", count, ZERO), compare("ne", begin, plus(source, length)))
    next_run = [loops.Set(source, begin), loops.Set(target, total), loops.Set(length, ZERO)]
    body = [
        loops.Declare(count, assembly.position(plus(row, ONE))),
        loops.Declare(begin, begin_of(assembly, row)),
        loops.If(begins_run, loops.Block((*_move(assembly, source, target, length), *next_run))),
        loops.Set(length, plus(length, count)),
        loops.Set(total, plus(total, count)),
        assembly.put_count(row, total),
        assembly.check_positions(),
    ]
    declared = [loops.Declare(var, ZERO, True) for var in (source, target, length, total)]
    gather = loops.For(row, ZERO, assembly.row_count(), loops.Block(tuple(body)))
    return [*declared, gather, *_move(assembly, source, target, length)]


def _move(assembly: Assembly, source: loops.Var, target: loops.Var, length: loops.Var) -> Lowered:
    """Moves `length` entries down; the first ones first, since both ranges may overlap."""
    facts = assembly.facts
    values, coordinates = f"{assembly.name}_vals", assembly.coordinates
    copies: Lowered = []
    for buffer, dtype in (
        (coordinates, facts.index_dtype(coordinates)),
        (values, assembly.declaration.dtype),
    ):
        lanes = max(1, facts.vector_bytes // BYTES[dtype]) if dtype in WHOLE else 1
        copies += _copied(assembly, buffer, loops.Type(dtype, lanes), source, target, length)
    return [loops.If(compare("lt", target, source), loops.Block(tuple(copies)))]


def _copied(
    assembly: Assembly, buffer: str, kind: loops.Type, source: loops.Var, target: loops.Var, length: loops.Var
) -> Lowered:
    """Copies `length` entries of an array, a vector at a time; the remainder one by one."""
    last, place = (assembly.fresh_int(name) for name in (f"{buffer}_last", f"p{buffer}"))

    def move(type_: loops.Type) -> loops.Stmt:
        return loops.Store(buffer, plus(target, place), loops.Load(buffer, plus(source, place), type_))

    if kind.lanes == 1:
        return [loops.For(place, ZERO, length, move(kind))]
    size = integer(kind.lanes)
    return [
        loops.Declare(last, times(quotient(length, size), size)),
        loops.For(place, ZERO, last, move(kind), kind.lanes),
        loops.For(place, last, length, move(loops.Type(kind.dtype))),
    ]
