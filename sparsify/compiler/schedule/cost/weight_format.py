"""Format of a constant sparse matrix for `X @ W.T`, and its expected gain.

In: the zeros of W [3072, 768], 10 % stored, 128 rows of X, a machine. Out: `j/192: dense, i: dense, j%192:
compressed(crd=int16)`, about 1.6 ms against 8.5 ms of torch's dense product.

Rows of W that store the same columns, four at a time, share their coordinates and are read together: a block of four
times three vectors of X needs seven loads for twelve products, one of eight times one vector nine for eight.

Pairs of neighbouring columns of bfloat16 are stored together if the CPU multiplies pairs: at 80 % zeros 36 % of the
pairs hold an entry, and a pair takes the time of a number of 32 bits.

With one row of X the cost is the read of W: a bit for each column is smaller than a coordinate for each entry, and
padded slices of rows with equally many entries are read by whole vectors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from torch import Tensor
from torch.nn.functional import pad

from sparsify.compiler.einsum.packed_numbers import PAIR
from sparsify.compiler.schedule.cost.machine import Machine
from sparsify.compiler.schedule.cost.matmul import (
    Packed,
    bit_vectors,
    bits_us,
    dense_us,
    is_looked_up,
    packed_us,
    slices_us,
)
from sparsify.storage.format import Format, LevelExpression, StoredLevel
from sparsify.storage.level.levels import Compressed, Dense

# Candidate columns of a panel, and rows of a block.
WIDTHS: Final = (96, 128, 192, 384, 768, 1536)
HEIGHTS: Final = (4, 1)
# Format with a bit for each column, for vector reads of one row of X.
PANEL_BITS: Final = 64
BITS: Final = Format(f"i: dense, j/{PANEL_BITS}: dense, j%{PANEL_BITS}: bitmap")
# Rows of a slice, the lanes of a vector; columns of a panel, whose part of X fits registers.
SLICE_ROWS: Final = 16
SLICE_COLUMNS: Final = 64
SLICES: Final = Format(
    f"i/{SLICE_ROWS}: dense, j/{SLICE_COLUMNS}: dense, i%{SLICE_ROWS}: dense, "
    f"j%{SLICE_COLUMNS}: sliced({SLICE_ROWS}, crd=int8)"
)
# Format with pairs of neighbouring columns, multiplied by one instruction.
PAIRS: Final = Format(f"i: dense, j/{PAIR}: compressed, j%{PAIR}: dense")
# Least bytes of a multiplied entry: 16-bit floats are multiplied as float32.
LANE_BYTES: Final = 4
# Bytes of a coordinate, and the number of distinct coordinates.
SHORT: Final = ((1, 1 << 7), (2, 1 << 15), (4, 1 << 31))
# A level is compressed if it stores less than 1 / SPREAD of its coordinates; default bytes of a coordinate.
SPREAD: Final = 4
WIDE_COORDINATE: Final = 4
# Most bytes of a compact format, as a multiple of the values with 16-bit coordinates.
COMPACT: Final = 1.15


@dataclass(frozen=True, slots=True)
class Packing:
    """A format, and the cost of a product with it.

    Attributes:
        format: format of W.
        stored: entries, including the padding of blocks.
        entries: entries of the matrix, zeros included.
        bytes: size in memory.
        dense_bytes: size of the dense matrix.
        us: time of a call.
        dense_us: time of torch's product with the dense W.
    """

    format: Format
    stored: int
    entries: int
    bytes: int
    dense_bytes: int
    us: float
    dense_us: float

    @property
    def is_smaller(self) -> bool:
        """Whether the format is smaller than the dense matrix."""
        return self.bytes < self.dense_bytes


def pack_matrix(
    mask: Tensor,
    rows: int,
    item_bytes: int,
    machine: Machine,
    *,
    value_bytes: int | None = None,
    compact: bool = False,
    has_pairs: bool = False,
) -> list[Packing]:
    """The formats smaller than the dense matrix, the fastest expected first.

    If none is smaller, all are returned, each with `is_smaller` false.

    Args:
        mask: mask of nonzeros of W, [outputs, columns].
        rows: rows of X.
        item_bytes: bytes of an entry of X, of the result and of the dense matrix.
        machine: machine of the product.
        value_bytes: bytes of a stored entry, by default `item_bytes`.
        compact: only formats with little more than the values and 16-bit coordinates; the smallest format if none is.
        has_pairs: whether one instruction multiplies pairs of such numbers.
    """
    value_bytes = value_bytes or item_bytes
    found = [*_packings(mask, rows, item_bytes, value_bytes, machine)]
    found += _pairs(mask, rows, item_bytes, machine) if has_pairs else []
    every = sorted(found, key=lambda one: one.us)
    most = COMPACT * int(mask.sum()) * (value_bytes + 2)
    kept = [one for one in every if one.is_smaller and (one.bytes <= most or not compact)]
    if compact and not kept:
        return [min(every, key=lambda one: one.bytes)]
    return kept or every


def _packings(
    mask: Tensor, rows: int, item_bytes: int, value_bytes: int, machine: Machine
) -> Iterator[Packing]:
    """The candidate formats."""
    outputs, columns = mask.shape
    dense = dense_us(rows, outputs, columns, machine, item_bytes)
    lane_bytes = max(item_bytes, LANE_BYTES)
    for height in HEIGHTS:
        if outputs % height:
            continue
        blocks = int(mask.view(outputs // height, height, columns).any(1).sum())
        for width in (*(width for width in WIDTHS if width < columns), columns):
            short = next(size for size, most in SHORT if width <= most)
            lists = outputs // height * -(-columns // width)
            size = blocks * (height * value_bytes + short) + 4 * (lists + 1)
            weight = Packed(blocks, lists, height, min(width, columns), outputs, columns, size)
            us = packed_us(weight, rows, machine, lane_bytes)
            format = _format(width, height, columns, short)
            entries = outputs * columns
            yield Packing(format, blocks * height, entries, size, entries * item_bytes, us, dense)
    if rows == 1 and (vectors := bit_vectors(outputs, columns, machine, lane_bytes)):
        stored, panels = int(mask.sum()), outputs * -(-columns // PANEL_BITS)
        size = stored * value_bytes + panels * (PANEL_BITS // 8 + 4) + 4
        us = bits_us(vectors, size, outputs, columns, machine, lane_bytes, value_bytes)
        yield Packing(BITS, stored, outputs * columns, size, outputs * columns * item_bytes, us, dense)
    if is_looked_up(SLICE_ROWS, machine, lane_bytes):
        slots, tiles = slots_of(mask)
        size = slots * SLICE_ROWS * (value_bytes + 1) + 4 * (tiles + 1)
        us = slices_us(slots, tiles, rows, size, outputs, columns, machine, lane_bytes)
        entries = outputs * columns
        yield Packing(SLICES, slots * SLICE_ROWS, entries, size, entries * item_bytes, us, dense)


def _pairs(mask: Tensor, rows: int, item_bytes: int, machine: Machine) -> Iterator[Packing]:
    """The formats of pairs of neighbouring columns, alone and in blocks of rows."""
    outputs, columns = mask.shape
    dense = dense_us(rows, outputs, columns, machine, item_bytes)
    whole = pad(mask, (0, -columns % PAIR))
    pairs = whole.view(outputs, -1, PAIR).any(2)
    width = pairs.shape[1]
    pair_bytes = PAIR * item_bytes
    for height in HEIGHTS:
        if outputs % height:
            continue
        blocks = int(pairs.view(outputs // height, height, width).any(1).sum())
        short = next(size for size, most in SHORT if width <= most)
        lists = outputs // height
        size = blocks * (height * pair_bytes + short) + 4 * (lists + 1)
        us = packed_us(Packed(blocks, lists, height, width, outputs, width, size), rows, machine, pair_bytes)
        row, block = ("i", "") if height == 1 else (f"i/{height}", f", i%{height}: dense")
        form = Format(f"{row}: dense, j/{PAIR}: {_compressed(short)}{block}, j%{PAIR}: dense")
        entries = outputs * columns
        yield Packing(form, PAIR * height * blocks, entries, size, entries * item_bytes, us, dense)


def pack_tensor(subscripts: str, place: int, mask: Tensor) -> Format:
    """The format of a sparse operand of any rank in an einsum whose other operands are dense.

    Index variables of the result are outermost, those shared with another operand first; summed ones are innermost, the
    longest last. Sums then stay in registers while lanes run along an index variable missing from the operand. A level
    is dense unless most of its coordinates would store nothing.

    Args:
        subscripts: subscripts of the einsum, with its result.
        place: index of the sparse operand.
        mask: mask of nonzeros.

    >>> import torch
    >>> str(pack_tensor("bmk,bkn->bmn", 1, torch.ones(2, 800, 40, dtype=torch.bool)))
    'i: dense, k: dense, j: compressed(crd=int16)'
    """
    inputs, _, result = subscripts.replace(" ", "").partition("->")
    operands = inputs.split(",")
    names = operands.pop(place)
    shared = {name for name in names if any(name in other for other in operands)}

    def rank(mode: int) -> tuple[bool, bool, int]:
        name = names[mode]
        return name not in result, name not in shared, mask.shape[mode] if name not in result else 0

    ordering = sorted(range(len(names)), key=rank)
    left, levels = mask.permute(ordering), list[StoredLevel]()
    before, is_listed = 1, False
    for depth, mode in enumerate(ordering):
        inner = left.flatten(depth + 1) if depth + 1 < len(ordering) else left.unsqueeze(-1)
        stored = int(inner.any(-1).sum())
        is_listed |= depth + 1 == len(ordering) or SPREAD * stored < before * mask.shape[mode]
        before = stored
        short = next(size for size, most in SHORT if mask.shape[mode] <= most)
        crd = f"int{8 * short}" if short < WIDE_COORDINATE else ""
        levels.append(StoredLevel(LevelExpression(mode), Compressed(crd=crd) if is_listed else Dense()))
    return Format(tuple(levels))


def slots_of(mask: Tensor) -> tuple[int, int]:
    """The number of slots of a matrix's slices, and of tiles: a tile has as many slots as its fullest row.

    Args:
        mask: mask of nonzeros, [outputs, columns].
    """
    whole = pad(mask, (0, -mask.shape[1] % SLICE_COLUMNS, 0, -mask.shape[0] % SLICE_ROWS))
    slices, panels = whole.shape[0] // SLICE_ROWS, whole.shape[1] // SLICE_COLUMNS
    tiles = whole.view(slices, SLICE_ROWS, panels, SLICE_COLUMNS)
    return int(tiles.sum(3).amax(1).sum()), slices * panels


def _format(width: int, height: int, columns: int, short: int) -> Format:
    """Panels of `width` columns, blocks of `height` rows."""
    panel, column = ("", "j") if width >= columns else (f"j/{width}: dense, ", f"j%{width}")
    row, block = ("i", "") if height == 1 else (f"i/{height}", f", i%{height}: dense")
    return Format(f"{panel}{row}: dense, {column}: {_compressed(short)}{block}")


def _compressed(short: int) -> str:
    """A compressed level with coordinates of `short` bytes."""
    return f"compressed(crd=int{8 * short})" if short < WIDE_COORDINATE else "compressed"
