"""Sparse results with an unknown pattern: a counting phase, allocation, a filling phase.

In: `C[i,j] = A[i,j] + B[i,j]` with C stored `dcsr`. Out: the merge twice, first counting entries, then, behind
allocated arrays, writing coordinates and values. Rows bounded by their operands are written at once
(`upper_bound.py`).

Source: Chou, Kjolstad and Amarasinghe, Automatic Generation of Efficient Sparse Tensor Format Conversion
Routines, 2020 (append, edge insertion); phases as in two-pass SpGEMM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration
from sparsify.compiler.ir.node import find
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, compare, convert, integer, plus, product
from sparsify.compiler.loops.lower import temporaries
from sparsify.compiler.loops.lower.assemble import (
    bitset_workspace,
    dropped,
    hash_workspace,
    parts,
    repeated,
    upper_bound,
)
from sparsify.compiler.loops.lower.environment import Environment
from sparsify.compiler.loops.lower.level_access import level_variable
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.provenance import Provenance
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError

if TYPE_CHECKING:
    from sparsify.compiler.loops.lower.lowering import Lowering

Lowered = list[loops.Stmt]
POSITION_OVERFLOW = 2
LARGEST = {"int16": 2**15 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1}


def is_assembled(declaration: Declaration) -> bool:
    """Whether the kernel computes the pattern of a result."""
    return declaration.is_assembled


def phases(low: Lowering, names: list[str]) -> Lowered:
    """The whole kernel body: count, allocate, fill."""
    if len(names) > 1:
        raise UnsupportedProgramError(
            f"the patterns of {' and '.join(names)} are not known", "one such result"
        )
    others = [name for name in low.program.outputs if name not in names]
    if others:
        raise UnsupportedProgramError(
            f"{', '.join(others)} in one kernel with {names[0]}, whose pattern is not known",
            "compile the program without a schedule for all of it",
        )
    assembly = Assembly(low, names[0])
    low.assembly = assembly
    if bitset_workspace.is_marked(low):
        lowered = bitset_workspace.phases(low, assembly)
        low.assembly = None
        return lowered
    assembly.bounds = upper_bound.bounding(assembly, loops_around(low.program.body, names[0])[-1])
    if assembly.bounds:
        assembly.is_running = True
        lowered = upper_bound.phases(assembly)
        low.assembly = None
        return lowered
    lowered = dropped.phases(assembly) if dropped.is_known_by_rows(assembly) else assembly.counted()
    low.assembly = None
    return lowered


def loops_around(node: notation.Statement | Assign, name: str) -> list[notation.Forall]:
    """The loops around the assignment to tensor `name`, outermost first."""
    match node:
        case notation.Forall(body=body):
            return [node, *loops_around(body, name)]
        case notation.Let(body=body) | notation.If(body=body):
            return loops_around(body, name)
        case notation.Sequence(statements=statements):
            writing = (s for s in statements for n in find(s, Assign) if n.target.tensor == name)
            return loops_around(next(writing), name)
    return []


class Assembly:
    """The result under construction: the current phase, and the next free position of each level.

    With dense levels above one compressed level, rows are independent: each writes its count into `pos`,
    followed by a prefix sum. Otherwise entries are appended in order, one counter a level; threads append to parts of
    the outermost level, counted before (`parts.py`).
    """

    def __init__(self, low: Lowering, name: str) -> None:
        self.low, self.name, self.filling, self.phase = low, name, False, ""
        self.declaration = low.declaration(name)
        self.levels = self.declaration.format.levels
        kinds = [stored.level for stored in self.levels]
        self.target = next(n.target for n in find(low.program.body, Assign) if n.target.tensor == name)
        self.variables = [level_variable(low, self.target, stored) for stored in self.levels]
        above = kinds[:-1]
        segments = [kind.can_append and not kind.is_branchless for kind in kinds]
        self.by_rows = segments[-1] and bool(above) and all(kind.is_full for kind in above)
        self.repeating = segments[0] and len(kinds) > 1 and all(kind.is_branchless for kind in kinds[1:])
        is_known = self.by_rows or self.repeating or all(segments)
        if not is_known or not self.declaration.format.is_short:
            raise UnsupportedProgramError(
                f"a result stored {self.declaration.format} of unknown pattern", "csr, csc, dcsr, csf or coo"
            )
        if any(n.monoid for n in find(low.program.body, Assign) if n.target.tensor == name):
            raise UnsupportedProgramError(
                f"a sum into {name}, stored {self.declaration.format}, whose pattern is not known",
                "ask for a dense result with format=",
            )
        outermost = loops_around(low.program.body, name)[:1]
        is_parallel = any(isinstance(loop.kind, notation.Parallel) for loop in outermost)
        self.by_parts = is_parallel and not self.by_rows
        self._check_loops()
        self.bounds: tuple[str, ...] = ()
        self.is_running = False
        self.keeps_workspace = False
        self.first: loops.Var = loops.Var(low.fresh(f"{name}_begin"), loops.INT)
        self.total: loops.Var = loops.Var("", loops.INT)
        self.place: loops.Expr = ZERO
        self.totals: list[loops.Var] = []
        last = len(self.levels) - 1
        self.counters = [
            loops.Var(low.fresh(f"{name}{level + 1}_next"), loops.INT) for level in range(last + 1)
        ]
        self.starts = [
            loops.Var(low.fresh(f"{name}{level + 1}_first"), loops.INT) for level in range(last + 1)
        ]

    @property
    def coordinates(self) -> str:
        """The coordinates of the last level."""
        return self._buffer(len(self.levels) - 1, "crd")

    def read_coordinate(self, place: loops.Expr) -> loops.Expr:
        """The coordinate of the last level at a position."""
        return self.read(self.coordinates, place)

    def put_coordinate(self, place: loops.Expr, coordinate: loops.Expr) -> loops.Stmt:
        """Stores the coordinate of the last level at a position."""
        return self._put(len(self.levels) - 1, "crd", place, coordinate)

    def position(self, row: loops.Expr) -> loops.Expr:
        """Start of a row once the positions are known."""
        return self._read_pos(len(self.levels) - 1, row)

    def put_count(self, row: loops.Expr, count: loops.Expr) -> loops.Stmt:
        """Stores the number of entries of a row, or its end."""
        return self._put(len(self.levels) - 1, "pos", plus(row, ONE), count)

    def lowered_body(self) -> Lowered:
        """The whole program in the current phase."""
        self.filling = self.phase in (bitset_workspace.FILL, bitset_workspace.VALUES)
        self.is_running = self.phase == bitset_workspace.FILL
        self.first = loops.Var(self.low.fresh(self.first.name), loops.INT)
        self.counters[-1] = loops.Var(self.low.fresh(self.counters[-1].name), loops.INT)
        return self.low.located(self.low.program.body, Environment())

    def counted(self) -> Lowered:
        """Two phases: counts the entries, allocates the arrays, then writes the entries."""
        low = self.low
        if (whole := hash_workspace.around_all(low.program.body)) is not None:
            return self._counted_once(*whole)
        counted = low.located(low.program.body, Environment())
        allocated = self.allocate()
        self.filling = True
        filled = low.located(low.program.body, Environment())
        return [*self.before(), *counted, *allocated, *filled, *self.close()]

    def _counted_once(
        self, let: notation.Let, made: notation.Statement | Assign, read: notation.Statement | Assign
    ) -> Lowered:
        """Fills a workspace of the whole kernel once; the entries are counted, then written."""
        low, env = self.low, Environment()
        self.keeps_workspace = True
        opened = temporaries.listed(low, let, let.temporaries[0])
        summed, counted = low.located(made, env), low.located(read, env)
        allocated = self.allocate()
        self.filling = True
        filled = low.located(read, env)
        closed = hash_workspace.end(low, let.temporaries[0])
        return [*opened, *summed, *self.before(), *counted, *allocated, *filled, *closed, *self.close()]

    def renew(self) -> None:
        """Resets to the state before the first phase, with fresh variables."""
        self.filling = self.is_running = False
        self.first = loops.Var(self.low.fresh(self.first.name), loops.INT)
        self.renew_counters()

    def renew_counters(self) -> None:
        """Fresh counter variables."""
        self.counters = [loops.Var(self.low.fresh(counter.name), loops.INT) for counter in self.counters]

    def _check_loops(self) -> None:
        """Checks that entries are appended in order: the loops around must be the loops of the levels, in level order.

        Raises:
            DiscordantError: another order.
            ScheduleError: a loop with unordered iterations, or a loop over no level.
        """
        found = loops_around(self.low.program.body, self.name)
        by_position = next((loop.index for loop in found if loop.index in self.low.positions), None)
        if by_position is not None:
            raise ScheduleError(
                f"{self.target} is appended by coordinates, and {by_position} runs over positions", "no `pos`"
            )
        names = [loop.index for loop in found]
        if sorted(names) != sorted(self.variables):
            raise ScheduleError(
                f"{self.target} is written in loops over {', '.join(names)}, stored in levels of "
                f"{', '.join(self.variables)}",
                "a loop for each level of a result whose pattern is not known",
            )
        if names != self.variables:
            raise DiscordantError(
                f"{self.target} stored {self.declaration.format}", f"the loop order {', '.join(names)}"
            )
        for number, loop in enumerate(found):
            may_be_parallel = number < len(found) - 1 if self.by_rows else number == 0
            if isinstance(loop.kind, notation.Serial) or (
                may_be_parallel and isinstance(loop.kind, notation.Parallel)
            ):
                continue
            raise ScheduleError(
                f"the loop over {loop.index} is {type(loop.kind).__name__.lower()}, and entries of {self.name} are "
                f"appended in it one after the other",
                "a plain loop",
            )

    def _buffer(self, level: int, array: str) -> str:
        return f"{self.name}{level + 1}_{array}"

    def _put(self, level: int, array: str, index: loops.Expr, value: loops.Expr) -> loops.Stmt:
        """`crd[index] = value` in the dtype of the array."""
        buffer = self._buffer(level, array)
        dtype = self.low.index_dtype(buffer)
        stored = value if dtype == "int64" else loops.Convert(value, loops.Type(dtype))
        return loops.Store(buffer, index, stored)

    def row_count(self) -> loops.Expr:
        """The number of rows of the dense levels."""
        modes = [stored.expression.mode for stored in self.levels[:-1]]
        return product([self.low.extent(self.declaration.extents[mode]) for mode in modes])

    def row_room(self) -> loops.Expr:
        """The number of coordinates of a row."""
        return self.low.bound(self.variables[-1])

    def whole_room(self) -> loops.Expr:
        """The number of coordinates of all rows."""
        return product([self.row_count(), self.row_room()])

    def _allocate(self, level: int, array: str, count: loops.Expr) -> loops.Stmt:
        buffer = self._buffer(level, array)
        return loops.AllocateOutput(buffer, self.low.index_dtype(buffer), count)

    def allocate_values(self, count: loops.Expr) -> loops.Stmt:
        """Allocates `count` values of the result."""
        return loops.AllocateOutput(f"{self.name}_vals", self.declaration.dtype, count)

    def before(self) -> Lowered:
        """Declarations of the counting phase."""
        if self.by_parts:
            return parts.memory(self)
        if not self.by_rows:
            return [loops.Declare(counter, ZERO, True) for counter in self.counters]
        return [loops.Comment("count the entries of each row"), *self.allocate_positions()]

    def allocate_positions(self) -> Lowered:
        """The positions of rows, all empty."""
        last, rows = len(self.levels) - 1, self.row_count()
        buffer = self._buffer(last, "pos")
        nothing = loops.Literal(0, loops.Type(self.low.index_dtype(buffer)))
        return [
            self._allocate(last, "pos", plus(rows, ONE)),
            loops.Fill(buffer, ZERO, plus(rows, ONE), nothing),
        ]

    def allocate_entries(self, count: loops.Expr) -> Lowered:
        """Allocates the coordinates of the last level, and the values."""
        return [self._allocate(len(self.levels) - 1, "crd", count), self.allocate_values(count)]

    def allocate(self) -> Lowered:
        """Between the phases: prefix sums of the positions, allocation of the arrays, reset of the counters."""
        last = len(self.levels) - 1
        lowered: Lowered = [loops.Comment("allocate, then fill")]
        if self.by_rows:
            lowered += self.positions()
            self.counters[last] = loops.Var(self.low.fresh(self.counters[last].name), loops.INT)
        else:
            if self.by_parts:
                lowered += parts.sum_up(self)
            self.total = self.counters[last]
            lowered += self._allocate_levels()
        lowered.append(self.allocate_values(self.total))
        if self.by_parts:
            self.totals = self.counters
            self.renew_counters()
        elif not self.by_rows:
            lowered += [loops.Set(counter, ZERO) for counter in self.counters]
        return lowered

    def positions(self) -> Lowered:
        """Prefix sum of the row counts, `total` at the end, and allocation of the coordinates."""
        last = len(self.levels) - 1
        total = self.total = loops.Var(self.low.fresh(f"{self.name}_total"), loops.INT)
        row = loops.Var(self.low.fresh(f"{self.name}_row"), loops.INT)
        count = self._read_pos(last, plus(row, ONE))
        sum_up = loops.Block(
            (loops.Set(total, plus(total, count)), self._put(last, "pos", plus(row, ONE), total))
        )
        guarded = loops.Block((sum_up, self.check_positions()))
        return [
            loops.Declare(total, ZERO, True),
            loops.For(row, ZERO, self.row_count(), guarded),
            self._allocate(last, "crd", total),
        ]

    def check_positions(self) -> loops.Stmt:
        """Ends the kernel if the running sum of the rows exceeds the range of the positions."""
        largest = LARGEST[self.low.index_dtype(self._buffer(len(self.levels) - 1, "pos"))]
        return loops.If(compare("gt", self.total, integer(largest)), loops.Return(POSITION_OVERFLOW))

    def _read_pos(self, level: int, index: loops.Expr) -> loops.Expr:
        return self.read(self._buffer(level, "pos"), index)

    def read(self, buffer: str, index: loops.Expr) -> loops.Expr:
        """An entry of an array as int64."""
        value = loops.Load(buffer, index, loops.Type(self.low.index_dtype(buffer)))
        return value if self.low.index_dtype(buffer) == "int64" else loops.Convert(value, loops.INT)

    def _allocate_levels(self) -> Lowered:
        """The arrays of appended levels."""
        last = len(self.levels) - 1
        limit = compare(
            "gt", self.counters[last], integer(LARGEST[self.low.index_dtype(self._buffer(0, "pos"))])
        )
        lowered: Lowered = [loops.If(limit, loops.Return(POSITION_OVERFLOW))]
        for level, stored in enumerate(self.levels):
            counter = self.counters[last] if self.repeating else self.counters[level]
            if not stored.level.is_branchless:
                parents = ONE if level == 0 else self.counters[level - 1]
                lowered.append(self._allocate(level, "pos", plus(parents, ONE)))
                lowered.append(self._put(level, "pos", ZERO, ZERO))
            lowered.append(self._allocate(level, "crd", counter))
        return lowered

    def append(self, target: Access, value: loops.Expr, env: Environment) -> Lowered:
        """Appends the entry at the current coordinates."""
        if self.phase in (bitset_workspace.FILL, bitset_workspace.VALUES):
            return [loops.Store(f"{self.name}_vals", self.place, convert(value, self.declaration.dtype))]
        if self.declaration.drops:
            found = loops.Var(self.low.fresh(f"{self.name}_entry"), loops.type_of(value))
            entry = self._entry(found, env)
            return [loops.Declare(found, value), *dropped.kept(self, found, entry)]
        return self._entry(value, env)

    def _entry(self, value: loops.Expr, env: Environment) -> Lowered:
        """Stores or counts an entry, and advances the position."""
        last = len(self.levels) - 1
        counter = self.counters[last]
        step = loops.Set(counter, plus(counter, ONE))
        if not self.filling:
            return [step]
        levels = range(len(self.levels)) if self.repeating else [last]
        coordinates = [env.coordinates[self.variables[level]].start for level in levels]
        puts = [self._put(level, "crd", counter, c) for level, c in zip(levels, coordinates, strict=True)]
        return [
            *puts,
            loops.Store(f"{self.name}_vals", counter, convert(value, self.declaration.dtype)),
            step,
        ]

    def check_parallel(self, loop: notation.Forall) -> None:
        """Refuses threads that append to the same level: only rows of dense levels are independent."""
        rows = {
            leaf
            for name in self.variables[:-1]
            for leaf in Provenance(self.low.program.relations).leaves(name)
        }
        if self.by_parts and loop.index == self.variables[0]:
            return
        if not self.by_rows or loop.index not in rows:
            raise ScheduleError(
                f"`parallel {loop.index}`: the entries of {self.name}, stored {self.declaration.format}, are "
                "appended in order",
                "a serial loop, or a dense level above the compressed one",
            )

    def around(self, loop: notation.Forall, body: Lowered, env: Environment) -> Lowered:
        """Statements before and after the entries below one coordinate of a loop's variable."""
        if not body or self.repeating or loop.index not in self.variables[:-1]:
            return body
        if not any(n.target.tensor == self.name for n in find(loop, Assign)):
            return body  # for a temporary computed before
        level = self.variables.index(loop.index)
        if not self.by_rows:
            return self._around_parent(level, body, env)
        if level != len(self.levels) - 2:
            return body
        return self._around_row(repeated.rows(self, loop, body, env) if self.phase else body, env)

    def _around_row(self, body: Lowered, env: Environment) -> Lowered:
        """Starts a row at its position and, while counting, stores the number of entries."""
        last, row = len(self.levels) - 1, self.row(env)
        if self.phase == bitset_workspace.VALUES:
            return body
        if self.is_running:
            return upper_bound.around_row(self, body, env)
        counter = self.counters[last]
        if self.phase:
            return [loops.Declare(counter, ZERO, True), *body, upper_bound.put_room(self, row, counter)]
        if self.filling:
            return [loops.Declare(counter, self._read_pos(last, row), True), *body]
        return [loops.Declare(counter, ZERO, True), *body, self._put(last, "pos", plus(row, ONE), counter)]

    def row(self, env: Environment) -> loops.Expr:
        """The number of the current row."""
        row: loops.Expr = ZERO
        for level in range(len(self.levels) - 1):
            extent = self.low.extent(self.declaration.extents[self.levels[level].expression.mode])
            row = plus(
                loops.Op("mul", (row, extent), loops.INT) if row != ZERO else ZERO,
                env.coordinates[self.variables[level]].start,
            )
        return row

    def row_range(self, env: Environment) -> tuple[loops.Expr, loops.Expr]:
        """The positions of the current row, if known or already filled."""
        if self.is_running:
            return self.first, self.counters[-1]
        row = self.row(env)
        return self.position(row), self.position(plus(row, ONE))

    def _around_parent(self, level: int, body: Lowered, env: Environment) -> Lowered:
        """Appends a coordinate to a level if the level below gained entries."""
        below, counter, first = self.counters[level + 1], self.counters[level], self.starts[level + 1]
        start = loops.Var(self.low.fresh(first.name), loops.INT)
        then: Lowered = []
        if self.filling:
            then.append(self._put(level, "crd", counter, env.coordinates[self.variables[level]].start))
            then.append(self._put(level + 1, "pos", plus(counter, ONE), below))
        then.append(loops.Set(counter, plus(counter, ONE)))
        added = loops.If(compare("gt", below, start), loops.Block(tuple(then)))
        return [loops.Declare(start, below), *body, added]

    def close(self) -> Lowered:
        """Stores the end of the outermost level."""
        if self.by_rows:
            return []
        counters = self.totals if self.by_parts else self.counters
        return [self._put(0, "pos", ONE, counters[-1] if self.repeating else counters[0])]
