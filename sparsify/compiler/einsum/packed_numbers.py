"""Numbers packed in an int32, and their dot products: pairs of bfloat16, quadruples of bytes.

In: `dot_bfloat16(x, y)` of the pairs (1, 2) and (3, 4). Out: 1 * 3 + 2 * 4, float32. One instruction adds such products
to a sum.

The lowest bits are the first number: a row of bfloat16 in memory, read as int32, is a row of its pairs. In
`dot_uint8_int8(x, y)`, the bytes of x count from 0 to 255, those of y from -128 to 127, and sums are int32.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS and VPDPBUSD.
"""

from typing import Any, Final

import numpy as np

PAIR: Final = 2
HALF_BITS: Final = 16
BYTE_BITS: Final = 8
FIRSTS: Final = range(0, 32, BYTE_BITS)


def dot_bfloat16(x: Any, y: Any, total: Any = 0) -> Any:
    """The sum of the products of two pairs, added to `total`; integers of any width hold the pairs.

    >>> pairs = [np.asarray(pair, np.float32).view(np.uint32) >> 16 for pair in ([1, 2], [3, 4])]
    >>> float(dot_bfloat16(*(low | high << 16 for low, high in pairs)))
    11.0
    """
    (first, second), (other, another) = _halves(x), _halves(y)
    with np.errstate(all="ignore"):
        return second * another + total + first * other


def dot_uint8_int8(x: Any, y: Any, total: Any = 0) -> Any:
    """The sum of the products of four bytes without and with a sign, added to `total`, int32.

    >>> int(dot_uint8_int8(0xFF000002, 0x01FFFFFF))
    253
    """
    products = sum((_bits(x) >> n & 0xFF) * (((_bits(y) >> n & 0xFF) ^ 0x80) - 0x80) for n in FIRSTS)
    return (products + total).astype(np.int32)


def _bits(packed: Any) -> Any:
    """The bits of packed numbers, int64 from 0 to 2**32 - 1."""
    return np.asarray(packed).astype(np.int64) & 0xFFFFFFFF


def _halves(pairs: Any) -> tuple[Any, Any]:
    """The numbers of pairs, float32: a bfloat16 has the upper half of the bits of a float32."""
    bits = _bits(pairs).astype(np.uint32)
    return (bits << np.uint32(HALF_BITS)).view(np.float32), (bits & np.uint32(0xFFFF0000)).view(np.float32)
