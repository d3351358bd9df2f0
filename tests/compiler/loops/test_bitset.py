"""Flags of a bitset: whole groups of 4096, and a flag for each 64 of them."""

import pytest

from sparsify.compiler.loops.arithmetic import integer
from sparsify.compiler.loops.bitset import BLOCKS, MARKS, WIDTH, marks_bytes, padded


@pytest.mark.parametrize(("extent", "flags"), [(0, 0), (1, 4096), (4096, 4096), (4097, 8192), (5000, 8192)])
def test_sizes(extent, flags):
    assert padded(extent) == flags
    assert marks_bytes(integer(extent)) == integer(flags + flags // MARKS)
    assert WIDTH == MARKS * BLOCKS
