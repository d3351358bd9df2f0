"""The cost of matrix products: dense ones of torch, and those with a packed weight.

In: a weight [3072, 768] with a tenth of its entries in panels of 192 columns, 128 rows, a machine. Out: about 1.6 ms,
against 8.5 ms of torch's dense product.
"""

from dataclasses import dataclass
from math import log
from typing import Final

from sparsify.compiler.schedule.cost.machine import Machine, scaled
from sparsify.compiler.schedule.templates.sparse_linear import tile_rows

# Vectors' times of generated loops, fitted to measurements on AVX2: per stored column or
# block; per vector of sums in it; per list of columns; per vector of sums of that; per entry of X and of the result.
STORED: Final = 1.9
VECTOR: Final = 0.95
LIST: Final = 29.0
LIST_VECTOR: Final = 3.7
TURNED: Final = 1.5
WRITTEN: Final = 3.7
# Bytes that fit the first-level cache of any machine.
NEAREST_BYTES: Final = 1 << 14
# Per stored entry multiplied with a scalar; of a weight multiplied with one row, by vectors of entries.
SINGLE: Final = 2.8
ENTRY: Final = 1.6
# Per vector of columns stored as bits, with entries of four bytes and with narrower ones.
BIT_VECTOR: Final = 6.0
NARROW_BIT_VECTOR: Final = 5.0
EXPANDED_BYTES: Final = 4
EXPANDED_LANES: Final = 8
# Per slot of a slice and row of X, if one instruction looks up elements of X in two registers; per list of slots.
SLOT: Final = 7.0
SLOTS: Final = 4.0
LOOKED_UP_BYTES: Final = 64
# Per vector of a tile of dense matrices; per entry of the matrix copied to panels.
TILED: Final = 1.15
COPIED: Final = 1.0
# Least gain of generated code over torch's dense product, to justify a compilation.
WORTH_US: Final = 100.0
# Outputs of the narrowest measured product.
NARROWEST: Final = 16


@dataclass(frozen=True, slots=True)
class Packed:
    """A sparse matrix in the layout that products read.

    Attributes:
        blocks: number of blocks of `height` rows that store a column together.
        lists: number of lists of columns, one for each block row and panel.
        height: rows of a block.
        width: columns of a panel.
        outputs, columns: extents.
        bytes: size in memory.
    """

    blocks: int
    lists: int
    height: int
    width: int
    outputs: int
    columns: int
    bytes: int


def kernel_us(busy_us: float, bytes_moved: float, machine: Machine) -> float:
    """The time of a kernel call from the time of its loops on one thread, bounded below by memory traffic.

    The estimate starts threads if that is faster.
    """
    alone = max(busy_us, bytes_moved / machine.reads.at(bytes_moved))
    if machine.threads == 1:
        return machine.call_us + alone
    shared = max(busy_us / machine.spread, bytes_moved / machine.reads_all.at(bytes_moved))
    return machine.call_us + min(alone, shared + machine.fork_us)


def dense_us(rows: int, outputs: int, columns: int, machine: Machine, item_bytes: int = 4) -> float:
    """The time of torch's product of [rows, columns] and [columns, outputs]."""
    operations = 2.0 * rows * outputs * columns
    moved = item_bytes * (rows * columns + columns * outputs + rows * outputs)
    rate = dense_rate(rows, outputs, columns, machine) * 4 / item_bytes
    return machine.torch_us + max(operations / rate, moved / machine.reads_all.at(moved))


