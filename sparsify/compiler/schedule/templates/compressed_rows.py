"""Entries of dense rows stored if different from the fill: a row is computed, then compressed.

In: `forall i: forall k: Y[i,k] = relu(T[i,k])`, T dense, Y stored csr and dropping fills.
Out: `precompute row_Y = Y at i in thread; vector k in row_Y; parallel i static`
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Access, Assign, Index
from sparsify.compiler.ir.dtypes import STORED_HALVES
from sparsify.compiler.ir.node import find, holds
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Let, Notation
from sparsify.compiler.schedule import directives as d
from sparsify.compiler.schedule.nests import loop_chain, loop_names


@dataclass(frozen=True, slots=True)
class Dropped:
    """An entrywise result of dense operands that drops fills.

    Attributes:
        result: name of the result.
        rows: loops over all modes but the last level's, outermost first.
        column: loop over the last level's mode.
        is_read_as_it_is: whether the entries are those of a row of an operand.
        row: name of a temporary.
    """

    result: str
    rows: tuple[str, ...]
    column: str
    is_read_as_it_is: bool
    row: str

    def schedules(self, lanes: int) -> Iterator[d.Schedule]:
        """Schedules with threads over the rows and vectors along them, then without."""
        order = (d.Order((*self.rows, self.column)),)
        for is_vector in (True, False) if lanes > 1 else (False,):
            steps: list[d.Directive] = [*order]
            if not self.is_read_as_it_is:
                steps.append(d.Precompute(self.row, "thread", at=self.rows[-1], source=self.result))
                steps += [d.Vector(self.column, self.row)] if is_vector else []
            yield d.Schedule((*steps, d.Parallel(self.rows[0], "static")))
            yield d.Schedule(tuple(steps))


def dropped(program: Notation) -> Dropped | None:
    """`program` as entries stored by value, `None` for other programs."""
    if len(program.outputs) != 1 or holds(program.body, Let):
        return None
    declarations = {declared.name: declared for declared in program.declarations}
    output = declarations[program.outputs[0]]
    chain, inner = loop_chain(program.body)
    if not output.drops or not isinstance(inner, Assign) or inner.monoid is not None:
        return None
    modes = index_names(inner.target)
    stored = [modes[level.expression.mode] for level in output.format.levels]
    reads = find(inner.value, Access)
    is_dense = all(declarations[access.tensor].format.is_dense for access in reads)
    if not is_dense or sorted(stored) != sorted(loop.index for loop in chain) or len(stored) < 2:
        return None
    match inner.value:
        case Access(tensor, indices) if indices:
            last = indices[declarations[tensor].format.ordering[-1]]
            is_row = last == Index(stored[-1]) and declarations[tensor].dtype == output.dtype
            # Selections compare half-precision entries after rounding from a row in float32.
            is_row &= output.selection is None or output.dtype not in STORED_HALVES
        case _:
            is_row = False
    row = f"row_{output.name}"
    while row in {*loop_names(program), *declarations}:
        row += "_"
    return Dropped(output.name, tuple(stored[:-1]), stored[-1], is_row, row)
