"""Sums scattered into rows narrower than whole vector registers, collected in padded rows.

In:  `Y[i,k] += A[i,j] * B[j,k]`, A in CSC, 7 columns, 16 lanes.
Out: `split k ko ki 8; order ko, j, i, ki; precompute sum_Y = Y at ko in memory; vector ki`

Each product is added to a row in memory. A processor forwards a plain store to the next load of the row, but not a
masked store: the load waits for the cache, even if only masked lanes belong to the next row. Whole registers of 16
bytes and more do not wait.

On an AMD Zen 5, one thread, float32, 1.5 million entries of a mesh of 30,000 rows, in us:

    columns         1      2      3      5      7      8     12     20
    masked       6300   6400   6360   6640   6660      -   7590   8340
    padded       1030   1100   1130   1350   1400   1015   2090   3410
"""

from collections.abc import Sequence
from math import prod
from typing import Final

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.schedule.sizes import Sizes

# The smallest registers with store forwarding: two halves of smaller ones are stored separately.
LEAST_BYTES: Final = 16
# Stall of the next load of a row after a masked store; time to clear and copy a byte of padded rows.
WAIT_NS: Final = 4.0
BYTE_NS: Final = 0.15


def padded_lanes(
    assign: Assign,
    lane: str,
    sparse: Sequence[Access],
    size: int,
    lanes: int,
    item_bytes: int,
    sizes: Sizes,
) -> int | None:
    """The iterations of `lane` in a tile of padded rows; `None` if masks are cheaper or not needed.

    Args:
        assign: assignment that adds to the rows.
        lane: loop along a row of the target.
        sparse: accesses to sparse operands, of which a single one selects the rows.
        size: iterations of a tile of unpadded rows.
        lanes: elements in a vector register.
        item_bytes: bytes of such an element.
        sizes: sizes of the operands; unknown sizes favour masks.
    """
    name = sparse[0].tensor if len(sparse) == 1 else ""
    crowding, extent = sizes.crowding(name), sizes.extents.get(lane)
    if crowding is None or extent is None or index_names(assign.target)[-1:] != (lane,):
        return None
    whole = max(size, LEAST_BYTES // item_bytes) if extent > 1 else LEAST_BYTES // item_bytes
    register = min(whole, lanes)
    if extent % register == 0 or whole % register or whole < 2:
        return None
    accesses = find(assign.value, Access)
    free = {index for access in accesses for index in index_names(access)} - {*index_names(sparse[0]), lane}
    rows = [index for index in index_names(assign.target) if index != lane]
    if any(index not in sizes.extents for index in (*free, *rows)):
        return None
    added = sizes.stored.get(name, 0) * prod(sizes.extents[index] for index in free)
    padded_bytes = prod(sizes.extents[index] for index in rows) * -(-extent // whole) * whole * item_bytes
    return whole if added * crowding * WAIT_NS > padded_bytes * BYTE_NS else None
