"""Freed memory back to the system.

In: tensors that were freed. Out: `trim()` lowers the memory of the process by what the C library kept of them.
"""

import ctypes
from typing import Final

# Of glibc alone; None where the C library has no such function.
_malloc_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim() -> None:
    """Returns memory that the C library keeps free to the system, where it can be asked to."""
    if _malloc_trim is not None:
        _malloc_trim(0)