def tiled_us(rows: int, outputs: int, columns: int, machine: Machine, item_bytes: int = 4) -> float:
    """The time of a generated register-tiled product of [rows, columns] and [columns, outputs]."""
    lanes = max(1, machine.vector_bytes // item_bytes)
    vectors = rows * columns * -(-outputs // lanes)
    moved = item_bytes * (rows * columns + columns * outputs + rows * outputs)
    return kernel_us(
        (TILED * vectors + COPIED * columns * outputs) * machine.vector_us, float(moved), machine
    )


def is_tiled(rows: int, outputs: int, columns: int, machine: Machine, item_bytes: int = 4) -> bool:
    """Whether a dense product is generated: expected to beat torch's by more than the worth of a compilation."""
    sizes = rows, outputs, columns
    return dense_us(*sizes, machine, item_bytes) - tiled_us(*sizes, machine, item_bytes) >= WORTH_US


def product_us(rows: int, outputs: int, columns: int, machine: Machine, item_bytes: int = 4) -> float:
    """The time of a dense product: of a generated kernel if one would be chosen on such a machine, else of torch."""
    sizes = rows, outputs, columns
    alike = scaled(machine.threads, machine.vector_bytes)
    cost = tiled_us if is_tiled(*sizes, alike, item_bytes) else dense_us
    return cost(*sizes, machine, item_bytes)


def dense_rate(rows: int, outputs: int, columns: int, machine: Machine) -> float:
    """Operations a microsecond of torch's product in float32, by its rows, its outputs and its size."""
    full, full_rate = machine.dense.points[-1]
    rate = machine.dense.at(rows)
    if outputs < full:  # tall and narrow
        share = log(max(outputs, NARROWEST) / NARROWEST) / log(full / NARROWEST)
        rate = min(rate, machine.dense_tall + max(0.0, full_rate - machine.dense_tall) * share)
    small, large = 64.0**3, float(full) ** 3
    size = max(small, float(rows) * outputs * columns)
    if size < large:
        share = log(size / small) / log(large / small)
        rate = min(rate, machine.dense_small + max(0.0, full_rate - machine.dense_small) * share)
    return rate


def packed_us(weight: Packed, rows: int, machine: Machine, item_bytes: int) -> float:
    """The time of a call of `X @ W.T` with `rows` rows of X."""
    moved = weight.bytes + item_bytes * rows * (weight.columns + weight.outputs)
    return kernel_us(packed_loops_us(weight, rows, machine, item_bytes), moved, machine)


def packed_loops_us(weight: Packed, rows: int, machine: Machine, item_bytes: int) -> float:
    """The time of the loops on one thread: tiles of X are transposed, and read by every stored entry."""
    vector_us = machine.vector_us
    if rows == 1 and weight.height == 1:
        return (weight.blocks * ENTRY + weight.lists * LIST) * vector_us
    lanes = max(1, machine.vector_bytes // item_bytes)
    tile = tile_rows(rows, lanes, item_bytes, weight.height, weight.width)
    read = tile // lanes  # vectors of X, each for all rows of a block
    vectors = weight.height * read
    near, far = (
        max(machine.vector_bytes, item_bytes) / machine.reads.at(size) / vector_us * read
        for size in (NEAREST_BYTES, weight.width * tile * item_bytes)
    )
    # Arithmetic hides loads from the first-level cache, not slower ones.
    block = STORED + max(VECTOR * vectors, near) + max(0.0, far - near)
    one = weight.blocks * block + weight.lists * (LIST + LIST_VECTOR * vectors)
    around = rows * (TURNED * weight.columns + WRITTEN * weight.outputs)
    return (one * -(-rows // tile) + around) * vector_us


def bit_vectors(outputs: int, columns: int, machine: Machine, item_bytes: int) -> int:
    """The vectors of columns multiplied with a row of X, 0 without an instruction that expands entries."""
    if item_bytes != EXPANDED_BYTES or machine.vector_bytes < EXPANDED_BYTES * EXPANDED_LANES:
        return 0
    return outputs * -(-columns // EXPANDED_LANES)


def bits_us(
    vectors: int,
    weight_bytes: int,
    outputs: int,
    columns: int,
    machine: Machine,
    item_bytes: int,
    value_bytes: int,
) -> float:
    """The time of a call for one row of X and a weight with a bit for each column.

    Args:
        vectors: vectors of columns.
        weight_bytes: bytes of the weight.
        outputs, columns: extents of the weight.
        machine: machine of the product.
        item_bytes: bytes of an element that is multiplied.
        value_bytes: bytes of a stored entry.
    """
    moved = weight_bytes + item_bytes * (columns + outputs)
    each = BIT_VECTOR if value_bytes >= item_bytes else NARROW_BIT_VECTOR
    return kernel_us((vectors * each + outputs * LIST) * machine.vector_us, moved, machine)


def is_looked_up(slice_rows: int, machine: Machine, item_bytes: int) -> bool:
    """Whether the rows of a slice fill a vector, and an instruction looks lanes up in other registers."""
    return machine.vector_bytes >= LOOKED_UP_BYTES and slice_rows * item_bytes == machine.vector_bytes


def slices_us(
    slots: int,
    lists: int,
    rows: int,
    weight_bytes: int,
    outputs: int,
    columns: int,
    machine: Machine,
    item_bytes: int,
) -> float:
    """The time of a call with a weight in slices, read completely by each row of X."""
    moved = weight_bytes + item_bytes * rows * (columns + outputs)
    return kernel_us(rows * (slots * SLOT + lists * SLOTS) * machine.vector_us, moved, machine)
