"""Interpreter of programs on dense arrays by plain IEEE arithmetic, independent of fills, formats and loops.

In: `y[i] = sum(j, A[i,j] * x[j])` and arrays. Out: the arrays of all results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.implicit_sums import free_indices
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr, Index, Program, Reduce, Stored
from sparsify.compiler.ir.node import walk

Array = NDArray[np.float64]


def either(first: Array, second: Array) -> Array:
    """`first or second`; NaN if a NaN operand, which may be either truth value, decides."""
    known = np.logical_or(np.nan_to_num(first), np.nan_to_num(second))
    return np.where(~known & (np.isnan(first) | np.isnan(second)), np.nan, known)


def both(first: Array, second: Array) -> Array:
    """`first and second`; NaN if a NaN operand, which may be either truth value, decides."""
    false = (first == 0) | (second == 0)
    return np.where(~false & (np.isnan(first) | np.isnan(second)), np.nan, ~false)


# Functions in which values decide: the sign of NaN is 0.
COMPARISONS: Final = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "sign"})
OF_TRUTH: Final = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not"})
LOGIC: Final = {"or": either, "and": both}
ARITHMETIC: Final = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
NEUTRAL = {"or": 0.0, "and": 1.0, "sum": 0.0, "prod": 1.0, "min": np.inf, "max": -np.inf}


def combine(monoid: str, first: Array, second: Array) -> Array:
    """Two values combined, as floats."""
    function = LOGIC.get(monoid) or ARITHMETIC.get(monoid) or FUNCTIONS[MONOIDS[monoid].combine].evaluate
    return np.asarray(function(first, second), float)


def fold(monoid: str, values: Array, count: int) -> Array:
    """The last `count` modes combined, one entry after the other."""
    kept = values.shape[: values.ndim - count]
    flat = values.reshape(*kept, prod(values.shape[len(kept) :]))
    neutral = NEUTRAL.get(monoid, MONOIDS[monoid].neutral)
    result = np.full(flat.shape[:-1], float(neutral))
    for entry in range(flat.shape[-1]):
        result = combine(monoid, result, flat[..., entry])
    return result


@dataclass(frozen=True, slots=True)
class Given:
    """Operands of expressions.

    Attributes:
        values: arrays by tensor.
        masks: masks of stored entries by tensor.
        sizes: extents by index variable.
        fills: fills by tensor.
        is_open: whether results of comparisons of infinity or NaN are NaN.
        are_sums_open: whether infinite sums are NaN.
    """

    values: Mapping[str, Array]
    masks: Mapping[str, NDArray[np.bool_]]
    sizes: Mapping[str, int]
    fills: Mapping[str, float]
    is_open: bool
    are_sums_open: bool


def compute(
    program: Program,
    arrays: Mapping[str, Array],
    masks: Mapping[str, NDArray[np.bool_]],
    *,
    is_open: bool = False,
) -> dict[str, Array]:
    """The results.

    Args:
        masks: for all tensors, results too, which entries are stored.
        is_open: whether what is made of a comparison of infinity or NaN is NaN: it hangs on the order of products. So
            does which of them a sum is, where a minimum may pass over it.
    """
    are_sums_open = is_open and has_extremes(program)
    values = dict(arrays)
    extents: dict[str, int] = dict(program.extents)
    for name in program.inputs:
        extents.update(zip(program.declaration(name).extents, arrays[name].shape, strict=True))
    sizes = _sizes(program, extents)
    for assign in program.statements:
        name, value = assign.target.tensor, assign.value
        kept = [index.name for index in assign.target.indices if isinstance(index, Index)]
        more = tuple(n for n in free_indices(value) if n not in kept)
        if assign.monoid is not None and more:
            value = Reduce(assign.monoid, more, value)
        with np.errstate(all="ignore"):
            fills = {d.name: float(d.fill) for d in program.declarations}
            found = _value(value, kept, Given(values, masks, sizes, fills, is_open, are_sums_open))
            if assign.monoid is not None and name in values:
                found = combine(assign.monoid, values[name], found)
        declared = program.declaration(name)
        values[name] = found if declared.pattern_of is None else np.where(masks[name], found, declared.fill)
    return {assign.target.tensor: values[assign.target.tensor] for assign in program.statements}


def has_extremes(program: Program) -> bool:
    """Whether minima or maxima are taken: infinity is passed over, NaN is not."""
    reduced = {node.monoid for node in walk(program) if isinstance(node, Reduce)}
    return not {"min", "max"}.isdisjoint({*reduced, *(each.monoid for each in program.statements)})


def _sizes(program: Program, extents: Mapping[str, int]) -> dict[str, int]:
    """Extent of each index variable, from the modes that it indexes."""
    sizes = dict(extents)
    for access in (
        n for s in program.statements for n in (*walk(s.value), s.target) if isinstance(n, Access)
    ):
        for index, extent in zip(access.indices, program.declaration(access.tensor).extents, strict=True):
            if isinstance(index, Index):
                sizes[index.name] = extents[extent]
    return sizes


def _value(expr: Expr, names: list[str], given: Given) -> Array:
    """An expression as an array with one mode for each of `names`."""
    shape = [given.sizes[name] for name in names]
    grids = dict(zip(names, np.indices(shape), strict=True)) if names else {}
    match expr:
        case Const(value):
            return np.full(shape, float(value))
        case Index(name):
            return grids[name].astype(float)
        case Access(tensor, indices):
            read = _read(given.values[tensor], indices, grids, given.fills[tensor])
            return np.broadcast_to(read, shape)
        case Stored(Access(tensor, indices)):
            read = _read(given.masks[tensor], indices, grids, False)
            return np.broadcast_to(np.asarray(read, float), shape)
        case Reduce(monoid, more, body):
            inside = _value(body, [*names, *more], given)
            if monoid not in ARITHMETIC:
                return fold(monoid, inside, len(more))
            axes = tuple(range(len(names), len(names) + len(more)))
            found = np.asarray(ARITHMETIC[monoid].reduce(inside, axis=axes, initial=NEUTRAL[monoid]))
            is_sum = given.are_sums_open and monoid == "sum"
            return np.where(np.isfinite(found), found, np.nan) if is_sum else found
        case Cast(dtype, value):
            inside = _value(value, names, given)
            return inside.astype(dtype).astype(float)
        case Call(function, args):
            return _called(function, [_value(arg, names, given) for arg in args], given.is_open)
    raise AssertionError(expr)


def _called(function: str, operands: list[Array], is_open: bool) -> Array:
    """Value of a function; NaN if `is_open` and the compared values are not finite."""
    found = np.sign(operands[0]) if function == "sign" else FUNCTIONS[function].evaluate(*operands)
    found = np.asarray(found, float)  # the sign of NaN is 0, and where NaN is must be seen
    if not is_open:
        return found
    decide = operands[:1] if function == "where" else operands
    if function in COMPARISONS:
        return np.where(np.all([np.isfinite(each) for each in decide], axis=0), found, np.nan)
    if function == "where" or function in OF_TRUTH:
        return np.where(np.any([np.isnan(each) for each in decide], axis=0), np.nan, found)
    return found


def _read(
    array: NDArray[Any], indices: tuple[Expr, ...], grids: Mapping[str, Array], fill: float | bool
) -> NDArray[Any]:
    """Entries at affine indices; the fill outside of the array."""
    if not indices:
        return array
    places = [_place(index, grids) for index in indices]
    inside = np.all(
        [(p >= 0) & (p < n) & (p % 1 == 0) for p, n in zip(places, array.shape, strict=True)], axis=0
    )
    if not array.size:
        return np.full(inside.shape, fill)
    return np.where(inside, array[tuple(np.where(inside, p, 0).astype(int) for p in places)], fill)


def _place(index: Expr, grids: Mapping[str, Array]) -> Array:
    """The value of an index at each coordinate."""
    match index:
        case Const(value):
            return np.full(next(iter(grids.values())).shape if grids else (), float(value))
        case Index(name):
            return grids[name].astype(float)
        case Call(function, args):
            return np.asarray(FUNCTIONS[function].evaluate(*(_place(arg, grids) for arg in args)))
    raise AssertionError(index)
