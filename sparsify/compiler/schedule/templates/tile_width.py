"""The number of columns of a row that have sums in registers at a time.

In: 130 columns of float32, 16 lanes. Out: tiles of 80: two passes over a row that read its registers whole.
"""

from typing import Final

# What accumulators in registers cover of a row: 16 AVX2 or 8 AVX-512 registers, enough independent chains to hide
# the latency of an fma, and one pass over the positions of a row for up to 128 columns of float32.
TILE_BYTES: Final = 512
# The same where 32 registers are there for long rows whose entries are places in what columns are neighbours in: each
# entry is read for twice as many columns, whose lines in memory entries of neighbouring places share. On an AMD Zen 5
# 8 images of 3x3 convolutions with 80 % zeros take from 9 % (128 channels of 28 x 28) to 27 % less (256 of 14 x 14);
# shorter rows, 26 entries of 128 channels, take 40 % more: their tiles are written and read in more places at a time.
WIDE_TILE_BYTES: Final = 1024
WIDE_BYTES: Final = 64
WIDE_ROW: Final = 48


def has_wide_tiles(mean: float | None, lanes: int, item_bytes: int) -> bool:
    """Whether rows with so many stored entries, each a place in what lies along the columns, have wide tiles."""
    return mean is not None and mean >= WIDE_ROW and lanes * item_bytes >= WIDE_BYTES


def lane_tile(
    extent: int | None, lanes: int, item_bytes: int, tile_bytes: int = TILE_BYTES
) -> tuple[int, tuple[int, ...]]:
    """The size of a tile and the pieces that the last one is cut into, where it is cut.

    Args:
        extent: how many columns there are, None where only a call knows.
        lanes: elements of the result's dtype in a vector register.
        item_bytes: the size of such an element.
        tile_bytes: that a tile has at most.
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
