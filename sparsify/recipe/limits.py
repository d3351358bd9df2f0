"""The limits of recipe files.

In: the size of a file. Out: `MAX_BYTES`, before the file is read.
"""

from typing import Final

MAX_NODES: Final = 20_000
MAX_BYTES: Final = 256 << 10
