"""Products of a sparse matrix with one row: nothing to transpose, the cost is the read of the matrix.

In:  `Y[t,n] = sum(k, X[t,k] * W[n,k])`, W in slices of 16 rows, `n/16: dense, k/64: dense, n%16: dense, k%64: sliced`.
Out: `order t, no, ko, ni, ki; precompute sums = Y at no in register; precompute part = sums at ko in register; pack
     table_X = X[ki] at ko in register; vector ni in sums; vector ni in part; vector ki in table_X; vector ni in Y;
     parallel t dynamic chunks 4`

Lanes are the rows of a slice: each looks its element of X up in a table held in registers.
"""

from typing import Final

from sparsify.compiler.ir.dtypes import STORED_HALVES
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.templates.panels import Panels

# Most vectors of a table: at most half of the registers, and few to select from.
TABLE: Final = 8


def slices(product: Panels, lanes: int, part: int) -> d.Schedule:
    """The rows of a slice in vector lanes; any number of rows of X, one after the other."""
    loops = product.loops
    steps, shared, output = product.shared(part)
    first = [*shared, *product.leading, product.row]
    steps.append(d.Order((*first, *loops.around(output), loops.block, loops.column)))
    if 1 < lanes <= loops.height and loops.height % lanes == 0 and loops.width <= TABLE * lanes:
        steps.append(d.Order((*first, output, loops.block), product.result))
        sums, part_of, table = (
            product.collected,
            product.name("part"),
            product.name(f"table_{product.dense.name}"),
        )
        if product.collected != product.result:
            steps.append(d.Precompute(sums, "register", at=output))
        else:
            sums = product.name("sums")
            steps.append(d.Precompute(sums, "register", at=output, source=product.collected))
        steps += [
            d.Precompute(part_of, "register", at=loops.panel, source=sums),
            d.Pack(table, product.dense.name, (loops.column,), loops.panel, "register"),
            *(d.Vector(loops.block, nest) for nest in (sums, part_of, product.result)),
            d.Vector(loops.column, table),
        ]
    return d.Schedule((*steps, d.Parallel(first[0], "dynamic", chunks=4)))


def bits(product: Panels, lanes: int, part: int) -> d.Schedule:
    """The bits of vectors of columns at a time, a partial sum for each column of a panel."""
    steps, shared, output = product.shared(part)
    first = [*shared, *product.leading, product.row]
    steps.append(d.Order((*first, *product.loops.around(output), product.loops.column)))
    tile, collected = product.collect(d.Order((*first, output), product.result), product.row)
    steps += collected
    sums, column = product.name("sums"), product.loops.column
    steps.append(d.Precompute(sums, "register", at=output, source=tile))
    if lanes > 1:
        apart = product.name("apart")
        steps.append(d.Precompute(apart, "register", source=sums, over=column))
        steps += [*_widened(product), d.Vector(column)]
    return d.Schedule((*steps, d.Parallel(first[0], "dynamic", chunks=4)))


def entries(product: Panels, count: int, part: int, *, in_lanes: bool = False) -> d.Schedule:
    """`count` entries of a row of W at a time, one accumulator each: scalars, or the lanes of a vector."""
    place, group, member = product.places()
    steps: list[d.Directive] = [
        d.Pos(product.loops.column, place, product.weight.name),
        d.Split(place, group, member, count),
    ]
    split, shared, output = product.shared(part)
    first = [*shared, *product.leading, product.row]
    inside = [name for name in (product.loops.panel, output, group, member) if name]
    steps += [*split, d.Order((*first, *inside))]
    tile, collected = product.collect(d.Order((*first, output), product.result), product.row)
    steps += collected
    sums = product.name("sums")
    steps += [
        d.Precompute(sums, "register", at=output, source=tile),
        d.Precompute(product.name("apart"), "register", source=sums, over=member),
    ]
    steps += [*_widened(product), d.Vector(member)] if in_lanes else [d.Unroll(member)]
    return d.Schedule((*steps, d.Parallel(first[0], "dynamic", chunks=4)))


def _widened(product: Panels) -> list[d.Directive]:
    """A copy of a row of X in 16 bits as float32: converted once, not for each row of W."""
    if product.dense.dtype not in STORED_HALVES:
        return []
    columns = tuple(name for name in (product.loops.panel, product.loops.column) if name)
    name = product.name(f"widened_{product.dense.name}")
    return [d.Pack(name, product.dense.name, columns, product.row, "thread")]
