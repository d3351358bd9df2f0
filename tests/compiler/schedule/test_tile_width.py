"""Tiles of columns: whole registers, as equal as possible, and the pieces of the last one."""

import pytest

from sparsify.compiler.schedule.tile_width import WIDE_TILE_BYTES, has_wide_tiles, lane_tile


@pytest.mark.parametrize(
    ("extent", "lanes", "tile"),
    [
        (None, 16, (128, (64, 32, 16))),
        (128, 16, (128, ())),
        (130, 16, (80, ())),
        (144, 16, (80, (64,))),
        (256, 16, (128, ())),
        (3, 16, (4, ())),
        (1, 16, (16, ())),
        (9, 16, (16, ())),
        (7, 1, (7, ())),
    ],
)
def test_tiles(extent, lanes, tile):
    assert lane_tile(extent, lanes, 4) == tile


def test_wide_tiles_need_long_rows_and_wide_registers():
    assert lane_tile(256, 16, 4, WIDE_TILE_BYTES) == (256, ())
    assert has_wide_tiles(48, 16, 4)
    assert not any((has_wide_tiles(None, 16, 4), has_wide_tiles(47, 16, 4), has_wide_tiles(48, 8, 4)))
