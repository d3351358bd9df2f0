"""Values of expressions over a grid of coordinates: the arithmetic of the reference interpreters.

In: an expression, the coordinates of its index variables and tensors. Out: its values, and the mask of fill entries.

An entry is a *fill entry* if the operator determines its value independent of the stored operands: all operands are
fill entries, or one of them annihilates (`0 * ?`). A NaN among fill entries only has no effect.

Values have the kinds of `infer_dtype`, with the same conversion of operands: truth values are combined by logic,
integers wrap around. All floating and complex dtypes are computed in float64 and complex128.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsify.compiler.einsum.functions import FUNCTIONS
from sparsify.compiler.einsum.infer.dtype import OF_BOOL, kind_of, operand_kind, reduced, result_kind
from sparsify.compiler.einsum.monoids import MONOIDS
from sparsify.compiler.einsum.nodes import Access, Call, Cast, Const, Expr, Extent, Index, Reduce, Stored
from sparsify.compiler.ir.dtypes import NUMBER, Kind, category, promote
from sparsify.storage.fill import decided

Array = NDArray[Any]
FLOAT = Kind("float64")
MONOIDS_OF_BOOL = {"logical_or": "or", "logical_and": "and"}
REDUCERS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "prod": np.prod,
    "min": np.min,
    "max": np.max,
    "or": np.any,
    "and": np.all,
}


@dataclass(slots=True)
class Tensor:
    """A dense array with the fill at unstored entries, the mask of stored entries, and the fill."""

    values: Array
    stored: Array
    fill: float | int | bool = 0.0
    kind: Kind = FLOAT


@dataclass(frozen=True, slots=True)
class Grid:
    """Values that broadcast over the coordinates; `is_fill` marks fill entries, a number is neither."""

    values: Array
    is_fill: Array
    is_number: bool = False
    kind: Kind = FLOAT

    def cast(self, dtype: str) -> "Grid":
        """The values in another dtype."""
        return replace(self, values=in_dtype(self.values, dtype), kind=Kind(dtype, self.kind.strength))


def evaluate(expr: Expr, coordinates: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> Grid:
    """The values of `expr`; index variables have broadcasting arrays of coordinates.

    An index variable bound by a reduction has an axis of its own in its coordinates, which the reduction shrinks to 1.
    """
    match expr:
        case Const(value):
            return Grid(np.asarray(value), np.asarray(False), is_number=True, kind=kind_of(expr, {}))
        case Index(name):
            values = coordinates[name]
            return Grid(values, np.zeros(values.shape, dtype=bool), kind=Kind("int64", NUMBER))
        case Extent(name):
            return Grid(coordinates[str(expr)], np.asarray(False), kind=Kind("int64", NUMBER))
        case Access(tensor):
            values, stored = read(expr, coordinates, tensors)
            return Grid(values, ~stored, kind=tensors[tensor].kind)
        case Stored(access):
            _, stored = read(access, coordinates, tensors)
            return Grid(stored, ~stored, kind=Kind("bool"))
        case Cast(dtype, value):
            return evaluate(value, coordinates, tensors).cast(dtype)
        case Call("where", (condition, yes, no)):
            return choose(*(evaluate(arg, coordinates, tensors) for arg in (condition, yes, no)))
        case Call(function, args):
            return apply(function, [evaluate(arg, coordinates, tensors) for arg in args])
        case Reduce(monoid, indices, body):
            grid = prepared(monoid, evaluate(body, coordinates, tensors), body, tensors)
            for name in indices:
                axis = axis_of(coordinates[name])
                grid = reduce_axis(monoid, grid, axis, coordinates[name].shape[axis] if axis else 1)
            return grid
    raise AssertionError(f"{type(expr).__name__} has no value")


def axis_of(coordinates: Array) -> int:
    """The axis along which coordinates vary, counted from the end; 0 for a single coordinate."""
    ends = [axis for axis, size in enumerate(coordinates.shape) if size != 1]
    assert len(ends) <= 1, "an index variable varies along one axis"
    return ends[0] - coordinates.ndim if ends else 0


def read(
    access: Access, coordinates: Mapping[str, Array], tensors: Mapping[str, Tensor]
) -> tuple[Array, Array]:
    """The entries of an access and the mask of stored ones; out-of-bounds reads give the fill."""
    tensor = tensors[access.tensor]
    if not access.indices:
        return np.asarray(tensor.values), np.asarray(tensor.stored)
    given = [index_values(index, coordinates) for index in access.indices]
    if not any(place.ndim for place in given):
        return _read_entry(tensor, tuple(place.item() for place in given))
    places = np.broadcast_arrays(*given)
    inside = np.ones(places[0].shape, dtype=bool)
    for place, size in zip(places, tensor.values.shape, strict=True):
        inside &= (place >= 0) & (place < size) & (place == np.floor(place))
    if tensor.values.size == 0:
        return np.full(inside.shape, tensor.fill), np.zeros(inside.shape, dtype=bool)
    safe = tuple(np.where(inside, place, 0).astype(np.int64) for place in places)
    return np.where(inside, tensor.values[safe], tensor.fill), inside & tensor.stored[safe]


def _read_entry(tensor: Tensor, place: tuple[float, ...]) -> tuple[Array, Array]:
    """One entry and whether it is stored."""
    whole = tuple(map(int, place))
    shape = tensor.values.shape
    if whole != place or not all(0 <= at < size for at, size in zip(whole, shape, strict=True)):
        return np.asarray(tensor.fill), np.asarray(False)
    return np.asarray(tensor.values[whole]), np.asarray(tensor.stored[whole])


def index_values(index: Expr, coordinates: Mapping[str, Array]) -> Array:
    """The coordinates given by an affine index; a non-integer is out of bounds."""
    match index:
        case Const(value):
            return np.asarray(int(value))
        case Index(name):
            return coordinates[name]
        case Extent():
            return coordinates[str(index)]
        case Call(function, args):
            return np.asarray(FUNCTIONS[function].evaluate(*(index_values(arg, coordinates) for arg in args)))
    raise AssertionError(f"{index} is no index")


def apply(function: str, args: list[Grid]) -> Grid:
    """A function of grids, by the rules of fill entries."""
    kinds = [arg.kind for arg in args]
    if FUNCTIONS[function].body:
        kind, arrays = reduce(promote, kinds), [_number(arg.values) for arg in args]
        values = np.asarray(FUNCTIONS[function].evaluate(*arrays))
    else:
        dtype, kind = _call_kinds(function, tuple(kinds))
        arrays = [in_dtype(arg.values, dtype) for arg in args]
        name = OF_BOOL.get(function, function) if dtype == "bool" else function
        if len(arrays) < FUNCTIONS[name].arity:
            arrays *= 2
        values = in_dtype(FUNCTIONS[name].evaluate(*arrays), kind.dtype)
    is_number = all(a.is_number for a in args)
    is_fill = np.asarray(not is_number)
    for arg in args:
        if not arg.is_number:
            is_fill = is_fill & arg.is_fill
    computed, decided_by = values, np.asarray(False)
    for position, arg in enumerate(args):
        if not arg.is_fill.any():
            continue
        hit, result = annihilated(function, position, arg)
        if hit.any():
            result = in_dtype(result, kind.dtype)
            is_contradicted = hit & decided_by & (values != result)
            values = np.where(is_contradicted, computed, np.where(hit, result, values))
        is_fill, decided_by = is_fill | hit, decided_by | hit
    return Grid(values, is_fill, is_number, kind)


@cache
def _call_kinds(function: str, kinds: tuple[Kind, ...]) -> tuple[str, Kind]:
    """The dtype to which the operands of a call are converted, and the kind of its result."""
    return operand_kind(function, list(kinds)).dtype, result_kind(function, list(kinds))


def annihilated(function: str, position: int, arg: Grid) -> tuple[Array, Array]:
    """The mask of fill entries of an argument that alone decide the value of a call, and the value."""
    hit, value = decided(function, position, np.asarray(arg.values))
    return arg.is_fill & hit, np.asarray(value)


def prepared(monoid: str, grid: Grid, body: Expr, tensors: Mapping[str, Tensor]) -> Grid:
    """Values in the dtype of their reduction."""
    kinds = {name: tensor.kind for name, tensor in tensors.items()}
    return grid.cast(reduced(grid.kind, monoid, body, kinds).dtype)


def reduce_axis(monoid: str, grid: Grid, axis: int, extent: int) -> Grid:
    """A grid reduced along an axis, counted from the end, to length 1; axis 0 denotes a single entry."""
    if axis == 0:
        return grid
    if grid.kind.dtype == "bool":
        monoid = MONOIDS_OF_BOOL.get(OF_BOOL.get(MONOIDS[monoid].combine, ""), monoid)
    entries = grid.values
    shape = list(np.broadcast_shapes(entries.shape, grid.is_fill.shape, (1,) * -axis))
    shape[axis] = extent
    values, is_fill = (np.broadcast_to(entries, shape), np.broadcast_to(grid.is_fill, shape))
    if extent == 0:
        shape[axis] = 1
        neutral = in_dtype(np.full(shape, MONOIDS[monoid].identity(grid.kind.dtype)), grid.kind.dtype)
        # An empty sum equals a sum of unstored entries.
        return Grid(neutral, np.full(shape, MONOIDS[monoid].neutral == 0), kind=grid.kind)
    result = in_dtype(_fold(monoid, values, axis), grid.kind.dtype)
    all_fill = np.all(is_fill, axis=axis, keepdims=True)
    hit, value = annihilated(MONOIDS[monoid].combine, 0, Grid(values, is_fill))
    ends = np.any(hit, axis=axis, keepdims=True)
    first = np.take_along_axis(np.broadcast_to(value, shape), np.argmax(hit, axis=axis, keepdims=True), axis)
    return Grid(np.where(ends, first, result), all_fill | ends, grid.is_number, grid.kind)


def _fold(monoid: str, values: Array, axis: int) -> Array:
    """Values combined along an axis, to length 1."""
    if monoid in REDUCERS:
        return np.asarray(REDUCERS[monoid](values, axis=axis, keepdims=True))
    combine = FUNCTIONS[MONOIDS[monoid].combine].evaluate
    folded = reduce(combine, np.split(values, values.shape[axis], axis=axis))
    return np.asarray(folded)


def choose(condition: Grid, yes: Grid, no: Grid) -> Grid:
    """`where(condition, yes, no)`: a fill entry if the condition and the selected branch are.

    Equal branches, one of them unstored, also give a fill entry, for any condition.
    """
    chosen = np.asarray(condition.values).astype(bool)
    kind = result_kind("where", [condition.kind, yes.kind, no.kind])
    values = np.where(chosen, in_dtype(yes.values, kind.dtype), in_dtype(no.values, kind.dtype))
    is_yes, is_no = yes.is_fill | yes.is_number, no.is_fill | no.is_number
    is_fill = (condition.is_fill | condition.is_number) & np.where(chosen, is_yes, is_no)
    is_fill = is_fill | ((yes.is_fill | no.is_fill) & is_yes & is_no & (yes.values == no.values))
    all_numbers = condition.is_number and yes.is_number and no.is_number
    return Grid(values, is_fill & (not all_numbers), all_numbers, kind)


def in_dtype(values: Array, dtype: str) -> Array:
    """Values in the numpy representation of a dtype: bool, int64 within the range of the dtype, float64, complex128."""
    values = np.asarray(values)
    match category(dtype):
        case 0:
            return np.asarray(values != 0)
        case 1:
            whole = values if values.dtype.kind in "iu" else _saturated(values.real)
            return np.asarray(whole.astype(dtype).astype(np.int64))
        case 2:
            return np.asarray(values.real.astype(np.float64))
    return values.astype(np.complex128)


def _saturated(values: Array) -> Array:
    """Floats as int64; out-of-range values saturate, as the identities of min and max do."""
    limits = np.iinfo(np.int64)
    inside = np.abs(values) < 2.0**63
    whole = np.where(inside, values, 0.0).astype(np.int64)
    return np.where(inside | np.isnan(values), whole, np.where(values < 0, limits.min, limits.max))


def _number(values: Array) -> Array:
    """Values as floating-point numbers: truth values and integers are converted."""
    values = np.asarray(values)
    return values if values.dtype.kind in "fc" else values.astype(np.float64)
