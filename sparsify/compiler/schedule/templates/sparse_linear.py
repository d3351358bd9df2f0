"""Products of a sparse matrix with rows contiguous along the sum: tiles of rows, transposed to have rows as lanes.

In:  `Y[t,n] = sum(k, X[t,k] * W[n,k])`, W in panels of 96 columns, `k/96: dense, n: dense, k%96: compressed`.
Out: `split t to ti 64 masked; order to, ko, n, ki, ti; precompute tile_Y = Y at to in thread; order Y: to, ti, n;
     precompute sums = tile_Y at n in register; pack turned_X = X[ko, ki, ti] at to in thread; transpose ki ti in
     turned_X; transpose ti n in Y; vector ti in sums; vector ti in tile_Y; parallel to dynamic chunks 4`

A tile of rows of X is transposed once and then read by every stored entry: one element of W times 64 elements of a
column. Columns in panels keep the part of the tile read at a time in the first-level cache.
"""

from collections.abc import Iterator
from typing import Final

from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates import sparse_linear_row
from sparsify.compiler.schedule.templates.panels import TURNED_BYTES, Panels

# Accumulator registers: enough to hide the latency of an fma, leaving half of 16 for loads. A block loads each vector
# of X for all of its rows: twelve of 16 registers are accumulators with seven loads, or sixteen of 32; more would need
# tiles that exceed the near caches.
REGISTERS: Final = 8
BLOCK_REGISTERS: Final = 12
WIDE_BLOCK_REGISTERS: Final = 16
WIDE_BYTES: Final = 64
# Cost of a stored entry besides its accumulation, in vectors of sums.
ENTRY_VECTORS: Final = 1.5
# Bytes of a column of a tile; as many rows as accumulators allow if the panel then fits the first-level cache.
TILE_BYTES: Final = 256
NEAR_BYTES: Final = 48 << 10
# Scalar accumulators for the entries of a long row, for one row of X.
SETS: Final = 8
# Fewest tiles that threads share; with fewer tiles, threads share parts of the result's columns.
FEW_TILES: Final = 2
# Most rows of X for which the rows of a slice are the lanes.
FEW_ROWS: Final = 8


