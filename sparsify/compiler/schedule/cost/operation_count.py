"""Operation counts of a program: arithmetic operations, and the bytes of operands and results.

In: `Y[i,k] = sum(j, A[i,j] * X[j,k])`, its extents, the entries of `A`. Out: 2 operations for each entry and `k`.
"""

from collections.abc import Mapping
from math import prod

from sparsify.compiler.einsum.nodes import Access, Expr, Program, Reduce
from sparsify.compiler.ir.node import find
from sparsify.compiler.schedule.cost.statement import (
    index_names,
    iterations,
    known_extents,
    parts,
    products,
    tensor_bytes,
    with_results,
)


def counted(program: Program, extents: Mapping[str, int], stored: Mapping[str, int]) -> tuple[float, float]:
    """The operations of a call, and the bytes of its operands and results, each counted once.

    `operations = sum over reductions of 2 * products + sum over other functions of results`.

    Args:
        program: einsum program.
        extents: extents of index variables not fixed by the program.
        stored: entries of each sparse operand; a missing one counts as full.
    """
    known = known_extents(program, extents)
    counts, operations = with_results(program, known, stored), 0.0
    for statement in program.statements:
        results = set(index_names(statement.target))
        entries = float(counts.get(statement.target.tensor, 0)) or iterations(
            program, results, statement.value, known, counts
        )
        for part, driver in parts(program, statement.value):
            reduces = isinstance(part, Reduce)
            operations += 2 * reduced(program, part, driver, known, counts) if reduces else entries
    names = {*program.inputs, *program.outputs}
    return operations, float(sum(tensor_bytes(program.declaration(name), known, counts) for name in names))


def reduced(
    program: Program,
    reduction: Expr,
    driver: Access | None,
    extents: Mapping[str, int],
    stored: Mapping[str, int],
) -> float:
    """The products summed by a reduction: of entries of sparse factors, or at the entries of the sampling factor."""
    accesses = find(reduction, Access)
    variables = {name for access in accesses for name in index_names(access)}
    sparse = [access for access in accesses if access.tensor in stored]
    if not sparse and driver is not None and driver.tensor in stored:
        return stored[driver.tensor] * prod(extents[name] for name in variables - set(index_names(driver)))
    if not sparse:
        return float(prod(extents[name] for name in variables))
    count, _ = products(sparse, extents, stored)
    joined = {name for access in sparse for name in index_names(access)}
    return count * prod(extents[name] for name in variables - joined)
