"""How a sparse matrix that never changes is best stored for `X @ W.T`, and whether it is worth it.

In: the zeros of W [3072, 768], 10 % stored, 128 rows of X, 8 lanes. Out: `j/192: dense, i: dense, j%192:
compressed(crd=int16)`, about 1.6 ms against 8.5 ms of torch's dense product.

Rows of W that store the same columns, four at a time, share their coordinates and are read together: a block of four
times two vectors of X needs six loads for eight products, one of eight times one vector nine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from sparsify.compiler.schedule.panels import strip_rows, tile_rows
from sparsify.storage.format import Format

# Columns of a panel, and rows of a block, that are compared.
WIDTHS: Final = (96, 128, 192, 384, 768, 1536)
HEIGHTS: Final = (4, 1)
MOST_SHORT: Final = 1 << 15
# The cache that a part of a tile should stay in, and how much longer it takes to read it from the next one.
NEAREST_BYTES: Final = 24 << 10
FARTHER: Final = 0.9
# Cycles of generated loops, fitted to measurements on AVX2: per stored column or block; per vector of sums in it; per
# row of W in a panel; per vector of sums in that; per entry of X and of the result.
STORED: Final = 1.3
VECTOR: Final = 0.65
ROW: Final = 20.0
ROW_VECTOR: Final = 2.5
TURNED: Final = 1.0
WRITTEN: Final = 2.5
# Cycles per stored entry where X has one row, which is not turned.
SINGLE: Final = 2.6
# Bytes a microsecond that one thread reads in a row.
READ: Final = 16_000.0
# Cycles per vector of a dense product in the best library, and cycles a microsecond.
DENSE: Final = 0.6
CYCLES: Final = 3400.0
# Bytes of a compact format at most, as a multiple of those of the values and of two more for each.
COMPACT: Final = 1.15


@dataclass(frozen=True, slots=True)
class Packing:
    """A format and what a product with it costs.

    Attributes:
        format: of W.
        stored: entries, padding of blocks included.
        entries: that the matrix has, zeros included.
        bytes: that it takes.
        dense_bytes: that the matrix takes as it is.
        us: of one thread.
        dense_us: of torch's product with W as it is.
    """

    format: Format
    stored: int
    entries: int
    bytes: int
    dense_bytes: int
    us: float
    dense_us: float

    @property
    def is_smaller(self) -> bool:
        """Whether it takes less memory than the matrix as it is."""
        return self.bytes < self.dense_bytes


def pack_matrix(mask: Tensor, rows: int, lanes: int, item_bytes: int, *, compact: bool = False) -> Packing:
    """The fastest format for a matrix, of those that are smaller than the matrix.

    Args:
        mask: [outputs, columns], where W is not zero.
        rows: of X.
        lanes: of a vector register.
        item_bytes: of an entry.
        compact: of those that take little more than the values and 16-bit coordinates; where there is none, the
            smallest.
    """
    every = list(_packings(mask, rows, lanes, item_bytes))
    most = COMPACT * int(mask.sum()) * (item_bytes + 2)
    kept = [found for found in every if (found.bytes <= most if compact else found.is_smaller)]
    if compact and not kept:
        return min(every, key=lambda found: found.bytes)
    return min(kept or every, key=lambda found: found.us)


def _packings(mask: Tensor, rows: int, lanes: int, item_bytes: int) -> Iterator[Packing]:
    """The formats that are compared."""
    outputs, columns = mask.shape
    dense = _dense_us(rows, outputs, columns, lanes, item_bytes)
    for height in HEIGHTS:
        if outputs % height:
            continue
        blocks = int(mask.view(outputs // height, height, columns).any(1).sum())
        for width in (*(width for width in WIDTHS if width < columns), columns):
            short = 2 if width <= MOST_SHORT else 4
            lists = outputs // height * -(-columns // width)
            size = blocks * (height * item_bytes + short) + 4 * (lists + 1)
            busy = _cycles(blocks, lists, height, min(width, columns), rows, lanes, item_bytes)
            around = rows * (TURNED * columns + WRITTEN * outputs)
            us = max((busy + around) / CYCLES, size / READ)
            format = _format(width, height, columns, short)
            entries = outputs * columns
            yield Packing(format, blocks * height, entries, size, entries * item_bytes, us, dense)


def _cycles(
    blocks: int, lists: int, height: int, width: int, rows: int, lanes: int, item_bytes: int
) -> float:
    """The cycles of all tiles of rows."""
    if rows == 1 and height == 1:
        return blocks * SINGLE + lists * ROW
    tile = tile_rows(rows, lanes, item_bytes)
    strip = min(tile, strip_rows(lanes, height))
    vectors = height * strip // lanes
    near = NEAREST_BYTES / (width * tile * item_bytes)
    slower = 1.0 + FARTHER * max(0.0, 1.0 - near)
    one = blocks * (STORED + VECTOR * vectors * slower) + lists * (ROW + ROW_VECTOR * vectors)
    return one * -(-rows // tile) * -(-tile // strip)


def _dense_us(rows: int, outputs: int, columns: int, lanes: int, item_bytes: int) -> float:
    """The microseconds of one thread for the dense product."""
    products = rows * outputs * columns / lanes
    return products * DENSE / CYCLES + outputs * columns * item_bytes / READ


def _format(width: int, height: int, columns: int, short: int) -> Format:
    """Panels of `width` columns, blocks of `height` rows."""
    panel, column = ("", "j") if width >= columns else (f"j/{width}: dense, ", f"j%{width}")
    row, block = ("i", "") if height == 1 else (f"i/{height}", f", i%{height}: dense")
    crd = "(crd=int16)" if short == 2 else ""
    return Format(f"{panel}{row}: dense, {column}: compressed{crd}{block}")
