"""Pictures of shares in one colour, as PNG: small enough to embed in a page.

In: `png(((0.0, 1.0), (0.5, 0.0)), (42, 120, 184))`. Out: the bytes of a file of 2 x 2 pixels; zeros are transparent.
"""

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from math import sqrt

SHADES = 16


def png(cells: Sequence[Sequence[float]], colour: tuple[int, int, int]) -> bytes:
    """The file of a picture: one pixel for each cell, with 16 opacities by the square root of the share.

    Source: Portable Network Graphics (PNG) Specification, W3C, 2003, sections 11.2.2 to 11.3.2.1.

    >>> png(((1.0,),), (0, 0, 0))[:4]
    b'\\x89PNG'
    """
    height, width = len(cells), len(cells[0]) if cells else 0
    most = max((share for line in cells for share in line), default=0.0) or 1.0
    lines = bytearray()
    for line in cells:
        shades = [min(SHADES - 1, -int(-sqrt(share / most) * (SHADES - 1) // 1)) for share in line]
        shades += [0] * (width % 2)
        lines += b"\0" + bytes(high << 4 | low for high, low in zip(shades[::2], shades[1::2], strict=True))
    opacities = bytes(round(255 * shade / (SHADES - 1)) for shade in range(SHADES))
    header = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"PLTE", bytes(colour) * SHADES),
        (b"tRNS", opacities),
        (b"IDAT", zlib.compress(bytes(lines), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of the file, with length and checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_uri(file: bytes) -> str:
    """The data URI of a PNG file."""
    return f"data:image/png;base64,{b64encode(file).decode()}"
