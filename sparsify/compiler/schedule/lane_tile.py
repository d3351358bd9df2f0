"""How many columns of a row have sums in registers at a time.

In: 130 columns of float32, 16 lanes. Out: tiles of 80: two passes over a row that read its registers whole.
"""

from typing import Final

# What accumulators in registers cover of a row: 16 AVX2 or 8 AVX-512 registers, enough independent chains to hide
# the latency of an fma, and one pass over the positions of a row for up to 128 columns of float32.
TILE_BYTES: Final = 512


def lane_tile(extent: int | None, lanes: int, item_bytes: int) -> tuple[int, tuple[int, ...]]:
    """The size of a tile and the pieces that the last one is cut into, where it is cut.

    Args:
        extent: how many columns there are, None where only a call knows.
        lanes: elements of the result's dtype in a vector register.
        item_bytes: the size of such an element.
    """
    most = max(TILE_BYTES // item_bytes, lanes)
    if not extent:
        return most, tuple(most >> n for n in range(1, 10) if most >> n >= lanes)
    if 1 < extent <= lanes // 2:  # part of a register, without masks where it is full
        return 1 << (extent - 1).bit_length(), ()
    tiles = -(-extent // most)
    size = -(-extent // (tiles * lanes)) * lanes
    last = extent - (tiles - 1) * size
    return size, (last,) if 0 < last < size and last % lanes == 0 else ()
