"""Sums scattered into rows of unknown pattern: a workspace a row, whose entries in use become those of the result.

In: `forall i: forall k: forall j: Y[i,k] += A[i,j] * B[j,k]`, all compressed by row.
Out: `order i, j, k; precompute row_Y = Y at i in thread listed; parallel i dynamic A`

Source: Gustavson, Two Fast Algorithms for Sparse Matrices, 1978.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsify.compiler.einsum.nodes import Access, Assign
from sparsify.compiler.node import walk
from sparsify.compiler.notation.concretize import index_names
from sparsify.compiler.notation.nodes import Forall, Let, Notation
from sparsify.compiler.schedule import directives as d
from sparsify.storage.levels import Dense


@dataclass(frozen=True, slots=True)
class Scattered:
    """A sum whose result is assembled.

    Attributes:
        rows: the loops over all modes of the result but the last level's, outermost first.
        sums: the loops that are summed.
        column: the loop over the last level's mode.
        collected: the sum's target, the result or a temporary that it is computed from.
        is_temporary: whether it is a temporary.
        by: the operand whose rows balance the threads.
    """

    rows: tuple[str, ...]
    sums: tuple[str, ...]
    column: str
    collected: str
    is_temporary: bool
    by: str

    def schedules(self) -> Iterator[d.Schedule]:
        """With threads over the rows, then without."""
        name = self.collected if self.is_temporary else f"row_{self.collected}"
        source = "" if self.is_temporary else self.collected
        at = self.rows[-1] if self.rows else ""
        steps = [
            d.Order((*self.rows, *self.sums, self.column), self.collected if self.is_temporary else ""),
            d.Precompute(name, "thread" if self.rows else "memory", at=at, source=source, listed=True),
        ]
        if self.rows:
            yield d.Schedule((*steps, d.Parallel(self.rows[0], "dynamic" if self.by else "static", self.by)))
        yield d.Schedule(tuple(steps))


def scattered(program: Notation) -> Scattered | None:
    """`program` as a sum scattered into rows, `None` when it is anything else."""
    if len(program.outputs) != 1:
        return None
    declarations = {declared.name: declared for declared in program.declarations}
    output = declarations[program.outputs[0]]
    assigns = [node for node in walk(program.body) if isinstance(node, Assign)]
    summed = [assign for assign in assigns if assign.monoid is not None]
    if output.format.is_dense or output.pattern_of is not None or len(summed) != 1 or len(assigns) > 2:
        return None
    result = next(assign.target for assign in assigns if assign.target.tensor == output.name)
    modes = index_names(result)
    stored = [modes[level.expression.mode] for level in output.format.levels]
    if len(set(stored)) < len(stored) or set(index_names(summed[0].target)) != set(stored):
        return None
    loops = dict.fromkeys(n.index for n in walk(program.body) if isinstance(n, Forall))
    sums = [name for name in loops if name not in stored]
    temporaries = {t.name for n in walk(program.body) if isinstance(n, Let) for t in n.temporaries}
    target = summed[0].target.tensor
    by = (
        declared.name
        for access in walk(summed[0].value)
        if isinstance(access, Access) and (declared := declarations.get(access.tensor)) is not None
        if declared.name in program.inputs and len(declared.format.levels) > 1
        if isinstance(declared.format.levels[0].level, Dense) and not declared.format.is_dense
        if index_names(access)[declared.format.ordering[0]] == stored[0]
    )
    return Scattered(tuple(stored[:-1]), tuple(sums), stored[-1], target, target in temporaries, next(by, ""))
