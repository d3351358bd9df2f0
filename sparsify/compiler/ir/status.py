"""Statuses of kernels: the number that a kernel returns, and its meaning.

In: `return 2` in a kernel. Out: a `KernelError` that says that a position does not fit int32.
"""

from typing import Final

OUT_OF_MEMORY: Final = 1
POSITION_OVERFLOW: Final = 2
KEY_OVERFLOW: Final = 5
STATUSES: Final = {
    OUT_OF_MEMORY: "the kernel ran out of memory",
    POSITION_OVERFLOW: "a position does not fit int32; use int64 for pos and crd",
    3: "a coordinate lies outside its mode; the tensor's crd and shape do not fit each other",
    4: "the kernel found itself in a state that cannot be; this is a mistake of sparsify",
    KEY_OVERFLOW: "coordinates of a workspace of several modes make no key of 63 bits; ask for another order of the "
    "loops",
}
