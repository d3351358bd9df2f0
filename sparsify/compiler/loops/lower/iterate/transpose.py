"""Transposed tiles: a nest with reads along one index and writes along another, through registers.

In: `transpose t n in Y` on `forall t: forall n: Y[t,n] = W[n,t]`. Out: `lanes` loads along `t`, one transposition,
`lanes` stores along `n`; the edges are copied entry by entry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
from sparsify.compiler.loops.lower.access import lanes_in_use, position_of
from sparsify.compiler.loops.lower.environment import Coordinate, Environment, LaneContext, Range, scalar
from sparsify.compiler.loops.lower.iterate import ranges
from sparsify.compiler.loops.lower.temporary_places import has_room
from sparsify.compiler.notation import nodes as notation
from sparsify.errors import ScheduleError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]


def transposed(low: Lowering, loop: notation.Forall, env: Environment) -> Lowered:
    """Square tiles of the loop variable and of the directly nested vector loop."""
    inner = loop.body
    is_nest = isinstance(inner, notation.Forall) and isinstance(inner.kind, notation.Vector)
    if not isinstance(inner, notation.Forall) or not is_nest or not isinstance(inner.body, Assign):
        raise ScheduleError(
            f"transpose {loop.index}: not right around a vector loop", "order the two loops innermost"
        )
    if env.lane is not None:
        raise ScheduleError(f"transpose {loop.index} inside vector {env.lane.index}", "vector one of them")
    lanes = low.lanes
    if lanes == 1:
        return ranges.serial(low, replace(loop, kind=notation.Serial()), env)
    in_memory = not any(access.tensor in low.in_registers for access in find(inner.body, Access))
    rows = _cut(low, loop.index, ranges.range_of(low, loop.index, loop.body, env), in_memory)
    columns = _cut(low, inner.index, ranges.range_of(low, inner.index, inner.body, env), in_memory)

    def strip(row: loops.Expr, height: loops.Expr | None) -> Lowered:
        def tile(column: loops.Expr, width: loops.Expr | None) -> Lowered:
            return _tile(low, loop, inner, _Corner(row, height, column, width, lanes), env)

        return _strips(low, inner.index, columns, tile)

    lowered = [*rows.declared, *columns.declared, *_strips(low, loop.index, rows, strip)]
    if rows.rest is not None:
        lowered += _entries(low, loop, inner, rows.rest, columns.whole, env)
    if columns.rest is not None:
        lowered += _entries(low, loop, inner, rows.all, columns.rest, env)
    return lowered


@dataclass(frozen=True, slots=True)
class _Cut:
    """A range in whole strips and the few iterations after them; no rest if cut strips are masked."""

    all: Range
    whole: Range
    rest: Range | None = None
    declared: tuple[loops.Stmt, ...] = ()


def _cut(low: Lowering, index: str, reach: Range, in_memory: bool) -> _Cut:
    """The strips of a range; no rest for registers, as elements of registers cannot be indexed one by one."""
    if not in_memory or (reach.bound is not None and not reach.exact):
        return _Cut(reach, reach)
    extent = minus(reach.end, reach.begin) if reach.bound is None else integer(reach.bound)
    lanes, count = integer(low.lanes), constant(extent)
    last = plus(reach.begin, times(quotient(extent, lanes), lanes))
    if count is not None:
        rest = Range(last, reach.end) if count % low.lanes else None
        return _Cut(reach, Range(reach.begin, last, count // low.lanes * low.lanes, True), rest)
    end = loops.Var(low.fresh(f"{index}_rest"), loops.INT)
    return _Cut(reach, Range(reach.begin, end), Range(end, reach.end), (loops.Declare(end, last),))


def _entries(
    low: Lowering,
    loop: notation.Forall,
    inner: notation.Forall,
    rows: Range,
    columns: Range,
    env: Environment,
) -> Lowered:
    """The assignment entry by entry: short code for the small remainder."""
    env = env.with_range(loop.index, rows).with_range(inner.index, columns)
    serial = replace(inner, kind=notation.Serial())
    return ranges.serial(low, replace(loop, kind=notation.Serial(), body=serial), env)


def _strips(low: Lowering, index: str, cut: _Cut, body: ranges.Strip) -> Lowered:
    """Whole strips and, for masked strips, a rest; in a (rare) cut tile all strips are emitted once, as the rest."""
    reach, lanes = cut.whole, low.lanes
    var = loops.Var(low.fresh(index), loops.INT)
    if cut.rest is not None and constant(minus(reach.end, reach.begin)) == 0:
        return []
    if cut.rest is not None:
        return [loops.For(var, reach.begin, reach.end, loops.Block(tuple(body(var, None))), lanes)]
    if reach.exact or reach.bound is None or reach.bound <= lanes:
        return ranges.strips(low, index, reach, lanes, body)
    left = loops.Var(low.fresh(f"{index}_left"), loops.INT)
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
    low: Lowering, loop: notation.Forall, inner: notation.Forall, tile: _Corner, env: Environment
) -> Lowered:
    """Loads along the rows, the transposition, then the assignment row by row."""
    assign = inner.body
    assert isinstance(assign, Assign)
    lowered: Lowered = []
    outputs: dict[Access, list[loops.Var]] = {}
    for access in dict.fromkeys(find(assign.value, Access)):
        if not _reads_rows(low, loop, inner, access, tile, env):
            continue
        kind = loops.Type(low.dtype(access.tensor), tile.lanes)
        inputs = [_load_row(low, loop, inner, access, tile, lane, kind, env) for lane in range(tile.lanes)]
        outputs[access] = [loops.Var(low.fresh(f"{access.tensor}_row"), kind) for _ in range(tile.lanes)]
        lowered.append(loops.Transpose(tuple(outputs[access]), tuple(inputs)))
    room = _has_room_for_rows(low, loop, assign, outputs, tile)
    for row in range(tile.lanes):
        bound, row_env = ranges.bind(low, loop.index, scalar(plus(tile.row, integer(row))), loop.body, env)
        row_env = replace(row_env, lane=LaneContext(inner.index, tile.lanes, tile.columns))
        more, row_env = ranges.bind(low, inner.index, Coordinate(tile.column, ONE), inner.body, row_env)
        low.transposed = {access: rows[row] for access, rows in outputs.items()}
        body = [*bound, *more, *low.statement(assign, row_env)]
        low.transposed = {}
        if tile.rows is not None and not room:
            body = [loops.If(compare("lt", integer(row), tile.rows), loops.Block(tuple(body)))]
        lowered += body
    return lowered


def _has_room_for_rows(
    low: Lowering,
    loop: notation.Forall,
    assign: Assign,
    transposed: dict[Access, list[loops.Var]],
    tile: _Corner,
) -> bool:
    """Whether rows past the last one may be written too: into a temporary, with no other operand read for the rows."""
    read = set(find(assign.value, Access))
    return read <= set(transposed) and has_room(low, assign.target.tensor, loop.index, tile.lanes)


def _along_rows(
    low: Lowering,
    loop: notation.Forall,
    inner: notation.Forall,
    column: loops.Expr,
    tile: _Corner,
    env: Environment,
) -> Environment:
    """The environment with the rows in the lanes and one column."""
    env = replace(env, lane=LaneContext(loop.index, tile.lanes, tile.rows))
    _, env = ranges.bind(low, loop.index, Coordinate(tile.row, ONE), loop.body, env)
    _, env = ranges.bind(low, inner.index, scalar(column), inner.body, env)
    return env


def _reads_rows(
    low: Lowering,
    loop: notation.Forall,
    inner: notation.Forall,
    access: Access,
    tile: _Corner,
    env: Environment,
) -> bool:
    """Whether consecutive rows are consecutive in memory, without masks (vectors of bool are gathered)."""
    if access.tensor in env.registers or low.dtype(access.tensor) == "bool":
        return False
    _, position = position_of(low, access, _along_rows(low, loop, inner, tile.column, tile, env))
    return position.vector is None and position.step == ONE


def _load_row(
    low: Lowering,
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
    env = _along_rows(low, loop, inner, column, tile, env)
    buffer, position = position_of(low, access, env)
    return loops.Load(buffer, position.start, kind, lanes_in_use(low, access, env))
