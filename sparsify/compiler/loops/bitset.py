"""Bitset of marks: flags of numbers below an extent, and of blocks of numbers, to scan only blocks with marks.

In: an extent of 5000. Out: 8192 flags, a byte each, then 128 flags of blocks of 64 numbers.
"""

from typing import Final

from sparsify.compiler.loops.arithmetic import integer, plus, quotient, times
from sparsify.compiler.loops.nodes import Expr

# Numbers per block, and blocks scanned together.
MARKS: Final = 64
BLOCKS: Final = 64
WIDTH: Final = MARKS * BLOCKS


def padded(extent: int) -> int:
    """The starts of the flags of blocks.

    >>> padded(5000)
    8192
    """
    return -(-extent // WIDTH) * WIDTH


def marks_bytes(extent: Expr) -> Expr:
    """The memory of all flags."""
    return times(quotient(plus(extent, integer(WIDTH - 1)), integer(WIDTH)), integer(WIDTH + BLOCKS))
