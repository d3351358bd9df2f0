"""The result under construction, with an unknown pattern: arrays, positions of rows, the next free place of each level.

In: `C[i,j]` stored csr. Out: `C2_pos[i + 1] = count`, a prefix sum of the counts, and arrays of the total length.

Source: Chou, Kjolstad and Amarasinghe, Automatic Generation of Efficient Sparse Tensor Format Conversion
Routines, 2020 (append, edge insertion).
"""

from __future__ import annotations

from collections.abc import Callable

from sparsify.compiler.einsum.nodes import Assign
from sparsify.compiler.ir.node import find
from sparsify.compiler.ir.status import POSITION_OVERFLOW
from sparsify.compiler.loops import nodes as loops
from sparsify.compiler.loops.arithmetic import ONE, ZERO, compare, integer, plus, product
from sparsify.compiler.loops.lower.environment import Environment, Lowered
from sparsify.compiler.loops.lower.program_facts import ProgramFacts
from sparsify.compiler.notation import nodes as notation
from sparsify.compiler.notation.provenance import Provenance
from sparsify.errors import DiscordantError, ScheduleError, UnsupportedProgramError

LARGEST = {"int16": 2**15 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1}
# Phases of results with a bitset workspace: products counted, entries counted, entries written, values alone.
BOUND, COUNT, FILL, VALUES = "bound", "count", "fill", "values"


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

    def __init__(self, facts: ProgramFacts, fresh_int: Callable[[str], loops.Var], name: str) -> None:
        self.facts, self.fresh_int, self.name, self.filling, self.phase = facts, fresh_int, name, False, ""
        self.declaration = facts.declaration(name)
        self.levels = self.declaration.format.levels
        kinds = [stored.level for stored in self.levels]
        self.target = next(n.target for n in find(facts.program.body, Assign) if n.target.tensor == name)
        self.variables = [facts.level_variable(self.target, stored) for stored in self.levels]
        above = kinds[:-1]
        segments = [kind.can_append and not kind.is_branchless for kind in kinds]
        self.by_rows = segments[-1] and bool(above) and all(kind.is_full for kind in above)
        self.repeating = segments[0] and len(kinds) > 1 and all(kind.is_branchless for kind in kinds[1:])
        is_known = self.by_rows or self.repeating or all(segments)
        if not is_known or not self.declaration.format.is_short:
            raise UnsupportedProgramError(
                f"a result stored {self.declaration.format} of unknown pattern", "csr, csc, dcsr, csf or coo"
            )
        if any(n.monoid for n in find(facts.program.body, Assign) if n.target.tensor == name):
            raise UnsupportedProgramError(
                f"a sum into {name}, stored {self.declaration.format}, whose pattern is not known",
                "ask for a dense result with format=",
            )
        outermost = loops_around(facts.program.body, name)[:1]
        is_parallel = any(isinstance(loop.kind, notation.Parallel) for loop in outermost)
        self.by_parts = is_parallel and not self.by_rows
        self._check_loops()
        self.bounds: tuple[str, ...] = ()
        self.is_running = False
        self.keeps_workspace = False
        self.first = fresh_int(f"{name}_begin")
        self.total: loops.Var = loops.Var("", loops.INT)
        self.place: loops.Expr = ZERO
        self.totals: list[loops.Var] = []
        last = len(self.levels) - 1
        self.counters = [fresh_int(f"{name}{level + 1}_next") for level in range(last + 1)]
        self.starts = [fresh_int(f"{name}{level + 1}_first") for level in range(last + 1)]

    @property
    def coordinates(self) -> str:
        """The coordinates of the last level."""
        return self._buffer(len(self.levels) - 1, "crd")

    def read_coordinate(self, place: loops.Expr) -> loops.Expr:
        """The coordinate of the last level at a position."""
        return self.read(self.coordinates, place)

    def put_coordinate(self, place: loops.Expr, coordinate: loops.Expr) -> loops.Stmt:
        """Stores the coordinate of the last level at a position."""
        return self.put(len(self.levels) - 1, "crd", place, coordinate)

    def position(self, row: loops.Expr) -> loops.Expr:
        """Start of a row once the positions are known."""
        return self.read_position(len(self.levels) - 1, row)

    def put_count(self, row: loops.Expr, count: loops.Expr) -> loops.Stmt:
        """Stores the number of entries of a row, or its end."""
        return self.put(len(self.levels) - 1, "pos", plus(row, ONE), count)

    def begin_phase(self, phase: str) -> None:
        """Starts a phase with fresh variables."""
        self.phase = phase
        self.filling = phase in (FILL, VALUES)
        self.is_running = phase == FILL
        self.first = self.fresh_int(self.first.name)
        self.counters[-1] = self.fresh_int(self.counters[-1].name)

    def renew(self) -> None:
        """Resets to the state before the first phase, with fresh variables."""
        self.filling = self.is_running = False
        self.first = self.fresh_int(self.first.name)
        self.renew_counters()

    def renew_counters(self) -> None:
        """Fresh counter variables."""
        self.counters = [self.fresh_int(counter.name) for counter in self.counters]

    def _check_loops(self) -> None:
        """Checks that entries are appended in order: the loops around must be the loops of the levels, in level order.

        Raises:
            DiscordantError: another order.
            ScheduleError: a loop with unordered iterations, or a loop over no level.
        """
        found = loops_around(self.facts.program.body, self.name)
        by_position = next((loop.index for loop in found if loop.index in self.facts.positions), None)
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

    def put(self, level: int, array: str, index: loops.Expr, value: loops.Expr) -> loops.Stmt:
        """`crd[index] = value` in the dtype of the array."""
        buffer = self._buffer(level, array)
        dtype = self.facts.index_dtype(buffer)
        stored = value if dtype == "int64" else loops.Convert(value, loops.Type(dtype))
        return loops.Store(buffer, index, stored)

    def row_count(self) -> loops.Expr:
        """The number of rows of the dense levels."""
        modes = [stored.expression.mode for stored in self.levels[:-1]]
        return product([self.facts.extent(self.declaration.extents[mode]) for mode in modes])

    def row_room(self) -> loops.Expr:
        """The number of coordinates of a row."""
        return self.facts.bound(self.variables[-1])

    def whole_room(self) -> loops.Expr:
        """The number of coordinates of all rows."""
        return product([self.row_count(), self.row_room()])

    def allocate_array(self, level: int, array: str, count: loops.Expr) -> loops.Stmt:
        buffer = self._buffer(level, array)
        return loops.AllocateOutput(buffer, self.facts.index_dtype(buffer), count)

    def allocate_values(self, count: loops.Expr) -> loops.Stmt:
        """Allocates `count` values of the result."""
        return loops.AllocateOutput(f"{self.name}_vals", self.declaration.dtype, count)

    def allocate_positions(self) -> Lowered:
        """The positions of rows, all empty."""
        last, rows = len(self.levels) - 1, self.row_count()
        buffer = self._buffer(last, "pos")
        nothing = loops.Literal(0, loops.Type(self.facts.index_dtype(buffer)))
        return [
            self.allocate_array(last, "pos", plus(rows, ONE)),
            loops.Fill(buffer, ZERO, plus(rows, ONE), nothing),
        ]

    def allocate_entries(self, count: loops.Expr) -> Lowered:
        """Allocates the coordinates of the last level, and the values."""
        return [self.allocate_array(len(self.levels) - 1, "crd", count), self.allocate_values(count)]

    def positions(self) -> Lowered:
        """Prefix sum of the row counts, `total` at the end, and allocation of the coordinates."""
        last = len(self.levels) - 1
        total = self.total = self.fresh_int(f"{self.name}_total")
        row = self.fresh_int(f"{self.name}_row")
        count = self.read_position(last, plus(row, ONE))
        sum_up = loops.Block(
            (loops.Set(total, plus(total, count)), self.put(last, "pos", plus(row, ONE), total))
        )
        guarded = loops.Block((sum_up, self.check_positions()))
        return [
            loops.Declare(total, ZERO, True),
            loops.For(row, ZERO, self.row_count(), guarded),
            self.allocate_array(last, "crd", total),
        ]

    def check_positions(self) -> loops.Stmt:
        """Ends the kernel if the running sum of the rows exceeds the range of the positions."""
        largest = LARGEST[self.facts.index_dtype(self._buffer(len(self.levels) - 1, "pos"))]
        return loops.If(compare("gt", self.total, integer(largest)), loops.Return(POSITION_OVERFLOW))

    def read_position(self, level: int, index: loops.Expr) -> loops.Expr:
        return self.read(self._buffer(level, "pos"), index)

    def read(self, buffer: str, index: loops.Expr) -> loops.Expr:
        """An entry of an array as int64."""
        value = loops.Load(buffer, index, loops.Type(self.facts.index_dtype(buffer)))
        return value if self.facts.index_dtype(buffer) == "int64" else loops.Convert(value, loops.INT)

    def allocate_levels(self) -> Lowered:
        """The arrays of appended levels."""
        last = len(self.levels) - 1
        limit = compare(
            "gt", self.counters[last], integer(LARGEST[self.facts.index_dtype(self._buffer(0, "pos"))])
        )
        lowered: Lowered = [loops.If(limit, loops.Return(POSITION_OVERFLOW))]
        for level, stored in enumerate(self.levels):
            counter = self.counters[last] if self.repeating else self.counters[level]
            if not stored.level.is_branchless:
                parents = ONE if level == 0 else self.counters[level - 1]
                lowered.append(self.allocate_array(level, "pos", plus(parents, ONE)))
                lowered.append(self.put(level, "pos", ZERO, ZERO))
            lowered.append(self.allocate_array(level, "crd", counter))
        return lowered

    def check_parallel(self, loop: notation.Forall) -> None:
        """Refuses threads that append to the same level: only rows of dense levels are independent."""
        rows = {
            leaf
            for name in self.variables[:-1]
            for leaf in Provenance(self.facts.program.relations).leaves(name)
        }
        if self.by_parts and loop.index == self.variables[0]:
            return
        if not self.by_rows or loop.index not in rows:
            raise ScheduleError(
                f"`parallel {loop.index}`: the entries of {self.name}, stored {self.declaration.format}, are "
                "appended in order",
                "a serial loop, or a dense level above the compressed one",
            )

    def row(self, env: Environment) -> loops.Expr:
        """The number of the current row."""
        row: loops.Expr = ZERO
        for level in range(len(self.levels) - 1):
            extent = self.facts.extent(self.declaration.extents[self.levels[level].expression.mode])
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

    def close(self) -> Lowered:
        """Stores the end of the outermost level."""
        if self.by_rows:
            return []
        counters = self.totals if self.by_parts else self.counters
        return [self.put(0, "pos", ONE, counters[-1] if self.repeating else counters[0])]
