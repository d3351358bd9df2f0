"""Transposed tiles: a nest with reads along one index and writes along another, through registers.

In: `transpose t n in Y` on `forall t: forall n: Y[t,n] = W[n,t]`. Out: `lanes` loads along `t`, one transposition,
`lanes` stores along `n`; the edges are copied entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import (
    ONE,
    compare,
    constant,
    integer,
    minus,
    plus,
    quotient,
    smaller,
    times,
)
from sparsify.compiler.loops.lower.context import Context
from sparsify.compiler.loops.lower.environment import (
    Coordinate,
    Environment,
    LaneContext,
    Lowered,
    Range,
    scalar,
)
from sparsify.compiler.loops.lower.iterate.bind import bind, range_of
from sparsify.compiler.loops.lower.iterate.ranges import Strip, serial, strips
from sparsify.compiler.loops.lower.values.access import lanes_in_use, position_of
from sparsify.compiler.loops.lower.values.temporary_places import has_room
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError


def transposed(context: Context, loop: notation.Forall, env: Environment) -> Lowered:
    """Square tiles of the loop variable and of the directly nested vector loop."""
    inner = loop.body
    is_nest = isinstance(inner, notation.Forall) and isinstance(inner.kind, notation.Vector)
    if not isinstance(inner, notation.Forall) or not is_nest or not isinstance(inner.body, Assign):
        raise ScheduleError(
            f"transpose {loop.index}: not right around a vector loop", "order the two loops innermost"
        )
    if env.lane is not None:
        raise ScheduleError(f"transpose {loop.index} inside vector {env.lane.index}", "vector one of them")
    lanes = context.lanes
    if lanes == 1:
        return serial(context, replace(loop, kind=notation.Serial()), env)
    in_memory = not any(access.tensor in context.in_registers for access in find(inner.body, Access))
    rows = _cut(context, loop.index, range_of(context, loop.index, loop.body, env), in_memory)
    columns = _cut(context, inner.index, range_of(context, inner.index, inner.body, env), in_memory)

    def strip(row: loops.Expr, height: loops.Expr | None) -> Lowered:
        def tile(column: loops.Expr, width: loops.Expr | None) -> Lowered:
            return _tile(context, loop, inner, _Corner(row, height, column, width, lanes), env)

        return _strips(context, inner.index, columns, tile)

    lowered = [*rows.declared, *columns.declared, *_strips(context, loop.index, rows, strip)]
    if rows.rest is not None:
        lowered += _entries(context, loop, inner, rows.rest, columns.whole, env)
    if columns.rest is not None:
        lowered += _entries(context, loop, inner, rows.all, columns.rest, env)
    return lowered


@dataclass(frozen=True, slots=True)
class _Cut:
    """A range in whole strips and the few iterations after them; no rest if cut strips are masked."""

    all: Range
    whole: Range
    rest: Range | None = None
    declared: tuple[loops.Stmt, ...] = ()


def _cut(context: Context, index: str, reach: Range, in_memory: bool) -> _Cut:
    """The strips of a range; no rest for registers, as elements of registers cannot be indexed one by one."""
    if not in_memory or (reach.bound is not None and not reach.exact):
        return _Cut(reach, reach)
    extent = minus(reach.end, reach.begin) if reach.bound is None else integer(reach.bound)
    lanes, count = integer(context.lanes), constant(extent)
    last = plus(reach.begin, times(quotient(extent, lanes), lanes))
    if count is not None:
        rest = Range(last, reach.end) if count % context.lanes else None
        return _Cut(reach, Range(reach.begin, last, count // context.lanes * context.lanes, True), rest)
    end = context.fresh_int(f"{index}_rest")
    return _Cut(reach, Range(reach.begin, end), Range(end, reach.end), (loops.Declare(end, last),))


def _entries(
    context: Context,
    loop: notation.Forall,
    inner: notation.Forall,
    rows: Range,
    columns: Range,
    env: Environment,
) -> Lowered:
    """The assignment entry by entry: short code for the small remainder."""
    env = env.with_range(loop.index, rows).with_range(inner.index, columns)
    nest = replace(loop, kind=notation.Serial(), body=replace(inner, kind=notation.Serial()))
    return serial(context, nest, env)


def _strips(context: Context, index: str, cut: _Cut, body: Strip) -> Lowered:
    """Whole strips and, for masked strips, a rest; in a (rare) cut tile all strips are emitted once, as the rest."""
    reach, lanes = cut.whole, context.lanes
    var = context.fresh_int(index)
    if cut.rest is not None and constant(minus(reach.end, reach.begin)) == 0:
        return []
    if cut.rest is not None:
        return [loops.For(var, reach.begin, reach.end, loops.Block(tuple(body(var, None))), lanes)]
    if reach.exact or reach.bound is None or reach.bound <= lanes:
        return strips(context, index, reach, lanes, body)
    left = context.fresh_int(f"{index}_left")
    masked = loops.Block((loops.Declare(left, minus(reach.end, var)), *body(var, left)))
    return [loops.For(var, reach.begin, reach.end, masked, lanes)]


@dataclass(frozen=True, slots=True)
class _Corner:
    """A square tile: first row and column, and the numbers of rows and columns (`None`: all)."""

    row: loops.Expr
    rows: loops.Expr | None
    column: loops.Expr
    columns: loops.Expr | None
    lanes: int


def _tile(
    context: Context, loop: notation.Forall, inner: notation.Forall, tile: _Corner, env: Environment
) -> Lowered:
    """Loads along the rows, the transposition, then the assignment row by row."""
    assign = inner.body
    assert isinstance(assign, Assign)
    lowered: Lowered = []
    outputs: dict[Access, list[loops.Var]] = {}
    for access in dict.fromkeys(find(assign.value, Access)):
        if not _reads_rows(context, loop, inner, access, tile, env):
            continue
        kind = loops.Type(context.dtype(access.tensor), tile.lanes)
        inputs = [
            _load_row(context, loop, inner, access, tile, lane, kind, env) for lane in range(tile.lanes)
        ]
        outputs[access] = [loops.Var(context.fresh(f"{access.tensor}_row"), kind) for _ in range(tile.lanes)]
        lowered.append(loops.Transpose(tuple(outputs[access]), tuple(inputs)))
    room = _has_room_for_rows(context, loop, assign, outputs, tile)
    for row in range(tile.lanes):
        bound, row_env = bind(context, loop.index, scalar(plus(tile.row, integer(row))), loop.body, env)
        row_env = replace(row_env, lane=LaneContext(inner.index, tile.lanes, tile.columns))
        more, row_env = bind(context, inner.index, Coordinate(tile.column, ONE), inner.body, row_env)
        context.transposed = {access: rows[row] for access, rows in outputs.items()}
        body = [*bound, *more, *context.statement(assign, row_env)]
        context.transposed = {}
        if tile.rows is not None and not room:
            body = [loops.If(compare("lt", integer(row), tile.rows), loops.Block(tuple(body)))]
        lowered += body
    return lowered


def _has_room_for_rows(
    context: Context,
    loop: notation.Forall,
    assign: Assign,
    transposed: dict[Access, list[loops.Var]],
    tile: _Corner,
) -> bool:
    """Whether rows past the last one may be written too: into a temporary, with no other operand read for the rows."""
    read = set(find(assign.value, Access))
    return read <= set(transposed) and has_room(context, assign.target.tensor, loop.index, tile.lanes)


def _along_rows(
    context: Context,
    loop: notation.Forall,
    inner: notation.Forall,
    column: loops.Expr,
    tile: _Corner,
    env: Environment,
) -> Environment:
    """The environment with the rows in the lanes and one column."""
    env = replace(env, lane=LaneContext(loop.index, tile.lanes, tile.rows))
    _, env = bind(context, loop.index, Coordinate(tile.row, ONE), loop.body, env)
    _, env = bind(context, inner.index, scalar(column), inner.body, env)
    return env


def _reads_rows(
    context: Context,
    loop: notation.Forall,
    inner: notation.Forall,
    access: Access,
    tile: _Corner,
    env: Environment,
) -> bool:
    """Whether consecutive rows are consecutive in memory, without masks (vectors of bool are gathered)."""
    if access.tensor in env.registers or context.dtype(access.tensor) == "bool":
        return False
    _, position = position_of(context, access, _along_rows(context, loop, inner, tile.column, tile, env))
    return position.vector is None and position.step == ONE


def _load_row(
    context: Context,
    loop: notation.Forall,
    inner: notation.Forall,
    access: Access,
    tile: _Corner,
    lane: int,
    kind: loops.Type,
    env: Environment,
) -> loops.Expr:
    """The vector along the rows at column `lane` of the tile; lanes past the last column repeat the last column."""
    last = integer(lane) if tile.columns is None else minus(tile.columns, ONE)
    column = plus(tile.column, smaller(integer(lane), last) if lane else integer(0))
    env = _along_rows(context, loop, inner, column, tile, env)
    buffer, position = position_of(context, access, env)
    return loops.Load(buffer, position.start, kind, lanes_in_use(context, access, env))
