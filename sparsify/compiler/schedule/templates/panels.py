"""Products of dense rows and a sparse matrix: the loops over the levels of the matrix, and the names of a schedule.

In: `Y[t,n] = sum(k, X[t,k] * W[n,k])`, W in panels of 96 columns, `k/96: dense, n: dense, k%96: compressed`.
Out: rows `t`, a loop over panels `ko`, over outputs `n`, and over the stored columns `ki`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Declaration, Index
from sparsify.compiler.einsum.products import multiplied
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Notation, Split
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.nests import loop_names
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.storage.level.levels import Compressed

# Most bytes of the part of a tile read by one panel, which has to fit the second-level cache.
TURNED_BYTES: Final = 1 << 18
# Fewest entries of a row for each set of accumulators, to amortize the final additions.
ENTRIES_A_SET: Final = 4
# Parts of the outputs that threads share.
PARTS: Final = 8


@dataclass(frozen=True, slots=True)
class Loops:
    """The loops over the levels of a sparse matrix.

    Attributes:
        rows, columns: index variables.
        panel: loop over the panels of columns, "" without.
        output: loop over rows, or over block rows.
        column: loop over the stored columns.
        block: loop inside block rows, "" without.
        width: columns of a panel, 0 for all.
        height: rows of a block.
        has_bits: whether the columns are stored as bits; panels are then inside rows.
        has_slices: whether the rows of a block have equally many, interleaved entries; panels are then inside slices.
    """

    rows: str
    columns: str
    panel: str
    output: str
    column: str
    block: str
    width: int
    height: int
    has_bits: bool = False
    has_slices: bool = False

    @property
    def is_inside(self) -> bool:
        """Whether panels are inside rows or slices."""
        return self.has_bits or self.has_slices

    def around(self, output: str) -> tuple[str, str]:
        """The loops around the stored columns, one of them over `output`."""
        return (output, self.panel) if self.is_inside else (self.panel, output)


@dataclass(frozen=True, slots=True)
class Panels:
    """A sum over `X[.., t, k] * W[n, k]` with W sparse.

    Attributes:
        leading: loops over the modes of X before the last two.
        row: loop over the rows `t` of X.
        loops: loops over the levels of W.
        dense, weight: operands.
        collected: target of the sum, the result or a temporary.
        result: result of the program.
        taken: names not available for new loops and tensors.
    """

    leading: tuple[str, ...]
    row: str
    loops: Loops
    dense: Declaration
    weight: Declaration
    collected: str
    result: str
    taken: frozenset[str]

    def width(self, sizes: Sizes) -> int:
        """The columns of a panel, or of W without panels."""
        return (
            (0 if self.loops.is_inside else self.loops.width)
            or self.extent(self.loops.columns, sizes)
            or TURNED_BYTES
        )

    def extent(self, name: str, sizes: Sizes) -> int:
        """The extent of a mode of W, 0 if unknown."""
        listed = next(s.expression.mode for s in self.weight.format.levels if not s.level.is_full)
        mode = listed if name == self.loops.columns else 1 - listed
        return sizes.extents.get(self.weight.extents[mode], 0)

    def is_long(self, sets: int, sizes: Sizes) -> bool:
        """Whether rows have enough entries for `sets` sets of accumulators."""
        is_list = not self.loops.block and not self.loops.has_bits
        mean = sizes.mean_below(self.weight) if is_list else None
        return mean is not None and mean >= ENTRIES_A_SET * sets

    def part_size(self, sizes: Sizes, step: int) -> int:
        """The size of the parts of W's rows or block rows shared by threads; 0 for the whole.

        Parts have a multiple of `step` rows.
        """
        extent, height = self.extent(self.loops.rows, sizes), self.loops.height
        step = lcm(step, height)
        return -(-extent // (PARTS * step)) * step // height if extent >= 2 * step else 0

    def name(self, text: str) -> str:
        """An unused name."""
        while text in self.taken:
            text += "_"
        return text

    def places(self) -> tuple[str, str, str]:
        """Names for the loop over stored positions, over groups of positions, and inside a group."""
        place = self.name("p")
        return place, self.name(f"{place}o"), self.name(f"{place}i")

    def shared(self, part: int) -> tuple[list[d.Directive], list[str], str]:
        """Directives that split outputs into parts of `part`, 0 for none; the loops over parts and over outputs."""
        output = self.loops.output
        if not part:
            return [], [], output
        parts, inside = self.name(f"{output}s"), self.name(f"{output}p")
        return [d.Split(output, parts, inside, part)], [parts], inside

    def collect(self, order: d.Order, at: str) -> tuple[str, list[d.Directive]]:
        """The temporary with the sums of a tile, and the loop order that writes the result from it."""
        if self.collected != self.result:
            return self.collected, [order, d.Precompute(self.collected, "thread", at=at)]
        name = self.name(f"tile_{self.collected}")
        return name, [d.Precompute(name, "thread", at=at, source=self.collected), order]


def panels(program: Notation) -> Panels | None:
    """`program` as a product with a sparse matrix, `None` for other programs."""
    declared = {declaration.name: declaration for declaration in program.declarations}
    assigns = find(program.body, Assign)
    if len(program.outputs) != 1 or len(assigns) > 2 or assigns[0].monoid != "sum":
        return None
    summed, result = assigns[0], assigns[-1].target
    factors = multiplied(summed.value) or []
    reads = [access for access in factors if isinstance(access, Access)]
    sparse = [a for a in reads if not declared[a.tensor].format.is_dense]
    if len(factors) != 2 or len(reads) != 2 or len(sparse) != 1:
        return None
    if not {access.tensor for access in reads} <= set(program.inputs):
        return None
    weight, dense = sparse[0], next(access for access in reads if access is not sparse[0])
    if not all(isinstance(i, Index) for a in (weight, dense, summed.target, result) for i in a.indices):
        return None
    if len(dense.indices) < 2 or any(len(index_names(a)) < len(a.indices) for a in reads):
        return None  # a diagonal
    found = weight_loops(program, declared[weight.tensor], weight)
    if found is None or declared[dense.tensor].format.ordering != tuple(range(len(dense.indices))):
        return None
    *leading, row, last = index_names(dense)
    wanted = (*leading, row, found.rows)
    if last != found.columns or index_names(summed.target) != wanted or index_names(result) != wanted:
        return None
    return Panels(
        tuple(leading), row, found, declared[dense.tensor], declared[weight.tensor], summed.target.tensor,
        result.tensor, frozenset(loop_names(program)) | frozenset(declared) | {summed.target.tensor},
    )  # fmt: skip


def weight_loops(program: Notation, declared: Declaration, access: Access) -> Loops | None:
    """The loops over the levels of a sparse matrix: panels of columns, rows, columns, rows of a block."""
    splits = {r.index: r for r in program.relations if isinstance(r, Split)}
    levels = declared.format.levels
    lists = [number for number, stored in enumerate(levels) if not stored.level.is_full]
    if len(access.indices) != 2 or len(lists) != 1:
        return None
    listed = levels[lists[0]].level
    if not (listed.has_bits or listed.stride > 1 or isinstance(listed, Compressed)):
        return None
    mode = levels[lists[0]].expression.mode
    rows, columns = (index_names(access)[m] for m in (1 - mode, mode))
    parts = []
    for stored in levels:
        name, kind = index_names(access)[stored.expression.mode], stored.expression.kind
        found = name if kind == "whole" else splits[name].outer if kind == "block" else splits[name].inner
        parts.append((stored.expression.mode == mode, found))
    is_column = [is_of_columns for is_of_columns, _ in parts]
    names = [name for _, name in parts]
    if listed.has_bits:
        return _rows_of_bits(rows, columns, splits, is_column, names)
    if listed.stride > 1:
        return _slices_of_rows(rows, columns, splits, is_column, names)
    if rows == columns or is_column[: lists[0] + 1] not in ([False, True], [True, False, True]):
        return None
    if len(parts) - lists[0] > 2 or is_column[lists[0] + 1 :] == [True]:
        return None
    panel = names[0] if is_column[0] else ""
    block = names[-1] if len(parts) > lists[0] + 1 else ""
    width = splits[columns].size if panel else 0
    return Loops(
        rows,
        columns,
        panel,
        names[lists[0] - 1],
        names[lists[0]],
        block,
        width,
        splits[rows].size if block else 1,
    )


def _rows_of_bits(
    rows: str, columns: str, splits: Mapping[str, Split], is_column: list[bool], names: list[str]
) -> Loops | None:
    """The loops over rows with a bit for each column, in panels of whole words."""
    if rows == columns or is_column != [False, True, True]:
        return None
    output, panel, column = names
    return Loops(rows, columns, panel, output, column, "", splits[columns].size, 1, has_bits=True)


def _slices_of_rows(
    rows: str, columns: str, splits: Mapping[str, Split], is_column: list[bool], names: list[str]
) -> Loops | None:
    """The loops over slices of rows, and in each slice over panels of columns."""
    if rows == columns or is_column != [False, True, False, True]:
        return None
    output, panel, block, column = names
    sizes = splits[columns].size, splits[rows].size
    return Loops(rows, columns, panel, output, column, block, *sizes, has_slices=True)
