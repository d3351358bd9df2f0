"""What a region will cost for the example inputs, before its kernel exists.

In: the region of `Y[i,k] = sum(j, A[i,j] * X[j,k])` in a graph captured for 2708 nodes. Out: about 400 us.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from sparsify.compiler.cpp import target
from sparsify.compiler.schedule.cost import Machine, estimate_us
from sparsify.passes.base import Draft
from sparsify.passes.lift.matrix import Matrix
from sparsify.passes.operators import sources, tensor_value
from sparsify.passes.region import Region, finish
from sparsify.runtime import threads


def estimated_us(draft: Draft, region: Region) -> float | None:
    """The microseconds of one call; None where the sizes of the example are not known."""
    if region.program is None:
        finish(region)
    assert region.program is not None, "finish writes the program"
    extents: dict[str, int] = {}
    stored: dict[str, int] = {}
    for name, operand in region.operands.items():
        declared = region.program.declaration(region.names[name])
        for index, extent in zip(declared.extents, extents_of(operand), strict=False):
            size = known_size(extent)
            if size is None:
                return None
            extents[index] = size
        if isinstance(operand, Matrix):
            count = stored_entries(draft, operand)
            if count is None:
                return None
            stored[declared.name] = count
    if any(index not in extents for d in region.program.declarations for index in d.extents):
        return None
    machine = Machine(threads.count(draft.options), target.vector_bytes(draft.options))
    return estimate_us(region.program, extents, stored, machine)


def extents_of(operand: fx.Node | Matrix) -> tuple[Any, ...]:
    """The extents of an operand, as numbers, symbols or nodes that compute them."""
    if isinstance(operand, Matrix) and operand.extents is not None:
        return operand.extents
    dense = operand.dense if isinstance(operand, Matrix) else operand
    value = tensor_value(dense)
    shape = tuple(value.shape) if value is not None else ()
    return shape[::-1] if isinstance(operand, Matrix) and operand.transposed else shape


def known_size(extent: Any, unknown: int | None = None) -> int | None:
    """The number behind an extent, for the example inputs; `unknown` stands for what only a run can tell."""
    if isinstance(extent, fx.Node):
        extent = extent.meta.get("val")
    if isinstance(extent, int):
        return extent
    if not isinstance(extent, torch.SymInt):
        return None
    hint = extent.node.hint
    if hint is not None:
        return int(hint)
    if unknown is None:
        return None
    symbols: Mapping[Any, Any] = getattr(extent.node.shape_env, "backed_var_to_val", {})
    found = extent.node.expr.subs({s: symbols.get(s, unknown) for s in extent.node.expr.free_symbols})
    return int(found) if found.is_Integer else None


def stored_entries(draft: Draft, matrix: Matrix) -> int | None:
    """How many entries the example has in a sparse operand."""
    if matrix.dense is not None:
        tensor = draft.known_tensor(matrix.dense)
        return None if tensor is None else int(torch.count_nonzero(tensor))
    value = tensor_value(matrix.rows)
    assert matrix.rows is not None, "a matrix is dense or has rows"
    if value is None:
        return None
    edges = [known_size(extent) or 0 for leaf in sources([matrix.rows]) for extent in extents_of(leaf)]
    return known_size(value.shape[0], max(edges, default=0))
