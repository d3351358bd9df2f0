"""The cost of a row-wise chain over single entries: as one kernel, and as a kernel for each statement.

In:  attention over edges, 8 heads of 8 features, 120,000 edges. Out: 1,500 us as one kernel, 4,300 us as five.

Both forms are priced nest by nest, so that common costs cancel. In separate kernels the entries of a head are
contiguous: vectors fill with the entries of a row, values of columns are gathered one by one, and results go through
memory. In one kernel all heads of an entry may be contiguous; otherwise entries are taken in groups of a vector, and
the remainder of a row one by one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Call, Expr, Index, Program, Reduce
from sparsify.compiler.ir.dtypes import BYTES
from sparsify.compiler.ir.node import Node, children, find
from sparsify.compiler.schedule.cost.machine import Machine
from sparsify.compiler.schedule.cost.statement import ARITHMETIC, ELEMENTARY, LINE_BYTES, PICKED, POINTWISE
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain
from sparsify.compiler.schedule.templates.row_chain.entry_heads import EntryModes

# Vectors' times, fitted to measurements on AVX-512 with one thread.
# Per row of a nest; per vector of computed or reduced entries; per element gathered singly.
ROW: Final = 15.0
ENTRY: Final = 2.0
NUMBER: Final = 6.0
# Per row and per entry of short rows that a separate kernel computes or reduces one by one; cost of a scalar function
# relative to a vector one.
SHORT_ROW: Final = 4.0
SHORT: Final = 1.4
ONE: Final = 0.5
# Per sum of an entry: in a separate kernel, for products of one head, and for others or several heads, whose rows are
# not contiguous; next to those of other heads; in a group of entries; extra for a remainder entry.
SINGLE: Final = 4.0
ALONE: Final = 10.0
BESIDE: Final = 5.0
GROUPED: Final = 5.0
LEFT: Final = 10.0
# Per random number or vector of them.
DRAWN: Final = 50.0
# Slowdown of functions of entries in short rows, since a row ends before the next one begins.
WAITING: Final = 2.0
# Fraction of the latency of gathered rows that loops do not hide.
HIDDEN: Final = 0.25


@dataclass(frozen=True, slots=True)
class EntryCost:
    """A chain, and the inputs of its price.

    Attributes:
        program: statements of the chain.
        chain: matched chain.
        extents: extents of all index variables.
        stored: entries of the pattern.
        machine: machine model.
        lanes: lanes of a vector.
        is_beside: whether one kernel takes all heads of an entry at a time.
    """

    program: Program
    chain: RowChain
    extents: Mapping[str, int]
    stored: int
    machine: Machine
    lanes: int
    is_beside: bool

    @classmethod
    def of(
        cls,
        program: Program,
        chain: RowChain,
        extents: Mapping[str, int],
        stored: int,
        machine: Machine,
        item_bytes: int,
    ) -> "EntryCost":
        """The prices of a chain whose pattern stores `stored` entries, computed in lanes of `item_bytes`."""
        lanes = max(1, machine.vector_bytes // item_bytes)
        modes = EntryModes(chain, lanes, item_bytes, Sizes(dict(extents), {chain.mask.name: stored}))
        is_beside = modes.fits and modes.cycles() <= modes.cycles_apart() and any(modes.schedules())
        return cls(program, chain, extents, stored, machine, lanes, is_beside)

    def fused_us(self) -> float:
        """The time of one thread for the loops of the fused kernel."""
        made = self._beside if self.is_beside else self._grouped
        loops = sum(made(nest) + self._gathered_us(nest, self.is_beside) for nest in self.chain.nests)
        return loops + self._moved_us((*self.program.inputs, *self.program.outputs))

    def apart_us(self, nest: Nest) -> float:
        """The time of one thread for a nest in a separate kernel, including reads and writes of its entries."""
        drawn = self._drawn_us(nest) if nest.kind == "entries" else 0.0
        gathered = self._gathered_us(nest, False)
        return self._apart(nest) + drawn + gathered + self._moved_us(self.tensors(nest))

    def tensors(self, nest: Nest) -> set[str]:
        """The tensors read and written by a separate kernel of a nest."""
        read = {access.tensor for access in find(self._value(nest), Access)}
        return {nest.result, *read} & {declared.name for declared in self.program.declarations}

    @property
    def heads(self) -> int:
        """Iterations around the rows."""
        return prod(self.extents[name] for name in self.chain.leading)

    @property
    def entries(self) -> float:
        """Entries of all heads."""
        return float(self.heads * self.stored)

    @property
    def rows(self) -> int:
        """Rows of all heads."""
        return self.heads * self.extents[self.chain.row]

    @property
    def mean(self) -> float:
        """Entries of a row."""
        return self.stored / max(1, self.extents[self.chain.row])

    def _apart(self, nest: Nest) -> float:
        """Cost of the loops of a separate kernel."""
        if nest.kind in ("entries", "reduction"):
            one_by_one = self._one_by_one(nest)
            # Separate kernels do not fuse the loops over several coordinates of an entry.
            return one_by_one if self.chain.is_relation else min(self._in_vectors(nest), one_by_one)
        return self._by_rows(nest)

    def _one_by_one(self, nest: Nest) -> float:
        """Cost of scalar loops over the entries of rows too short for vectors."""
        each = SHORT + ONE * self._outside(nest) + NUMBER * self._numbers(nest)
        return (self.rows * SHORT_ROW + self.entries * each) * self.machine.vector_us

    def _in_vectors(self, nest: Nest) -> float:
        """Cost of loops over the contiguous entries of a row, a vector at a time."""
        vectors = self.rows * ceil(self.mean / self.lanes)
        picked, others = self._numbers(nest), self._others(nest)
        if nest.kind == "reduction" and picked:  # one after the other
            busy = self.entries * (NUMBER * (picked + others) + self._outside(nest))
        else:
            busy = vectors * (ENTRY + WAITING * self._outside(nest)) + self.entries * NUMBER * picked
        return (busy + self.rows * ROW) * self.machine.vector_us

    def _by_rows(self, nest: Nest) -> float:
        """Cost of loops along sums and products of entries, and along vectors of rows."""
        others = self._others(nest)
        match nest.kind:
            case "scores":
                alone = SINGLE if self.heads == 1 and _sums_products(self._value(nest)) else ALONE
                # Without heads, entries of other temporaries lie at the positions of the nest's own loop.
                others = others if self.chain.leading else 0
                each = alone + self._along(nest) + self._outside(nest) + NUMBER * others
                busy = self.entries * each
            case "product" | "columns":
                busy = self.entries * (PICKED + self._along(nest))
            case _:
                return self._of_rows(nest)
        return (busy + self.rows * ROW) * self.machine.vector_us

    def _beside(self, nest: Nest) -> float:
        """Cost of loops of one kernel with all heads of an entry at a time."""
        heads = ceil(self.heads / self.lanes)
        match nest.kind:
            case "scores":
                each = self.heads * (BESIDE + self._along(nest) + self._outside(nest))
            case "entries" | "reduction":
                each = heads * (ENTRY + self._outside(nest))
            case "product" | "columns":
                each = PICKED + self.heads * self._along(nest)
            case _:
                return self._of_rows(nest)
        return (self.stored * each + self.extents[self.chain.row] * ROW) * self.machine.vector_us

    def _grouped(self, nest: Nest) -> float:
        """Cost of loops of one kernel with the entries of a row in groups of a vector."""
        if nest.kind in ("entries", "reduction"):
            return self._in_vectors(nest)
        if nest.kind != "scores":
            return self._by_rows(nest)
        left = self.rows * min(self.mean, self.lanes / 2)
        each = GROUPED + self._along(nest) + self._outside(nest)  # one sum after the other
        busy = self.entries * each + left * LEFT
        return (busy + self.rows * ROW) * self.machine.vector_us

    def _of_rows(self, nest: Nest) -> float:
        """Cost of loops over values of rows, without entries, the same in all forms."""
        vectors = self.rows * ceil(self.extents[nest.lane] / self.lanes) if nest.lane else self.rows
        return vectors * (ENTRY + self._outside(nest)) * self.machine.vector_us

    def _along(self, nest: Nest) -> float:
        """The time of the vectors along a sum or a row of a result for one entry."""
        width = self.extents.get(nest.lane or nest.inner, 1)
        return ceil(width / self.lanes) * max(1.0, _operations(self._value(nest), nest.lane or nest.inner))

    def _outside(self, nest: Nest) -> float:
        """The time of a nest's scalar arithmetic for one vector, without sums."""
        return _operations(self._value(nest), "")

    def _drawn_us(self, nest: Nest) -> float:
        """The time of a scalar random number for each entry: a separate kernel does not vectorize random numbers."""
        calls = [call for call in find(self._value(nest), Call) if call.function == "uniform"]
        return self.entries * DRAWN * len(calls) * self.machine.vector_us

    def _value(self, nest: Nest) -> Expr:
        """The expression of a nest, as written."""
        written = (s.value for s in self.program.statements if s.target.tensor == nest.result)
        return next(written, nest.assign.value)

    def _numbers(self, nest: Nest) -> int:
        """The number of operands with single elements gathered by column."""
        dense = {declared.name for declared in self.program.declarations if declared.format.is_dense}
        reads = dict.fromkeys(find(self._value(nest), Access))
        return sum(access.tensor in dense and self._is_picked(access) for access in reads)

    def _others(self, nest: Nest) -> int:
        """The number of temporaries whose entries a nest reads."""
        inside = [d.name for d in self.program.declarations if d.name not in self.program.inputs]
        sparse = {name for name in inside if not self.program.declaration(name).format.is_dense}
        return len(sparse & {access.tensor for access in find(self._value(nest), Access)})

    def _is_picked(self, access: Access) -> bool:
        """Whether an access is gathered by column."""
        names = {index.name for index in access.indices if isinstance(index, Index)}
        return bool(names & set(self.chain.entry)) and self.chain.row not in names

    def _gathered_us(self, nest: Nest, is_beside: bool) -> float:
        """The time of gathering distant rows beyond the loops: whole cache lines, separately for each head."""
        access = nest.panel or nest.turned
        if access is None:
            return 0.0
        item = BYTES[self.program.declaration(access.tensor).dtype]
        row = item * self.extents[nest.lane or nest.inner]
        row = row * self.heads if is_beside else max(row, LINE_BYTES)
        moved = (self.stored if is_beside else self.entries) * row
        rates, table = self.machine.gathers, row * self.extents[self.chain.column]
        return HIDDEN * moved * (1 / rates.at(table) - 1 / rates.points[0][1])

    def _moved_us(self, tensors: Collection[str]) -> float:
        """The time of reads and writes of tensors in memory, without the pattern."""
        moved = {*tensors} - {self.chain.mask.name}
        sparse = [d for d in self.program.declarations if d.name in moved and not d.format.is_dense]
        size = sum(self.entries * BYTES[d.dtype] for d in sparse)
        return size / self.machine.reads.at(size)


def _operations(value: Expr, lane: str) -> float:
    """The time of calls along an index variable for a vector; for "", of calls outside of sums."""
    kept = find(value, Call) if lane else _outermost(value)
    calls = [call for call in dict.fromkeys(kept) if not lane or Index(lane) in find(call, Index)]
    return sum(
        POINTWISE if call.function in ARITHMETIC else DRAWN if call.function == "uniform" else ELEMENTARY
        for call in calls
    )


def _outermost(node: Node) -> list[Call]:
    """The calls outside of sums."""
    if isinstance(node, Reduce):
        return []
    found = [node] if isinstance(node, Call) else []
    return [*found, *(call for child in children(node) for call in _outermost(child))]


def _sums_products(value: Expr) -> bool:
    """Whether a nest sums only plain products of two operands."""
    for part in find(value, Reduce):
        match part.body:
            case Call("mul", (Access(), Access())):
                continue
        return False
    return True