def schedules(product: Panels, lanes: int, item_bytes: int, sizes: Sizes) -> Iterator[d.Schedule]:
    """The schedules, the best first; empty if a tile exceeds the caches, except for slices."""
    rows = sizes.extents.get(product.row)
    yield from _few(product, rows, lanes, sizes)
    tile = _tile(product, rows, lanes, item_bytes, sizes)
    if not tile:
        yield from _few(product, 1, lanes, sizes) if product.loops.has_slices else ()
        return
    count = 1 if product.loops.has_slices else _sets(product, tile // lanes, sizes)
    few = rows is not None and -(-rows // tile) < FEW_TILES
    for sets in dict.fromkeys((count, 1)):
        yield _tiled(product, tile, sets, product.part_size(sizes, lanes) if few else 0)
    yield _tiled(product, tile, 1, 0)


def _few(product: Panels, rows: int | None, lanes: int, sizes: Sizes) -> Iterator[d.Schedule]:
    """Schedules for few rows of X, computed one after the other."""
    part = product.part_size(sizes, 1)
    if product.loops.has_slices:
        if rows is not None and rows <= FEW_ROWS:
            yield sparse_linear_row.slices(product, lanes, part)
    elif rows == 1 and product.loops.has_bits:
        yield sparse_linear_row.bits(product, lanes, part)
    elif rows == 1 and not product.loops.block:
        if lanes > 1 and product.is_long(lanes, sizes):
            yield sparse_linear_row.entries(product, lanes, part, in_lanes=True)
        yield sparse_linear_row.entries(product, SETS if product.is_long(SETS, sizes) else SETS // 2, part)


def _tile(product: Panels, rows: int | None, lanes: int, item_bytes: int, sizes: Sizes) -> int:
    """The number of rows of X in a tile, 0 if no tile stays in cache."""
    height = 1 if product.loops.has_slices else product.loops.height
    tile = tile_rows(rows, lanes, item_bytes, height, product.width(sizes))
    most = TURNED_BYTES // (product.width(sizes) * item_bytes)
    if product.loops.has_slices:  # all columns are transposed at once, across panels
        tile = min(tile, most // lanes * lanes)
    return tile if tile <= most else 0


def _sets(product: Panels, registers: int, sizes: Sizes) -> int:
    """The number of entries of a row at a time with independent accumulators."""
    sets = REGISTERS // (registers * product.loops.height)
    while sets > 1 and not product.is_long(sets, sizes):
        sets //= 2
    return max(sets, 1)


def _tiled(product: Panels, size: int, sets: int, part: int) -> d.Schedule:
    """Tiles of `size` rows with sums in registers, `sets` entries of W at a time.

    Threads share parts of the outputs if `part` is not 0.
    """
    outer, row = product.name(f"{product.row}o"), product.name(f"{product.row}i")
    steps: list[d.Directive] = [d.Split(product.row, outer, row, size, masked=True)]
    split, shared, output = product.shared(part)
    steps += split
    columns = [product.loops.column]
    if sets > 1:
        place, *columns = product.places()
        steps.append(d.Pos(product.loops.column, place, product.weight.name))
        steps.append(d.Split(place, columns[0], columns[1], sets))
    first = [*shared, *product.leading, outer]
    outputs = [name for name in (output, product.loops.block) if name]
    around = product.loops.around(output)
    in_slice = product.loops.block if product.loops.has_slices else ""
    in_block = "" if in_slice else product.loops.block
    inside = [name for name in (*around, in_slice, *columns, in_block, row) if name]
    steps.append(d.Order((*first, *inside)))
    tile, collected = product.collect(d.Order((*first, row, *outputs), product.result), outer)
    steps += collected
    turned = product.name(f"turned_{product.dense.name}")
    packed = tuple(name for name in (product.loops.panel, product.loops.column) if name)
    sums = product.name("sums")
    steps.append(d.Precompute(sums, "register", at=in_slice or output, source=tile))
    if sets > 1:
        apart = product.name("apart")
        steps += [d.Precompute(apart, "register", source=sums, over=columns[1]), d.Unroll(columns[1])]
        steps.append(d.Vector(row, apart))
    steps += [
        d.Pack(turned, product.dense.name, (*packed, row), outer, "thread"),
        d.Transpose(product.loops.column, row, turned),
    ]
    if product.loops.block:
        output = product.loops.rows
        steps.append(d.Join(output, product.result))
        steps += [d.Unroll(in_block)] if in_block else []
    steps += [
        d.Transpose(row, output, product.result),
        d.Vector(row, sums),
        d.Vector(row, tile),
        d.Parallel(first[0], "dynamic", chunks=4),
    ]
    return d.Schedule(tuple(steps))


def tile_rows(rows: int | None, lanes: int, item_bytes: int, height: int = 1, width: int = 0) -> int:
    """The number of rows of X in a tile: the choice with the least total time.

    Args:
        rows: rows of X, if known.
        lanes: lanes of a vector.
        item_bytes: bytes of an entry of X.
        height: height of the blocks of W.
        width: width of its panels, 0 if unknown.

    >>> tile_rows(70, 8, 4), tile_rows(1024, 8, 4, height=4), tile_rows(128, 8, 4, height=4)
    (40, 24, 16)
    >>> tile_rows(1024, 16, 4, height=4), tile_rows(1024, 16, 4, height=8)
    (64, 32)
    >>> tile_rows(1024, 16, 4, width=96), tile_rows(1024, 16, 4, width=192)
    (128, 64)
    """
    if height > 1:
        is_wide = lanes * item_bytes >= WIDE_BYTES
        most = (WIDE_BLOCK_REGISTERS if is_wide else BLOCK_REGISTERS) // height
    elif 0 < width * REGISTERS * lanes * item_bytes <= NEAR_BYTES:
        most = REGISTERS
    else:
        most = min(REGISTERS, TILE_BYTES // (item_bytes * lanes))
    if not rows:
        return max(most, 1) * lanes
    best = min(
        range(max(most, 1), 0, -1), key=lambda n: -(-rows // (n * lanes)) * (n + ENTRY_VECTORS / height)
    )
    return best * lanes
