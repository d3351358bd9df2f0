"""The cost of a program before compilation: an estimate from sizes, stored entries and machine rates.

In: `Y[i,k] = sum(j, A[i,j] * X[j,k])`, `{"i": 2708, "j": 2708, "k": 128}`, `{"A": 13264}`, a machine.
Out: about 200 us.

The estimate ranks orders of products and formats of weights, and reports print it with the measured time. The model is
a roofline: loops at register speed, gathers at the bandwidth of the cache that holds the table, operands and results
once at memory bandwidth. Loops are counted in the time of one multiply and add of a vector register.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Final

from sparsify.compiler.einsum.infer.patterns import pattern_access
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Declaration, Expr, Index, Program, Reduce
from sparsify.compiler.ir.dtypes import BYTES, computing
from sparsify.compiler.ir.node import children, find
from sparsify.compiler.schedule.cost.machine import Machine
from sparsify.compiler.schedule.cost.matmul import (
    SINGLE,
    VECTOR,
    Packed,
    kernel_us,
    packed_loops_us,
    product_us,
)
from sparsify.storage.level.levels import Compressed

# Vectors' times of generated loops, fitted to measurements on AVX2.
# Per stored entry that gathers a row; per row of a sparse operand.
PICKED: Final = 4.0
ROW: Final = 20.0
# Per product of two sparse operands, scattered into a workspace; per entry of a merged sum of sparse operands.
SCATTERED: Final = 18.0
MERGED: Final = 40.0
# Per dot product beyond the multiply and add; per application of an arithmetic or elementary function to a vector.
DOT: Final = 8.0
POINTWISE: Final = 1.0
ELEMENTARY: Final = 20.0
# Functions annihilated by a zero argument.
FACTORS: Final = frozenset(("mul", "div", "logical_and"))
ARITHMETIC: Final = frozenset(
    (
        "add",
        "sub",
        "mul",
        "neg",
        "min",
        "max",
        "where",
        "relu",
        "abs",
        "square",
        "stored",
        "div",
        "lt",
        "le",
        "gt",
        "ge",
        "eq",
    )
)
LINE_BYTES: Final = 64


def estimate_us(
    program: Program, extents: Mapping[str, int], stored: Mapping[str, int], machine: Machine
) -> float:
    """The time of one call of `program`, in microseconds.

    Args:
        program: einsum program.
        extents: extents of all index variables not fixed by the program.
        stored: entries of each sparse operand; a missing one counts as full.
        machine: threads, vectors and rates.

    Source: the roofline model, Williams, Waterman and Patterson, 2009.
    """
    known = known_extents(program, extents)
    counts = with_results(program, known, stored)
    return sum((statement_us(program, each, known, counts, machine) for each in program.statements), 0.0)


def with_results(program: Program, extents: Mapping[str, int], stored: Mapping[str, int]) -> dict[str, int]:
    """The entries of sparse operands, extended by the expected entries of sparse results, statement by statement."""
    counts = dict(stored)
    for statement in program.statements:
        name = statement.target.tensor
        if not program.declaration(name).format.is_dense and name not in counts:
            counts[name] = expected_entries(program, statement, extents, counts)
    return counts


def known_extents(program: Program, extents: Mapping[str, int]) -> dict[str, int]:
    """The extents, extended by those fixed by the program, and by those of index variables from their accesses."""
    known = {**extents, **dict(program.extents)}
    for access in find(program, Access):
        for index, extent in zip(access.indices, program.declaration(access.tensor).extents, strict=True):
            if isinstance(index, Index) and extent in known:
                known.setdefault(index.name, known[extent])
    return known


def expected_entries(
    program: Program, statement: Assign, extents: Mapping[str, int], stored: Mapping[str, int]
) -> int:
    """The expected entries of a sparse result: for `S[h,i,j]` on the pattern of `M[i,j]` those of M for each `h`."""
    target = statement.target
    root = pattern_access(program, target)
    if root.tensor != target.tensor and root.tensor in stored:
        further = index_names(target) - index_names(root)
        return stored[root.tensor] * prod(extents[name] for name in further)
    most = prod(extents[index] for index in program.declaration(target.tensor).extents)
    return int(min(most, entries(program, statement.value, extents, stored) or most))


def entries(
    program: Program, value: Expr, extents: Mapping[str, int], stored: Mapping[str, int]
) -> float | None:
    """Expected upper bound on the entries of an expression; `None` for all coordinates."""
    if isinstance(value, Access):
        return stored.get(value.tensor)
    if isinstance(value, Reduce):
        accesses = find(value.body, Access)
        sparse = [a for a in accesses if a.tensor in stored]
        free = {name for a in accesses for name in index_names(a)} - set(value.indices)
        if not sparse or not free <= {name for a in sparse for name in index_names(a)}:
            return None
        return products(sparse, extents, stored)[0]
    found = [entries(program, part, extents, stored) for part in children(value) if isinstance(part, Expr)]
    counts = [count for count in found if count is not None]
    if isinstance(value, Call) and value.function in FACTORS:
        return min(counts, default=None)
    return sum(counts) if counts and len(counts) == len(found) else None


def statement_us(
    program: Program,
    statement: Assign,
    extents: Mapping[str, int],
    stored: Mapping[str, int],
    machine: Machine,
) -> float:
    """The time of one statement."""
    shape = dense_shape(program, statement, extents)
    target = program.declaration(statement.target.tensor)
    if shape is not None:
        return product_us(*shape, machine, BYTES[target.dtype])
    read = {part.tensor for part in find(statement.value, Access)}
    tensors = [program.declaration(name) for name in {*read, target.name}]
    moved = sum(tensor_bytes(declared, extents, stored) for declared in tensors)
    return kernel_us(loops_us(program, statement, extents, stored, machine), moved, machine)


def loops_us(
    program: Program,
    statement: Assign,
    extents: Mapping[str, int],
    stored: Mapping[str, int],
    machine: Machine,
) -> float:
    """The time of one thread for the loops of a statement."""
    lanes = max(1, machine.vector_bytes // computed_bytes(program, [statement.target]))
    iterated = float(stored.get(statement.target.tensor, 0)) or iterations(
        program, set(index_names(statement.target)), statement.value, extents, stored
    )
    busy = 0.0
    for part, driver in parts(program, statement.value):
        if isinstance(part, Reduce):
            busy += reduction_us(program, part, driver, extents, stored, machine)
        elif isinstance(part, Call) and len(lists := stored_reads(program, part, stored)) > 1:
            busy += sum(lists) * MERGED * machine.vector_us
        elif isinstance(part, Call):
            each = POINTWISE if part.function in ARITHMETIC else ELEMENTARY
            busy += iterated / lanes * each * machine.vector_us
    return busy


def stored_reads(program: Program, call: Call, stored: Mapping[str, int]) -> list[int]:
    """The numbers of entries of the sparse operands that a call merges directly."""
    reads = [part for part in call.args if isinstance(part, Access)]
    sparse = {a.tensor for a in reads if not program.declaration(a.tensor).format.is_dense}
    return [stored[name] for name in sparse if name in stored]


def parts(program: Program, value: Expr) -> Iterator[tuple[Expr, Access | None]]:
    """The calls and outermost reductions of an expression, each with its sampling sparse factor."""

    def visit(expr: Expr, driver: Access | None) -> Iterator[tuple[Expr, Access | None]]:
        if isinstance(expr, Reduce):
            yield expr, driver
            return
        if isinstance(expr, Call):
            yield expr, driver
            factors = find(expr, Access) if expr.function != "add" else []
            sparse = [a for a in factors if not program.declaration(a.tensor).format.is_dense]
            driver = driver or next(iter(sparse), None)
        for child in children(expr):
            if isinstance(child, Expr):
                yield from visit(child, driver)

    return visit(value, None)


def iterations(
    program: Program,
    names: set[str],
    value: Expr,
    extents: Mapping[str, int],
    stored: Mapping[str, int],
) -> float:
    """The computed entries of a result: those of a sparse operand with the same variables, if any, else all."""
    accesses = find(value, Access)
    counts = [
        stored[a.tensor]
        for a in accesses
        if a.tensor in stored
        and index_names(a) == names
        and not program.declaration(a.tensor).format.is_dense
    ]
    return float(max(counts, default=prod(extents[name] for name in names)))


def reduction_us(
    program: Program,
    reduction: Reduce,
    driver: Access | None,
    extents: Mapping[str, int],
    stored: Mapping[str, int],
    machine: Machine,
) -> float:
    """The time of one thread for the products and sums of a reduction."""
    accesses = find(reduction.body, Access)
    variables = set(reduction.indices) | {name for access in accesses for name in index_names(access)}
    sparse = [a for a in accesses if not program.declaration(a.tensor).format.is_dense and a.tensor in stored]
    item = computed_bytes(program, accesses)
    lanes = max(1, machine.vector_bytes // item)
    if not sparse and driver is not None and driver.tensor in stored:
        return sampled_us(program, accesses, driver, variables, extents, stored, machine)
    if not sparse:
        return prod(extents[name] for name in variables) / lanes * machine.vector_us
    if len(sparse) == 1 and (found := packed_of(program, sparse[0], accesses, extents, stored)):
        other = next(access for access in accesses if access is not sparse[0])
        rows = prod(extents[name] for name in index_names(other) - index_names(sparse[0]))
        return packed_loops_us(found, rows, machine, item)
    sparse = one_of_each_pattern(program, sparse, stored)
    count, first = products(sparse, extents, stored)
    joined = {name for access in sparse for name in index_names(access)}
    inner = prod(extents[name] for name in variables - joined)
    if len(sparse) > 1:
        return count * max(1.0, inner / lanes) * SCATTERED * machine.vector_us
    rows = lists(program.declaration(first.tensor), extents)
    gathered = picked_us(program, accesses, first, reduction.indices, inner, count, extents, machine)
    each = SINGLE if inner == 1 else PICKED + VECTOR * -(-inner // lanes)
    return max(count * each * machine.vector_us, gathered) + rows * ROW * machine.vector_us


def computed_bytes(program: Program, accesses: Collection[Access]) -> int:
    """The bytes of a lane in the widest computing dtype of some tensors: 4 for bfloat16, computed in float32."""
    return max([BYTES[computing(program.declaration(a.tensor).dtype)] for a in accesses], default=4)


def lists(declared: Declaration, extents: Mapping[str, int]) -> int:
    """The number of lists of coordinates in a sparse tensor, below its outer full levels."""
    shape = [extents[name] for name in declared.extents]
    found = 1
    for stored in declared.format.levels:
        if "crd" in stored.level.arrays:
            return found
        found *= stored.expression.extent(shape)
    return found


def sampled_us(
    program: Program,
    accesses: Collection[Access],
    driver: Access,
    variables: set[str],
    extents: Mapping[str, int],
    stored: Mapping[str, int],
    machine: Machine,
) -> float:
    """The time of one thread for a dot product at each stored entry."""
    inner = prod(extents[name] for name in variables - index_names(driver))
    item = BYTES[program.declaration(driver.tensor).dtype]
    lanes = max(1, machine.vector_bytes // computed_bytes(program, [driver]))
    count = stored[driver.tensor]
    table = max(prod(extents[name] for name in index_names(access)) * item for access in accesses)
    gathered = count * inner * item / machine.gathers.at(table)
    return max(count * (DOT + 2 * inner / lanes) * machine.vector_us, gathered)


def one_of_each_pattern(
    program: Program, sparse: Sequence[Access], stored: Mapping[str, int]
) -> list[Access]:
    """The sparse operands without those whose entries are a subset of another's on the same pattern."""
    largest: dict[Access, Access] = {}
    for access in sparse:
        root = pattern_access(program, access)
        known = largest.get(root)
        if known is None or stored[known.tensor] < stored[access.tensor]:
            largest[root] = access
    return list(largest.values())


