"""What a program costs before anything is built: an estimate from sizes and stored entries.

In: `Y[i,k] = sum(j, A[i,j] * X[j,k])`, `{"i": 2708, "j": 2708, "k": 128}`, `{"A": 13264}`, two threads. Out: about
400 us.

Orders of products are compared with it, and reports show it beside the measured time. It is a roofline:
arithmetic at the speed of registers, gathered rows at that of caches, operands and results once at that of memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from sparsify.compiler.dtypes import BYTES
from sparsify.compiler.einsum.nodes import Access, Assign, Call, Declaration, Expr, Index, Program, Reduce
from sparsify.compiler.node import walk

# Of one thread, in bytes per microsecond, as measured on desktop processors with 32-byte vectors.
CACHE: Final = 16_000.0
MEMORY: Final = 10_000.0
# Operations of one thread per microsecond and per lane of a vector.
PRODUCT: Final = 5_000.0
POINTWISE: Final = 1_000.0
CALL_US: Final = 5.0
COORDINATE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Machine:
    """What runs the program: threads, and the bytes of a vector register (0: scalar code)."""

    threads: int = 1
    vector_bytes: int = 32


def estimate_us(
    program: Program, extents: Mapping[str, int], stored: Mapping[str, int], machine: Machine
) -> float:
    """The time of one call of `program`, in microseconds.

    Args:
        program: the einsum program.
        extents: of all index variables that the program does not fix.
        stored: entries of each sparse operand; one that is missing counts as full.
        machine: threads and vectors.

    Source: the roofline model, Williams, Waterman and Patterson, 2009.
    """
    known = {**extents, **dict(program.extents)}
    return sum(statement_us(program, statement, known, stored, machine) for statement in program.statements)


def statement_us(
    program: Program,
    statement: Assign,
    extents: Mapping[str, int],
    stored: Mapping[str, int],
    machine: Machine,
) -> float:
    """The time of one statement."""
    target = program.declaration(statement.target.tensor)
    item = BYTES[target.dtype]
    lanes = max(1, machine.vector_bytes // item)
    result = prod(extents[name] for name in target.extents)
    busy = 0.0
    for part in walk(statement.value):
        if isinstance(part, Reduce):
            busy += reduction_us(program, part, extents, stored, lanes)
        elif isinstance(part, Call):
            busy += result / (POINTWISE * lanes)
    read = {part.tensor for part in walk(statement.value) if isinstance(part, Access)}
    moved = sum(tensor_bytes(program.declaration(name), extents, stored) for name in {*read, target.name})
    return CALL_US + (busy + moved / MEMORY) / machine.threads


def reduction_us(
    program: Program,
    reduction: Reduce,
    extents: Mapping[str, int],
    stored: Mapping[str, int],
    lanes: int,
) -> float:
    """The time of one thread for the products and sums of a reduction."""
    accesses = [part for part in walk(reduction.body) if isinstance(part, Access)]
    variables = set(reduction.indices) | {name for access in accesses for name in names(access)}
    sparse = [a for a in accesses if not program.declaration(a.tensor).format.is_dense and a.tensor in stored]
    if not sparse:
        return 2 * prod(extents[name] for name in variables) / (PRODUCT * lanes)
    driver = min(sparse, key=lambda access: stored[access.tensor])
    dense = prod(extents[name] for name in variables - names(driver))
    count = stored[driver.tensor] * dense
    item = BYTES[program.declaration(driver.tensor).dtype]
    gathered = sum(count * item for a in accesses if a is not driver and names(a) & set(reduction.indices))
    return max(2 * count / (PRODUCT * min(lanes, max(1, dense))), gathered / CACHE)


def names(expr: Expr) -> set[str]:
    """The index variables in an expression."""
    return {part.name for part in walk(expr) if isinstance(part, Index)}


def tensor_bytes(declared: Declaration, extents: Mapping[str, int], stored: Mapping[str, int]) -> int:
    """The bytes that a tensor takes."""
    item = BYTES[declared.dtype]
    if not declared.format.is_dense and declared.name in stored:
        return stored[declared.name] * (item + COORDINATE_BYTES)
    return item * prod(extents[name] for name in declared.extents)
