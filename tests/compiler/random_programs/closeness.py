"""Tolerances for comparing two results of a program, derived from the program.

In: a case, the name of a result, two arrays. Out: nothing, or an `AssertionError` that shows where they differ.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.dtype import OF_BOOL, declared_kind, kind_of
from sparsify.compiler.einsum.nodes import Access, Call, Index, Program, Reduce
from sparsify.compiler.ir.dtypes import NUMBER
from sparsify.compiler.ir.node import walk
from tests.compiler.random_programs.data import SPECIAL, Case
from tests.compiler.random_programs.dense import COMPARISONS, compute, has_extremes

Values = NDArray[np.float64]


def assert_close(where: str, case: Case, name: str, found: Values, wanted: Values) -> None:
    """Equal up to the rounding of float32 or float64; NaN and infinities in the same places."""
    assert found.shape == wanted.shape, f"{where}: {found.shape} instead of {wanted.shape}"
    if name in case.undecided:
        return
    if name in case.doubtful:
        # NaN may be a truth or none, and beside it an infinite fill that annihilates may be read first: max(inf, NaN).
        either = np.isnan(found) | (np.isnan(wanted) & np.isinf(found))
        is_open = either if wanted.dtype != bool else True
        found = np.where(case.doubtful[name] & is_open, wanted, found)
    if name in case.compared:
        found = np.where(case.compared[name], wanted, found)
    if case.data.values == SPECIAL.values and may_be_factored(case.program):
        both = ~np.isfinite(found) & ~np.isfinite(wanted)
        # Of one infinity and of NaN a function may be finite: tanh(-inf) = -1.
        is_open = has_temporaries(case.program) or sums_nothing(case)
        either = is_open & (np.isnan(found) | np.isnan(wanted))
        found = np.where(both | either, wanted, found)
    dtype = next((declared.dtype for declared in case.program.declarations if declared.name == name), "")
    found, wanted = in_range(found, dtype), in_range(wanted, dtype)
    dtypes = computed_dtypes(case.program)
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = float(finite.max(initial=1.0))
    error = 1e-11 if dtypes <= {"float64", "complex128"} else 2e-5
    error = {"bfloat16": 3e-2, "float16": 4e-3}.get(min(dtypes & {"bfloat16", "float16"}, default=""), error)
    try:
        np.testing.assert_allclose(found, wanted, rtol=error, atol=error * scale)
    except AssertionError as problem:
        raise AssertionError(f"{where}{problem}") from None


def decided_by_order(
    case: Case, masks: Mapping[str, NDArray[np.bool_]], results: Mapping[str, Values]
) -> dict[str, NDArray[np.bool_]]:
    """Mask of results that depend, through comparisons of infinity and NaN, on the order of products."""
    is_any = has_extremes(case.program)
    if not may_be_factored(case.program) or not (is_any or has_comparisons(case.program)):
        return {}
    unknown = compute(case.program, case.values, masks, is_open=True)
    return {name: np.isnan(each) & (is_any | ~np.isnan(results[name])) for name, each in unknown.items()}


def in_range(values: Values, dtype: str) -> Values:
    """Values with infinity beyond the range of a floating dtype; the reference does not round to the dtype."""
    if not dtype.startswith(("float", "bfloat")):
        return values
    return np.where(
        np.abs(values) > torch.finfo(getattr(torch, dtype)).max, np.copysign(np.inf, values), values
    )


def computed_dtypes(program: Program) -> set[str]:
    """Dtypes of tensors and of intermediate values: `exp` of booleans is float32, as in torch."""
    kinds = {declared.name: declared_kind(declared) for declared in program.declarations}
    calls = [n for s in program.statements for n in walk(s.value) if isinstance(n, Call)]
    found = {kind.dtype for call in calls if (kind := kind_of(call, kinds)).strength > NUMBER}
    return found - {"bool"} | {kind.dtype for kind in kinds.values()}


def has_comparisons(program: Program) -> bool:
    """Whether the program compares values: with NaN, e.g. `max(nan, inf)`, either operand may win.

    The sign of NaN is 0, so `sign` counts as a comparison, too.
    """
    return any(isinstance(n, Call) and n.function in COMPARISONS for n in walk(program))


def has_logic(program: Program) -> bool:
    """Whether booleans are added, multiplied or compared; plain arithmetic would treat them as numbers."""
    kinds = {declared.name: declared_kind(declared) for declared in program.declarations}
    nodes = [n for s in program.statements for n in walk(s.value) if isinstance(n, Call | Reduce)]
    return any(
        kind_of(n, kinds).dtype == "bool"
        for n in nodes
        if (n.monoid not in ("or", "and") if isinstance(n, Reduce) else n.function in OF_BOOL)
    )


def has_temporaries(program: Program) -> bool:
    """Whether functions are applied to sums: a sum of unstored entries may be written as a stored entry."""
    calls = [n for s in program.statements for n in walk(s.value) if isinstance(n, Call)]
    return any(isinstance(n, Reduce) for call in calls for n in walk(call))


def sums_nothing(case: Case) -> bool:
    """Whether a sum runs over an extent of 0: times an infinite factor outside, the result is NaN."""
    sums = [node for node in walk(case.program) if isinstance(node, Reduce)]
    return any(
        isinstance(index, Index) and index.name in node.indices and size == 0
        for node in sums
        for read in walk(node)
        if isinstance(read, Access) and read.tensor in case.values
        for index, size in zip(read.indices, case.values[read.tensor].shape, strict=True)
    )


def may_be_factored(program: Program) -> bool:
    """Whether some factors of a product may be summed before others: infinity times a sum is no sum of infinities."""

    def is_split(node: Reduce) -> bool:
        reads = [n for n in walk(node) if isinstance(n, Access)]
        return len(reads) > 2 or any(not set(node.indices) <= set(free_indices(read)) for read in reads)

    return any(is_split(node) for node in walk(program) if isinstance(node, Reduce))
