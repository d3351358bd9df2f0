"""Products of dense matrices: register tiles of rows, panels of columns packed in reading order.

In:  `C[i,k] = sum(j, A[i,j] * W[j,k])`, all dense, 16 lanes.
Out: `split i ib im 96; split im io ii 12 tail 1; split k ko ki 32 masked; order ib, ko, io, j, ii, ki; precompute
     sums = C at io in register; pack panels_W = W[ko, j, ki] at root in memory; vector ki; unroll ii; parallel ib
     dynamic chunks 4`

Each vector of a panel is loaded once for all rows of a tile; panels stay in cache for all tiles of a block.

Source: the blocking of Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.einsum.products import product_factors
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Notation
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.nests import loop_names
from sparsify.compiler.schedule.sizes import Sizes

# Vectors of columns and rows of a tile: with two loaded vectors and a broadcast scalar, the accumulators fill 16 or 32
# registers.
VECTORS: Final = 2
ROWS: Final = 6
WIDE_ROWS: Final = 12
WIDE_BYTES: Final = 64
# Rows of a block: a block and a panel fit the second-level cache.
BLOCK_ROWS: Final = 96
# Number of blocks for threads to share, given enough rows.
BLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class Tiles:
    """A sum over `A[i, j] * W[j, k]`, all dense.

    Attributes:
        row, column, summed: loops.
        right: operand with the columns.
        collected: target of the sum, the result or a temporary.
        result: result of the program.
        taken: names not available for new loops and tensors.
    """

    row: str
    column: str
    summed: str
    right: str
    collected: str
    result: str
    taken: frozenset[str]

    def schedules(self, lanes: int, item_bytes: int, sizes: Sizes) -> Iterator[d.Schedule]:
        """The best schedule; empty for fewer rows than a tile, or in scalar code."""
        rows, known = tile_rows(lanes, item_bytes), sizes.extents.get(self.row)
        if lanes < 2 or (known is not None and known < rows):
            return
        block = BLOCK_ROWS if known is None else min(BLOCK_ROWS, max(2, known // (BLOCKS * rows)) * rows)
        yield self._schedule(rows, block, *self._panel(lanes, sizes.extents.get(self.column)))

    def _panel(self, lanes: int, columns: int | None) -> tuple[int, tuple[int, ...]]:
        """The columns of a panel, and of the last one; empty for a masked last panel of full width."""
        if columns is not None and columns <= lanes:
            return lanes, ()
        width = VECTORS * lanes
        left = (columns or 0) % width
        return width, (left,) if left in (lanes, lanes // 2) else ()

    def _schedule(self, rows: int, block: int, width: int, tail: tuple[int, ...]) -> d.Schedule:
        """Blocks of `block` rows, tiles of `rows`, panels of `width` columns."""
        name = self._name
        blocks, members = name(f"{self.row}b"), name(f"{self.row}m")
        tile, row = name(f"{self.row}o"), name(f"{self.row}i")
        panel, lane = name(f"{self.column}o"), name(f"{self.column}i")
        is_result = self.collected == self.result
        sums = name("sums") if is_result else self.collected
        return d.Schedule(
            (
                d.Split(self.row, blocks, members, block),
                d.Split(members, tile, row, rows, (1,)),
                d.Split(self.column, panel, lane, width, tail, masked=not tail),
                d.Order((blocks, panel, tile, self.summed, row, lane)),
                d.Precompute(sums, "register", at=tile, source=self.collected if is_result else ""),
                d.Pack(name(f"panels_{self.right}"), self.right, (panel, self.summed, lane), "", "memory"),
                d.Vector(lane),
                d.Unroll(row),
                d.Parallel(blocks, "dynamic", chunks=4),
            )
        )

    def _name(self, text: str) -> str:
        """An unused name."""
        while text in self.taken:
            text += "_"
        return text


def tile_rows(lanes: int, item_bytes: int) -> int:
    """Rows of a register tile.

    >>> tile_rows(8, 4), tile_rows(16, 4), tile_rows(8, 8)
    (6, 12, 12)
    """
    return WIDE_ROWS if lanes * item_bytes >= WIDE_BYTES else ROWS


def tiles(program: Notation) -> Tiles | None:
    """`program` as a product of dense matrices, `None` for other programs."""
    assigns = find(program.body, Assign)
    if len(program.outputs) != 1 or len(assigns) > 2 or assigns[0].monoid != "sum" or program.relations:
        return None
    summed, result = assigns[0], assigns[-1].target
    factors = product_factors(summed.value) or []
    reads = [access for access in factors if isinstance(access, Access)]
    if len(factors) != 2 or len(reads) != 2 or not {access.tensor for access in reads} <= set(program.inputs):
        return None
    if any(not declared.format.is_dense for declared in program.declarations):
        return None
    matrices = (*reads, summed.target, result)
    if any(len(a.indices) != 2 or not all(isinstance(i, Index) for i in a.indices) for a in matrices):
        return None
    row, column = index_names(result)
    left, right = sorted(reads, key=lambda access: row not in index_names(access))
    if row == column or index_names(summed.target) != (row, column) or index_names(left)[0] != row:
        return None
    inner = index_names(left)[1]
    if inner in (row, column) or set(index_names(right)) != {inner, column} or left.tensor == right.tensor:
        return None
    taken = frozenset(loop_names(program)) | {declared.name for declared in program.declarations}
    return Tiles(
        row, column, inner, right.tensor, summed.target.tensor, result.tensor, taken | {summed.target.tensor}
    )
