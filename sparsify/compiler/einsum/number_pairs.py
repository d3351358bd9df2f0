"""Pairs of bfloat16 as the halves of an int32, and their dot product.

In: `dot_bfloat16(x, y)` of the pairs (1, 2) and (3, 4). Out: 1 * 3 + 2 * 4, float32. An instruction of AVX-512 adds
such products to a sum.

The lower half is the first number of a pair: a row of bfloat16 in memory, read as int32, is a row of its pairs.

Source: Intel, AVX512_BF16 instruction VDPBF16PS, Intel 64 and IA-32 Architectures Software Developer's Manual.
"""

from typing import Any, Final

import numpy as np

PAIR: Final = 2
HALF_BITS: Final = 16


def dot_bfloat16(x: Any, y: Any, total: Any = 0) -> Any:
    """The sum of the products of two pairs, added to `total`; integers of any width hold the pairs.

    >>> pairs = [np.asarray(pair, np.float32).view(np.uint32) >> 16 for pair in ([1, 2], [3, 4])]
    >>> float(dot_bfloat16(*(low | high << 16 for low, high in pairs)))
    11.0
    """
    (first, second), (other, another) = _halves(x), _halves(y)
    with np.errstate(all="ignore"):
        return second * another + total + first * other


def _halves(pairs: Any) -> tuple[Any, Any]:
    """The numbers of pairs, float32: a bfloat16 has the upper half of the bits of a float32."""
    bits = (np.asarray(pairs).astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
    return (bits << np.uint32(HALF_BITS)).view(np.float32), (bits & np.uint32(0xFFFF0000)).view(np.float32)
