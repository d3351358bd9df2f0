"""The number of columns of a row with accumulators in registers at a time.

In: 130 columns of float32, 16 lanes. Out: tiles of 80: two passes over a row that read its registers whole.
"""

from typing import Final

# Bytes of a row in accumulators: 16 AVX2 or 8 AVX-512 registers, enough independent chains to hide the latency of an
# fma, and one pass over the positions of a row for up to 128 columns of float32.
TILE_BYTES: Final = 512
# The same for 32 registers and long rows whose entries are offsets along the columns: each entry is read for twice as
# many columns, whose cache lines are shared by entries of neighbouring offsets. On an AMD Zen 5, 8 images of 3x3
# convolutions with 80 % zeros take from 9 % (128 channels of 28 x 28) to 27 % less (256 of 14 x 14); shorter rows, 26
# entries of 128 channels, take 40 % more: their tiles are written and read at more places at a time.
WIDE_TILE_BYTES: Final = 1024
WIDE_BYTES: Final = 64
WIDE_ROW: Final = 48


def has_wide_tiles(mean: float | None, lanes: int, item_bytes: int) -> bool:
    """Whether long rows of entries that are offsets along the columns have wide tiles."""
    return mean is not None and mean >= WIDE_ROW and lanes * item_bytes >= WIDE_BYTES


def accumulators(lanes: int, item_bytes: int) -> int:
    """The number of vector registers for accumulators: all but those for an entry and for the vector read.

    >>> accumulators(8, 4), accumulators(16, 4)
    (14, 30)
    """
    return (32 if lanes * item_bytes >= WIDE_BYTES else 16) - 2


def lane_tile(
    extent: int | None, lanes: int, item_bytes: int, tile_bytes: int = TILE_BYTES
) -> tuple[int, tuple[int, ...]]:
    """The size of a tile, and the pieces of a split last tile.

    Args:
        extent: number of columns, None if unknown at compile time.
        lanes: elements of the result's dtype in a vector register.
        item_bytes: bytes of such an element.
        tile_bytes: most bytes of a tile.
    """
    most = max(tile_bytes // item_bytes, lanes)
    if not extent:
        return most, tuple(most >> n for n in range(1, 10) if most >> n >= lanes)
    if 1 < extent <= lanes // 2:  # part of a register, without masks where it is full
        return 1 << (extent - 1).bit_length(), ()
    tiles = -(-extent // most)
    size = -(-extent // (tiles * lanes)) * lanes
    last = extent - (tiles - 1) * size
    return size, (last,) if 0 < last < size and last % lanes == 0 else ()
