"""Return of freed memory to the system.

In: tensors that were freed. Out: `trim()` returns the part kept by the C library, lowering the memory of the process.
"""

import ctypes
from typing import Final

# In glibc alone; None in other C libraries.
_malloc_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim() -> None:
    """Returns free memory of the C library to the system, if supported by the library."""
    if _malloc_trim is not None:
        _malloc_trim(0)