def products(
    sparse: list[Access], extents: Mapping[str, int], stored: Mapping[str, int]
) -> tuple[float, Access]:
    """The expected number of products of sparse operands with independent entries, and the smallest operand."""
    first, *others = sorted(sparse, key=lambda access: stored[access.tensor])
    count, joined = float(stored[first.tensor]), index_names(first)
    for access in others:
        shared = prod(extents[name] for name in joined & index_names(access))
        count *= stored[access.tensor] / max(1, shared)
        joined = joined | index_names(access)
    return count, first


def picked_us(
    program: Program,
    accesses: Collection[Access],
    driver: Access,
    summed: Collection[str],
    inner: int,
    count: float,
    extents: Mapping[str, int],
    machine: Machine,
) -> float:
    """The time of gathering rows at stored coordinates."""
    total = 0.0
    for access in accesses:
        if access is driver or not index_names(access) & set(summed):
            continue
        item = BYTES[program.declaration(access.tensor).dtype]
        table = prod(extents[name] for name in index_names(access)) * item
        rate = machine.gathers.at(table)
        near = table <= machine.gathers.points[1][0]
        total += count * (inner * item if near else max(inner * item, LINE_BYTES)) / rate
    return total


def packed_of(
    program: Program,
    weight: Access,
    accesses: Collection[Access],
    extents: Mapping[str, int],
    stored: Mapping[str, int],
) -> Packed | None:
    """The weight of `sum(k, X[..,t,k] * W[n,k])`, `None` for other products."""
    others = [access for access in accesses if access is not weight]
    if len(others) != 1 or len(weight.indices) != 2 or len(others[0].indices) < 2:
        return None
    last = others[0].indices[-1]
    declared = program.declaration(weight.tensor)
    modes = [mode for mode, index in enumerate(weight.indices) if index == last]
    levels = declared.format.levels
    lists = [s.expression for s in levels if isinstance(s.level, Compressed)]
    if len(modes) != 1 or len(lists) != 1 or lists[0].mode != modes[0] or not isinstance(last, Index):
        return None
    shape = [extents[name] for name in declared.extents]
    columns, outputs = shape[modes[0]], shape[1 - modes[0]]
    if not columns or not outputs:
        return None
    inner = [s.expression for s in levels if s.expression.mode != modes[0] and s.expression.kind == "within"]
    height = prod(expression.extent(shape) for expression in inner)
    width = lists[0].extent(shape)
    count = stored[weight.tensor]
    number = -(-outputs // height) * -(-columns // width)
    size = tensor_bytes(declared, extents, stored)
    return Packed(count // height, number, height, width, outputs, columns, size)


def dense_shape(
    program: Program, statement: Assign, extents: Mapping[str, int]
) -> tuple[int, int, int] | None:
    """Rows, outputs and columns of a product of dense matrices; `None` for other statements."""
    value = statement.value
    match value:
        case Call("add", (Reduce() as product, Access(_, (_,)))):
            value = product
    match value:
        case Reduce("sum", (summed,), Call("mul", (Access() as left, Access() as right))):
            pass
        case _:
            return None
    if len(statement.target.indices) != 2 or not all(
        program.declaration(a.tensor).format.is_dense and len(a.indices) == 2
        for a in (left, right, statement.target)
    ):
        return None
    rows, outputs = (part.name for part in statement.target.indices if isinstance(part, Index))
    return extents[rows], extents[outputs], extents[summed]


def index_names(expr: Expr) -> set[str]:
    """The index variables in an expression."""
    return {part.name for part in find(expr, Index)}


def tensor_bytes(declared: Declaration, extents: Mapping[str, int], stored: Mapping[str, int]) -> int:
    """The bytes of a tensor's values and coordinates, without positions."""
    item = BYTES[declared.dtype]
    shape = [extents[name] for name in declared.extents]
    if declared.format.is_dense or declared.name not in stored:
        return item * prod(shape)
    count, size = stored[declared.name], stored[declared.name] * item
    widths = [crd for _, crd in declared.index_dtypes] or [""] * len(declared.format.levels)
    for level, crd in reversed(list(zip(declared.format.levels, widths, strict=True))):
        if "crd" in level.level.arrays:
            size += count * BYTES[crd or "int32"]
        else:
            count //= max(1, level.expression.extent(shape))
    return size
