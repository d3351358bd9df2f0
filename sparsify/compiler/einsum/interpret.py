"""The reference interpreter of einsum programs: plain, slow and correct.

In: `y[i] = sum(j, A[i,j] * x[j])`, A with the mask of its stored entries, x. Out: y and its mask.

Every statement is evaluated over the full grid of its index variables; all floating-point dtypes in float64.
"""

from collections.abc import Mapping

import numpy as np

from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.infer.dtype import declared_kind
from sparsify.compiler.einsum.infer.extents import index_variables, program_extents
from sparsify.compiler.einsum.infer.shared_pattern import over_modes
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Assign, Declaration, Extent, Index, Program
from sparsify.compiler.einsum.values import (
    Array,
    Grid,
    Tensor,
    apply,
    evaluate,
    in_dtype,
    prepared,
    reduce_axis,
)

Input = Array | tuple[Array, Array]


def interpret(program: Program, inputs: Mapping[str, Input]) -> dict[str, tuple[Array, Array]]:
    """All tensors assigned by `program`, by name: the values and the mask of entries other than the fill.

    Args:
        inputs: for each input a dense array, with the fill at unstored entries, and for a sparse input the boolean mask
            of its stored entries.
    """
    tensors = input_tensors(program, inputs)
    extents = program_extents(program, {name: t.values.shape for name, t in tensors.items()})
    declared = {d.name: d for d in program.declarations}
    for statement in program.statements:
        name = statement.target.tensor
        with np.errstate(all="ignore"):
            result = _execute(statement, tensors, extents)
        stored = ~result.is_fill
        if name in declared and declared[name].pattern_of is not None:
            stored = _on_pattern(declared[name], declared, tensors, result.is_fill.shape)
            result = Grid(np.where(stored, result.values, declared[name].fill), ~stored)
        elif name in declared and declared[name].format.is_dense:
            stored = np.ones_like(stored)
        fill = declared[name].fill if name in declared else 0.0
        kind = declared_kind(declared[name]) if name in declared else result.kind
        tensors[name] = Tensor(in_dtype(result.values, kind.dtype), stored, fill, kind)
    assigned = dict.fromkeys(statement.target.tensor for statement in program.statements)
    return {name: (tensors[name].values, tensors[name].stored) for name in assigned}


def _on_pattern(
    own: Declaration,
    declared: Mapping[str, Declaration],
    tensors: Mapping[str, Tensor],
    shape: tuple[int, ...],
) -> Array:
    """The mask of a tensor on the pattern of another one, broadcast over further modes."""
    root = declared[str(own.pattern_of)]
    return over_modes(own, root, tensors[root.name].stored, shape)


def input_tensors(program: Program, inputs: Mapping[str, Input]) -> dict[str, Tensor]:
    """The inputs as tensors with masks."""
    tensors = {}
    for name in program.inputs:
        given = inputs[name]
        values, stored = given if isinstance(given, tuple) else (given, np.ones(np.shape(given), dtype=bool))
        declared = program.declaration(name)
        tensors[name] = Tensor(
            in_dtype(np.asarray(values), declared.dtype),
            np.asarray(stored, dtype=bool),
            declared.fill,
            declared_kind(declared),
        )
    return tensors


def _execute(statement: Assign, tensors: dict[str, Tensor], extents: Mapping[str, int]) -> Grid:
    """The value of a statement over the index variables of its target."""
    names = index_variables((statement,))
    targets = [index.name for index in statement.target.indices if isinstance(index, Index)]
    order = targets + [name for name in names if name not in targets]
    coordinates = _coordinates(order, extents)
    grid = evaluate(statement.value, coordinates, tensors)
    if statement.monoid is not None:
        grid = prepared(statement.monoid, grid, statement.value, tensors)
        for name in free_indices(statement.value):
            if name not in targets:
                axis = axis_of_name(order, name)
                grid = reduce_axis(statement.monoid, grid, axis, extents[name])
    shape = tuple(extents[name] for name in targets)
    grid = _fit(grid, shape, len(order))
    previous = tensors.get(statement.target.tensor)
    if statement.monoid is None or previous is None:
        return grid
    before = Grid(previous.values, ~previous.stored, kind=previous.kind)
    return apply(MONOIDS[statement.monoid].combine, [before, grid.cast(previous.kind.dtype)])


def _coordinates(order: list[str], extents: Mapping[str, int]) -> dict[str, Array]:
    """The coordinates of each index variable, along an axis of its own."""
    result = {}
    for axis, name in enumerate(order):
        shape = [1] * len(order)
        shape[axis] = extents[name]
        result[name] = np.arange(extents[name]).reshape(shape)
    return result | {str(Extent(name)): np.asarray(extent) for name, extent in extents.items()}


def axis_of_name(order: list[str], name: str) -> int:
    """The axis of an index variable, counted from the end."""
    return order.index(name) - len(order)


def _fit(grid: Grid, shape: tuple[int, ...], rank: int) -> Grid:
    """A grid over all index variables, reshaped to the target's, which come first."""
    full = shape + (1,) * (rank - len(shape))
    values = np.broadcast_to(grid.values, np.broadcast_shapes(full, grid.values.shape)).reshape(shape)
    is_fill = (
        np.broadcast_to(grid.is_fill, full).reshape(shape) if grid.is_fill.ndim <= rank else grid.is_fill
    )
    return Grid(values.copy(), is_fill.copy(), grid.is_number, grid.kind)
