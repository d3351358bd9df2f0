"""Fusion of several reductions over the same rows, if the cost model expects one kernel to be faster.

In:  `Y[i,f] = sum(j, A[i,j] * X[j,f]); Z[i,f] = max(j, where(stored(A[i,j]), X[j,f], -inf))`, the sizes of operands.
Out: `s_Y[i,f] = sum(j, ..); s_Z[i,f] = max(j, ..); Y[i,f] = s_Y[i,f]; Z[i,f] = s_Z[i,f]` as one kernel: 3,100 us, not
     5,000 us.

Separate kernels each fetch the rows of X selected by the coordinates of A; the fused kernel fetches the rows once.

Source: several aggregators over one neighbourhood, Corso et al., Principal neighbourhood aggregation for graph nets,
2020, equation 7.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from sparsify.compiler.cpp.toolchain import target
from sparsify.compiler.einsum.infer.format import dense_format, infer_format
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Declaration, Expr, Index, Program, Reduce
from sparsify.compiler.einsum.rename import all_indices, fresh
from sparsify.compiler.einsum.rename import replace as with_part
from sparsify.compiler.ir.node import find
from sparsify.compiler.notation.concretize import concretize
from sparsify.compiler.notation.lane_width import lane_bytes
from sparsify.compiler.schedule.cost.machine import Machine, scaled
from sparsify.compiler.schedule.cost.matmul import VECTOR, kernel_us
from sparsify.compiler.schedule.cost.statement import (
    PICKED,
    POINTWISE,
    ROW,
    known_extents,
    picked_us,
    statement_us,
    tensor_bytes,
)
from sparsify.compiler.schedule.sizes import Sizes
from sparsify.compiler.schedule.templates.joint_reductions import Aggregates, aggregates
from sparsify.errors import UnsupportedProgramError
from sparsify.options import current
from sparsify.runtime.threads import count


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Several reductions, priced as one kernel and as a kernel for each statement.

    Attributes:
        program: statements, the reductions first, each into a temporary.
        together_us, apart_us: expected times of a fused and of a separate call; `None` for unknown sizes.
        tables: operands whose rows are read once.
    """

    program: Program
    tables: tuple[str, ...]
    together_us: float | None = None
    apart_us: float | None = None

    @property
    def is_faster(self) -> bool:
        """Whether one kernel is expected to be faster; true for unknown sizes."""
        return self.together_us is None or self.apart_us is None or self.together_us <= self.apart_us

    def __str__(self) -> str:
        names = ", ".join(self.program.outputs)
        once = f"rows of {', '.join(self.tables)} are read once for all reductions"
        if self.together_us is None or self.apart_us is None:
            return f"{names}: one kernel, since sizes are not known; {once}"
        times = f"one kernel {self.together_us:,.0f} us, a kernel each {self.apart_us:,.0f} us"
        return f"{names}: {times}; {once if self.is_faster else 'cut, since one kernel loses'}"


def aggregated(program: Program, sizes: Sizes) -> Aggregated | None:
    """All statements of `program` as reductions over the same rows, priced; `None` for other programs.

    Args:
        program: one plain assignment for each result, every operand as stored.
        sizes: sizes of the operands.
    """
    if len(program.statements) < 2 or not _reads_twice(program):
        return None
    made = reductions_first(program)
    try:
        plain = concretize(infer_format(made))
    except UnsupportedProgramError:
        return None
    found = aggregates(plain)
    if found is None:
        return None
    tables = tuple(table.tensor for table in found.tables)
    extents = known_extents(made, sizes.extents)
    names = {name for declared in made.declarations for name in declared.extents}
    if found.mask.name not in sizes.stored or not names <= extents.keys():
        return Aggregated(made, tables)
    # The assumed machine, not a measured one: fusion must not depend on the momentary load.
    machine = scaled(count(current()), target.vector_bytes(current()))
    inferred = infer_format(program)
    apart = sum(statement_us(inferred, s, extents, sizes.stored, machine) for s in inferred.statements)
    return Aggregated(
        made, tables, _together_us(made, found, lane_bytes(plain), extents, sizes, machine), apart
    )


