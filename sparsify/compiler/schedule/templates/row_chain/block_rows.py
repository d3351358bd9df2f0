"""Schedules for row-wise chains over blocks: strips of rows in scratch, register tiles, transposed keys.

In:  `S = scores of Q and K where M is stored; m max= S; P = exp(S - m); d += P; Y += P V / d`, M in blocks of 16 x 16.
Out: `split ii it is 4; split ji jt js 16; split l lo li 16; order S: h, io, jo, jt, it, is, js; precompute w at it in
     register; ..; precompute S at io in thread; ..; pack turned_K = K[jo, jt, k, js] at h in thread; ..`

A strip holds the entries of its rows by position: stored entries only, never a whole dense row. Both products of a
chain are products of dense tiles: rows of a tile times vectors of columns accumulate in registers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod
from typing import Final

from sparsify.compiler.einsum.nodes import Access
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.row_chain.chain import Nest, RowChain

# Vectors of columns in a register tile, each loaded once for all rows of the tile.
VECTORS: Final = 2
# Maximum rows of a register tile (one pointer register each).
ROWS: Final = 16
# Number of vector registers, by their width in bytes.
REGISTERS: Final = 16
WIDE_REGISTERS: Final = 32
WIDE_BYTES: Final = 64
# Independent accumulators that hide the latency of an fma on two units.
CHAINS: Final = 8
# Most rows of a strip, whose entries stay in the near caches. Strips that add to columns read and write the sums of all
# columns once each.
STRIP_ROWS: Final = 16
ADDING_ROWS: Final = 32
# Chunks of rows for each thread, with equally many stored entries. A block row cannot be split: with more chunks, a
# long one would run last and alone.
SHARES: Final = 4
# Largest copy that each thread makes privately instead of sharing one: reading another core's writes is slower than
# transposing, even more so across third-level caches.
OWN_BYTES: Final = 1 << 19
# A square register tile, in rows and vectors, for many registers: each of 8 operands serves 4 of its 16 accumulators.
SQUARE: Final = 4


def tile_rows(height: int, vectors: int, registers: int) -> int:
    """Rows of a register tile: `rows * vectors` accumulators, the vectors, and a broadcast element of a row.

    A divisor of the height with enough accumulators, if any; else the most rows.

    >>> tile_rows(16, 2, 16), tile_rows(12, 2, 16), tile_rows(7, 2, 16), tile_rows(16, 1, 16), tile_rows(16, 2, 32)
    (4, 6, 6, 8, 8)
    """
    most = max(1, min(height, ROWS, (registers - vectors - 1) // vectors))
    fitting = [rows for rows in range(1, most + 1) if height % rows == 0]
    return fitting[-1] if fitting[-1] * vectors >= min(CHAINS, most * vectors) else most


def strip_rows(chain: RowChain) -> int:
    """Rows of a strip: the largest allowed part of a block, else the block."""
    most = (ADDING_ROWS, STRIP_ROWS) if chain.adds_to_columns else (STRIP_ROWS,)
    return next((rows for rows in most if chain.height % rows == 0), chain.height)


@dataclass(frozen=True, slots=True)
class Strips:
    """The names of the loops, and the parameters of the tiles.

    Attributes:
        chain: matched chain.
        lanes: lanes of a vector.
        item_bytes: bytes of an entry.
        sizes: sizes of the operands.
    """

    chain: RowChain
    lanes: int
    item_bytes: int
    sizes: Sizes

    def schedules(self) -> Iterator[d.Schedule]:
        """The schedule; empty for blocks narrower than a vector."""
        if self.chain.within_row and self.lanes > 1 and self.chain.width >= self.lanes:
            yield self.schedule()

    @property
    def vectors(self) -> int:
        """Vectors of columns in a register tile; square tiles for contributions to columns, if possible."""
        is_square = self.chain.adds_to_columns and self.cuts_no_square(self.chain.width)
        return min(SQUARE if is_square else VECTORS, self.chain.width // self.lanes)

    @property
    def registers(self) -> int:
        """The number of vector registers."""
        return WIDE_REGISTERS if self.lanes * self.item_bytes >= WIDE_BYTES else REGISTERS

    @property
    def columns(self) -> int:
        """Columns of a register tile."""
        return self.vectors * self.lanes

    def schedule(self) -> d.Schedule:
        """Strips of rows, the loop order of each nest, shared temporaries in scratch, keys transposed."""
        chain = self.chain
        steps, loops = self.tiled()
        for nest in chain.nests:
            steps += _ordered(nest, loops, chain)
        for nest in chain.nests:
            steps += _collected(nest, loops, chain)
        steps += [d.Precompute(held, "thread", at=loops.around[-1]) for held in chain.held]
        for nest in chain.nests:
            steps += self.packed(nest, loops)
        for nest in chain.nests:
            steps += kinds(nest, loops, chain)
        return d.Schedule((*steps, self.shared()))

    def shared(self) -> d.Parallel:
        """The parallel loop: rows in chunks of equally many blocks, or the loops around the rows."""
        chain = self.chain
        if chain.shares_rows(self.sizes):
            return d.Parallel(chain.outer, "dynamic", chain.balance, SHARES if chain.balance else 1)
        return d.Parallel(chain.around(self.sizes)[0], "dynamic")

    def tiled(self) -> tuple[list[d.Directive], "Loops"]:
        """The loops over strips and over register tiles, and the directives that create them."""
        chain = self.chain
        height, columns, name = strip_rows(chain), self.columns, chain.fresh
        rows = tile_rows(height, self.vectors, self.registers)
        tile, member = name(f"{chain.row}t"), name(f"{chain.row}s")
        part, lane = name(f"{chain.column}t"), name(f"{chain.column}s")
        strip, inside = chain.outer, chain.within_row
        steps: list[d.Directive] = []
        if height < chain.height:
            strip, inside = name(f"{chain.row}r"), name(f"{chain.row}x")
            steps.append(d.Split(chain.within_row, strip, inside, height))
        tail = (left,) if (left := height % rows) else ()
        steps.append(d.Split(inside, tile, member, max(rows, 2), tail))
        steps.append(d.Split(chain.within_column, part, lane, columns))
        splits = {free: (name(f"{free}o"), name(f"{free}i")) for free in chain.lanes()}
        squares, cells = ("", ""), ("", "")
        is_square = not tail and self.has_squares(rows)
        for free, (outer, inner) in splits.items():
            steps.append(d.Split(free, outer, inner, SQUARE * self.lanes if is_square else columns))
        if is_square:
            squares = (name(f"{chain.row}q"), name(f"{chain.row}p"))
            steps.append(d.Split(member, *squares, SQUARE))
            steps += [d.Join(member, nest.result) for nest in chain.nests if not nest.lane]
        if any(nest.kind == "columns" for nest in chain.nests):
            cells = (name(f"{chain.column}q"), name(f"{chain.column}r"))
            steps.append(d.Split(lane, *cells, tile_rows(columns, self.vectors, self.registers)))
            steps += _tiles_joined(chain, lane, splits)
        around = (*chain.around(self.sizes), *dict.fromkeys((chain.outer, strip)))
        loops = Loops(around, chain.listed, part, lane, tile, member, splits, *cells, *squares)
        return steps, loops

    def has_squares(self, rows: int) -> bool:
        """Whether products have square tiles: rows of values are then read in place, in whole tiles."""
        is_cut = rows <= SQUARE or rows % SQUARE != 0
        return not self.chain.adds_to_columns and not is_cut and self.cuts_no_square()

    def cuts_no_square(self, *widths: int) -> bool:
        """Whether registers hold square tiles that divide the rows of results and these widths."""
        all_widths = (*widths, *(self.sizes.extents.get(name, 1) for name in self.chain.lanes()))
        is_whole = all(width % (SQUARE * self.lanes) == 0 for width in all_widths)
        return self.registers == WIDE_REGISTERS and is_whole

    def packed(self, nest: Nest, loops: "Loops") -> list[d.Directive]:
        """Loop-invariant operands of entries, packed tile by tile: rows of keys are transposed.

        Wide rows become panels as wide as a tile: a column of wide rows would map to few sets of a cache.
        """
        chain = self.chain
        if nest.turned is not None:
            indices = (loops.listed, loops.part, nest.inner, loops.lane)
            same = [n for n in chain.nests if n.turned is not None and n.turned.tensor == nest.turned.tensor]
            name = f"turned_{nest.turned.tensor}{f'_{nest.inner}' if len(same) > 1 else ''}"
            copy = self._copy(name, nest.turned, indices, nest.summed)
            return [copy, d.Transpose(nest.inner, loops.lane, copy.temporary), *self._together(copy, loops)]
        width = SQUARE * self.lanes if loops.square else self.columns
        is_narrow = self.sizes.extents.get(nest.lane, 2 * width) <= width
        if nest.panel is None or is_narrow or chain.adds_to_columns:
            return []
        outer, inner = loops.free[nest.lane]
        panels = (outer, loops.listed, loops.part, loops.lane, inner)
        copy = self._copy(f"panels_{nest.panel.tensor}", nest.panel, panels, sums(nest, chain))
        together = self._together(copy, loops)
        if together:  # panels are few, tiles of what is listed many
            together.insert(0, d.Order((loops.listed, outer), copy.temporary))
        return [copy, d.Vector(inner, copy.temporary), *together]

    def _together(self, copy: d.Pack, loops: "Loops") -> list[d.Directive]:
        """Directives by which all threads make a copy shared by their rows, dividing the listed loop."""
        if not self.chain.shares_rows(self.sizes) or copy.scope == "thread":
            return []
        return [d.Parallel(loops.listed, nest=copy.temporary)]

    def _copy(self, name: str, access: Access, indices: tuple[str, ...], reader: str) -> d.Pack:
        """A copy of an operand in the innermost outer loop on which the operand depends.

        Each thread makes a small copy privately. Only its reader uses the copy if other nests read the operand, as in
        products of rows and of columns with the same operand.
        """
        chain, found = self.chain, index_names(access)
        at = next((loop for loop in reversed(chain.around(self.sizes)) if loop in found), "")
        copied = [part.tensor for n in chain.nests for part in (n.turned, n.panel) if part is not None]
        is_shared = chain.adds_to_columns or copied.count(access.tensor) > 1
        extents = [self.sizes.extents.get(name, inf) for name in found if name not in chain.leading]
        is_for_all = (not at or chain.shares_rows(self.sizes)) and prod(extents) * self.item_bytes > OWN_BYTES
        scope = "memory" if is_for_all else "thread"
        return d.Pack(chain.fresh(name), access.tensor, indices, at, scope, reader if is_shared else "")


@dataclass(frozen=True, slots=True)
class Loops:
    """The loops of a strip: around the strip, over tiles of stored entries, over tiles of rows, over tiles of results.

    Contributions to columns have tiles of columns: `place`, and the `cell`s of a tile. Products may have inner tiles of
    rows: `square`, and the rows of such a tile, `side`.
    """

    around: tuple[str, ...]
    listed: str
    part: str
    lane: str
    tile: str
    member: str
    free: dict[str, tuple[str, str]]
    place: str = ""
    cell: str = ""
    square: str = ""
    side: str = ""

    @property
    def tiles(self) -> tuple[str, ...]:
        """The loops over tiles of rows of a product."""
        return (self.tile, self.square) if self.square else (self.tile,)

    @property
    def within(self) -> str:
        """The loop over the rows of a tile of a product."""
        return self.side or self.member


def _tiles_joined(chain: RowChain, lane: str, splits: dict[str, tuple[str, str]]) -> list[d.Directive]:
    """Directives that join tiles in all nests other than those of column contributions and results."""
    steps: list[d.Directive] = []
    for nest in chain.nests:
        if nest.kind in ("scores", "entries", "reduction", "product", "gathered"):
            steps.append(d.Join(lane, nest.result))
        if nest.inner in splits:
            steps.append(d.Join(nest.inner, nest.summed))
    return steps


def _ordered(nest: Nest, loops: Loops, chain: RowChain) -> list[d.Directive]:
    """The loop order of a nest."""
    around, listed, part, lane = loops.around, loops.listed, loops.part, loops.lane
    tile, member = loops.tile, loops.member
    outer, inner = loops.free.get(nest.lane, ("", ""))
    match nest.kind:
        case "scores":
            return [
                d.Order((*around, listed, part, tile, member, lane), nest.result),
                d.Precompute(nest.summed, "register", at=tile),
                d.Order((nest.inner, member, lane), nest.summed),
            ]
        case "entries":
            return [d.Order((*around, tile, listed, part, member, lane), nest.result)]
        case "reduction":
            lanes = chain.fresh(f"lanes_{nest.result}")
            return [
                d.Order((*around, tile, member, listed, part, lane), nest.result),
                d.Precompute(lanes, "register", source=nest.result, over=lane),
            ]
        case "product":
            order = (*around, outer, *loops.tiles, listed, part, lane, loops.within, inner)
            return [d.Order(order, nest.result)]
        case "columns":
            tiles = (outer, loops.place, tile, member, loops.cell, inner)
            return [d.Order((*around, listed, part, *tiles), nest.result)]
        case "gathered":
            return [d.Order((*around, listed, part, tile, member, lane), nest.result)]
        case "total":
            lanes = chain.fresh(f"lanes_{nest.result}")
            return [
                d.Order((*around, tile, member, outer, inner), nest.result),
                d.Precompute(lanes, "register", source=nest.result, over=inner),
            ]
    if not inner:
        return [d.Order((*around, tile, member), nest.result)]
    return [d.Order((*around, outer, *loops.tiles, loops.within, inner), nest.result)]


def _collected(nest: Nest, loops: Loops, chain: RowChain) -> list[d.Directive]:
    """The register accumulators of a product."""
    if nest.kind not in ("product", "columns"):
        return []
    if nest.kind == "columns":
        return [d.Precompute(sums(nest, chain), "register", at=loops.place, source=nest.result)]
    if nest.result in chain.collected:
        return [d.Precompute(nest.result, "register", at=loops.tiles[-1])]
    return [d.Precompute(sums(nest, chain), "register", at=loops.tiles[-1], source=nest.result)]


def sums(nest: Nest, chain: RowChain) -> str:
    """The register accumulator of a product."""
    return nest.result if nest.result in chain.collected else chain.fresh(f"sum_{nest.result}")


def kinds(nest: Nest, loops: Loops, chain: RowChain) -> list[d.Directive]:
    """Unrolled and vectorized loops."""
    member, lane = loops.member, loops.lane
    _, inner = loops.free.get(nest.lane, ("", ""))
    match nest.kind:
        case "scores":
            names = (nest.summed, nest.result)
            return [kind for name in names for kind in (d.Unroll(member, name), d.Vector(lane, name))]
        case "entries" | "gathered":
            return [d.Vector(lane, nest.result)]
        case "total":
            return [d.Vector(inner, chain.fresh(f"lanes_{nest.result}")), d.Vector(inner, nest.result)]
        case "columns":
            names = (sums(nest, chain), nest.result)
            return [kind for name in names for kind in (d.Unroll(loops.cell, name), d.Vector(inner, name))]
        case "reduction":
            return [d.Vector(lane, chain.fresh(f"lanes_{nest.result}")), d.Vector(lane, nest.result)]
    written = [sums(nest, chain), nest.result] if nest.kind == "product" else [nest.result]
    return (
        [
            kind
            for name in dict.fromkeys(written)
            for kind in (d.Unroll(loops.within, name), d.Vector(inner, name))
        ]
        if inner
        else []
    )