def _reads_twice(program: Program) -> bool:
    """Whether two reductions read rows of the same dense operand: a cheap, necessary condition only."""
    picked = [
        {a for a in find(sum_.body, Access) if {n.name for n in find(a, Index)} & {*sum_.indices}}
        for statement in program.statements
        for sum_ in find(statement.value, Reduce)
    ]
    tables = [access for accesses in picked for access in accesses if len(access.indices) > 1]
    dense = {declared.name for declared in program.declarations if declared.format.is_dense}
    return any(tables.count(access) > 1 and access.tensor in dense for access in tables)


def reductions_first(program: Program) -> Program:
    """`Y[i] = sum(j, e) / c[i] -> s_Y[i] = sum(j, e); .. Y[i] = s_Y[i] / c[i]`, all reductions before the rest."""
    taken = {declared.name for declared in program.declarations} | set(all_indices(program.statements))
    reduced: list[Assign] = []
    others: list[Assign] = []
    declarations = list(program.declarations)
    for statement in program.statements:
        name = statement.target.tensor
        if isinstance(statement.value, Reduce) and name not in program.outputs:
            reduced.append(statement)
            continue
        for sum_ in dict.fromkeys(find(statement.value, Reduce)):
            declared = _held(program, statement, sum_, taken)
            if declared is None:
                continue
            taken.add(declared.name)
            declarations.append(declared)
            at = statement.target.indices if statement.value is sum_ else _own_indices(statement, sum_)
            inside = Access(declared.name, at)
            reduced.append(Assign(inside, None, sum_))
            statement = replace(statement, value=with_part(statement.value, sum_, inside))
        others.append(statement)
    return replace(program, statements=(*reduced, *others), declarations=tuple(declarations))


def _own_indices(statement: Assign, sum_: Reduce) -> tuple[Expr, ...]:
    """The index variables of a statement's target that occur in one of its reductions."""
    used = {index.name for index in find(sum_.body, Index)}
    return tuple(at for at in statement.target.indices if isinstance(at, Index) and at.name in used)


def _held(program: Program, statement: Assign, sum_: Reduce, taken: set[str]) -> Declaration | None:
    """The temporary for a reduction; `None` if its dtype or modes may differ from those of the statement's result."""
    result = program.declaration(statement.target.tensor)
    name = fresh(f"s_{result.name}", taken)
    if statement.value is sum_:
        return replace(result, name=name)
    own = _own_indices(statement, sum_)
    dtypes = {program.declaration(access.tensor).dtype for access in find(sum_, Access)}
    used = {index.name for index in find(sum_.body, Index)} - set(sum_.indices)
    is_free = used == {at.name for at in own if isinstance(at, Index)} and len(find(sum_, Reduce)) == 1
    if not is_free or not result.format.is_dense or dtypes != {result.dtype}:
        return None
    pairs = zip(statement.target.indices, result.extents, strict=True)
    extents = tuple(extent for at, extent in pairs if at in own)
    return Declaration(name, extents, dense_format(len(own)), result.dtype)


def _together_us(
    program: Program, found: Aggregates, item: int, extents: Mapping[str, int], sizes: Sizes, machine: Machine
) -> float:
    """Expected time of the fused kernel, in lanes of `item` bytes: one pass over the entries for each tile of a row.

    The kernel fetches the rows of tables once.
    """
    lanes = max(1, machine.vector_bytes // item)
    stored, rows = sizes.stored[found.mask.name], extents[found.row]
    around = prod(extents[name] for name in found.beside)
    size, _ = found.tile(lanes, item, Sizes(dict(extents), {}))
    passes = around * ceil(extents[found.lane] / size)
    vectors = around * ceil(extents[found.lane] / lanes)
    mask = Access(found.mask.name, (Index(found.row), Index(found.column)))
    gathered = picked_us(
        program, found.tables, mask, (found.column,), around * extents[found.lane], stored, extents, machine
    )
    numbers = sum(nest.is_sum and not nest.is_along for nest in found.nests)
    each = PICKED * (passes + numbers) + VECTOR * vectors * len(found.sums)
    calls = sum(len(find(nest.assign.value, Call)) + 1 for nest in found.nests if not nest.is_sum)
    busy = max(stored * each * machine.vector_us, gathered)
    busy += rows * (ROW * passes + POINTWISE * vectors * calls) * machine.vector_us
    given = [d for d in program.declarations if d.name in (*program.inputs, *program.outputs)]
    moved = sum(tensor_bytes(declared, extents, sizes.stored) for declared in given)
    longest = sizes.longest_row(found.mask.name) or 0  # one thread takes it
    return max(kernel_us(busy, moved, machine), busy * longest / max(1, stored))
