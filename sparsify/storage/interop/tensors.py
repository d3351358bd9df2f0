"""From and to the tensors of others: dense, torch's sparse layouts, scipy's arrays, coordinates and values.

In: `tensor(scipy.sparse.random_array((9, 9)), format="csr")`. Out: a `SparseTensor` over the same values.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from sparsify.errors import InvalidTensorError
from sparsify.storage import convert, transformed, validate
from sparsify.storage.fill import Fill
from sparsify.storage.format import Format
from sparsify.storage.interop import torch_layouts
from sparsify.storage.parts import require_readable, shape_of
from sparsify.storage.pattern import Pattern
from sparsify.storage.tensor import SparseTensor, is_stored

if TYPE_CHECKING:
    import scipy.sparse


class _ByRank(str):
    """The default format: `csr` for matrices, compressed levels for every other number of modes."""


BY_RANK: Final = _ByRank("csr")


def tensor(
    data: Any,
    format: Format | str | None = BY_RANK,
    *,
    fill: Fill = 0,
    dtype: torch.dtype | None = None,
    duplicates: str = "error",
) -> SparseTensor:
    """A sparse tensor of `data` in a format; differentiable in the values of `data`.

    Args:
        data: a dense tensor or array (entries equal to the fill are not stored); a torch sparse tensor of any
            layout; a nested tensor of the jagged layout, for `format=None` or `ragged` levels; a scipy sparse array;
            a `SparseTensor`; or `(coordinates [d, n], values [n], shape)` in any order of entries.
        format: target format; without it a matrix in CSR, and compressed levels for any other number of modes;
            `None`: the format of `data`, coordinates for dense data.
        fill: value of unstored entries.
        dtype: dtype of the values; `None`: the dtype of `data`.
        duplicates: treatment of duplicate coordinates: "error" refuses, "sum" adds.

    Values share memory if the layout allows, index arrays are copied. New coordinates are int32
    when they fit.

    Raises:
        InvalidTensorError: coordinates out of range, unsorted or twice, wrong lengths or dtypes.
        FormatError: a format for another number of modes.

    >>> tensor(torch.tensor([[0.0, 5.0], [7.0, 0.0]])).values()
    tensor([5., 7.])
    """
    if duplicates not in ("error", "sum"):
        raise InvalidTensorError(f"duplicates={duplicates!r}", '"error" or "sum"')
    if transformed.are_active():
        if transformed.is_followed(data):
            raise InvalidTensorError(
                "a sparse tensor of values that torch.func follows", "make it outside, or use torch.autograd"
            )
        with transformed.outside():
            return tensor(data, format, fill=fill, dtype=dtype, duplicates=duplicates)
    if transformed.have_tangents(data):
        raise InvalidTensorError(
            "a sparse tensor of values with tangents",
            "forward_ad.make_dual of dense operands, or torch.autograd",
        )
    result = _read(data, format, fill, duplicates)
    if dtype is not None:
        validate.value_dtype(dtype)
        result = result.to(dtype)
    target = _target(format, result)
    return result if target == result.format else result.to(format=target)


def _target(format: Format | str | None, read: SparseTensor) -> Format:
    """The requested format, by default the format of `read`."""
    return read.format if format is None else _requested_format(format, read.dim())


def _requested_format(format: Format | str | None, rank: int) -> Format:
    """The requested format, coordinates for `None`."""
    if format is BY_RANK and rank != 2:
        return Format("csf", rank=rank)
    return Format("coo" if format is None else format, rank=rank)


def _read(data: Any, format: Format | str | None, fill: Fill, duplicates: str) -> SparseTensor:
    """The data in the format closest to its storage."""
    if isinstance(data, Tensor):
        if data.layout != torch.jagged:
            require_readable(data, "data")
        if not data.is_cpu:
            raise InvalidTensorError(f"a tensor on {data.device}", "data.cpu()")
        if data.layout == torch.jagged:
            return torch_layouts.from_jagged(data, fill)
    if isinstance(data, SparseTensor):
        return data if fill in (0, data.fill) else data.with_fill(fill)
    if isinstance(data, Tensor):
        if data.layout == torch.strided:
            return from_dense(data, format, fill)
        if data.layout == torch.sparse_coo:
            return torch_layouts.from_coo(data, fill, duplicates)
        if data.layout in torch_layouts.COMPRESSED:
            return torch_layouts.from_compressed(data, fill)
        raise InvalidTensorError(f"a tensor of layout {data.layout}", "a strided or sparse layout")
    if isinstance(data, tuple) and len(data) == 3 and not np.isscalar(data[0]):
        return from_coordinates(*data, format=format, fill=fill, duplicates=duplicates)
    from sparsify.storage.interop import scipy_arrays

    if scipy_arrays.is_sparse(data):
        return scipy_arrays.read(data, fill, duplicates)
    return from_dense(_array(data), format, fill)


def _array(data: Any, what: str = "data") -> Tensor:
    """A tensor over an array, sharing memory if the array is writable."""
    try:
        array = np.asarray(data)
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return torch.from_numpy(native if native.flags.writeable else native.copy())
    except Exception as error:  # objects read by numpy raise arbitrary errors
        raise InvalidTensorError(
            f"cannot read {what} of type {type(data).__name__} ({error})",
            "a tensor, an array, a scipy sparse array or (coordinates, values, shape)",
        ) from None


def from_dense(data: Tensor, format: Format | str | None, fill: Fill = 0) -> SparseTensor:
    """A dense tensor without the entries equal to the fill; all entries in a dense format."""
    validate.value_dtype(data.dtype)
    fill = validate.fill(fill, data.dtype)
    target = _requested_format(format, data.dim())
    if target.is_dense and target.is_short:
        levels = len(target.levels)
        pattern = Pattern(target, data.shape, [None] * levels, [None] * levels).trusted()
        return SparseTensor(pattern, data.permute(target.ordering).reshape(-1), fill)
    if target.is_dense:
        plain = from_dense(data, Format("dense", rank=data.dim()), fill)
        return plain.to(format=target)
    coordinates = list(is_stored(data.detach(), fill).nonzero().T)
    values = data[tuple(coordinates)]
    return _assembled(coordinates, values, tuple(data.shape), target, fill)


def from_coordinates(
    coordinates: Any,
    values: Any,
    shape: Sequence[int],
    *,
    format: Format | str | None = None,
    fill: Fill = 0,
    duplicates: str = "error",
) -> SparseTensor:
    """Entries by their coordinates [d, n] and values [n], in any order.

    Coordinates already stored in `format` (sorted, `coo`) are shared.
    """
    sizes = shape_of(shape)
    validate.countable(sizes)
    columns = _columns(coordinates, len(sizes))
    entries = values if isinstance(values, Tensor) else _array(values, "values")
    require_readable(entries, "values")
    validate.value_dtype(entries.dtype)
    if not entries.is_cpu:
        raise InvalidTensorError(f"values on {entries.device}", "values.cpu()")
    lengths = {c.shape[0] for c in columns} or {1}
    if entries.dim() != 1 or lengths != {entries.shape[0]}:
        raise InvalidTensorError(
            f"values of shape {list(entries.shape)} for coordinates of {max(lengths)} entries",
            "as many values, [n]",
        )
    validate.coordinates(columns, sizes)
    target = _requested_format(format, len(sizes))
    is_free = _is_unordered_list(target)
    if (duplicates == "sum" or not is_free) and columns:
        sorting = convert.order(columns, sizes)
        ordered = columns if sorting is None else [c[sorting] for c in columns]
        repeated = validate.first_duplicate(ordered)
        if repeated is not None and duplicates == "error":
            duplicate = tuple(int(c[repeated]) for c in ordered)
            entry = repeated if sorting is None else int(sorting[repeated])
            raise InvalidTensorError(
                f"entry {entry} is a duplicate of the coordinates {duplicate}", 'duplicates="sum"'
            )
        if repeated is not None:
            columns, entries = _summed(ordered, entries if sorting is None else entries[sorting])
    return _assembled(columns, entries, sizes, target, fill)


def _assembled(
    columns: Sequence[Tensor], values: Tensor, shape: tuple[int, ...], target: Format, fill: Fill
) -> SparseTensor:
    """The tensor of entries without duplicates, in a format."""
    if _is_unordered_list(target):
        return _unordered(columns, values, shape, target, fill)
    stored = convert.level_columns(target, columns, shape)
    sorting = convert.order(stored, convert.extents(target, shape))
    if sorting is not None:
        stored, values = [c[sorting] for c in stored], values[sorting]
    dtype = _input_dtype(columns, target) if sorting is None else None
    pattern, places = convert.from_sorted(stored, shape, target, dtype)
    if places is not None:
        values = torch.full((pattern.nnz,), fill, dtype=values.dtype).index_put((places,), values)
    return SparseTensor(pattern, values, fill)


def _input_dtype(columns: Sequence[Tensor], target: Format) -> torch.dtype | None:
    """The dtype of coordinates shared without a conversion, `None` if stored anew."""
    is_list = bool(columns) and target.is_short and all("crd" in s.level.arrays for s in target.levels)
    dtypes = {c.dtype for c in columns}
    if not is_list or len(dtypes) != 1 or (len(columns) > 1 and not target.letters.startswith("o")):
        return None
    dtype = dtypes.pop()
    return dtype if dtype in validate.POSITION_DTYPES else None


def _is_unordered_list(format: Format) -> bool:
    """Whether the format lists coordinates in any order."""
    levels = [stored.level for stored in format.levels]
    return (
        bool(levels)
        and levels[0].can_append
        and not levels[0].is_ordered
        and all(level.is_branchless for level in levels[1:])
        and format.is_short
    )


def _unordered(
    columns: Sequence[Tensor], values: Tensor, shape: tuple[int, ...], target: Format, fill: Fill
) -> SparseTensor:
    """Coordinates in the given order."""
    dtype = columns[0].dtype
    dtype = (
        dtype if dtype in validate.POSITION_DTYPES else convert.index_dtype(target, shape, values.shape[0])
    )
    pos: list[Tensor | None] = [None] * len(columns)
    crd = [convert.narrowed(columns[s.expression.mode], s, "crd", dtype) for s in target.levels]
    pos[0] = convert.narrowed(torch.tensor([0, values.shape[0]]), target.levels[0], "pos", dtype)
    return SparseTensor(Pattern(target, shape, pos, crd), values, fill)


def _columns(coordinates: Any, rank: int) -> list[Tensor]:
    """Per mode the coordinates [n], integers."""
    if isinstance(coordinates, list | tuple) and any(isinstance(c, Tensor) for c in coordinates):
        columns = [c if isinstance(c, Tensor) else _array(c, "coordinates") for c in coordinates]
        for column in columns:
            require_readable(column, "coordinates")
    else:
        matrix = coordinates if isinstance(coordinates, Tensor) else _array(coordinates, "coordinates")
        require_readable(matrix, "coordinates")
        if matrix.dim() != 2 and not (matrix.numel() == 0 and rank == 0):
            raise InvalidTensorError(f"coordinates of shape {list(matrix.shape)}", f"shape [{rank}, n]")
        columns = list(matrix) if matrix.dim() == 2 else []
        columns = [c.long() if c.numel() == 0 else c for c in columns]
    if len(columns) != rank:
        raise InvalidTensorError(
            f"coordinates of {len(columns)} modes for a shape of {rank}", f"shape [{rank}, n]"
        )
    for mode, column in enumerate(columns):
        if column.dim() != 1 or column.shape[0] != columns[0].shape[0]:
            raise InvalidTensorError(
                f"coordinates of mode {mode} have shape {list(column.shape)}", "one for each entry"
            )
        if not column.is_cpu:
            raise InvalidTensorError(f"coordinates of mode {mode} on {column.device}", "coordinates.cpu()")
        if column.dtype.is_floating_point or column.dtype.is_complex or column.dtype == torch.bool:
            raise InvalidTensorError(f"coordinates of {column.dtype}", "int32 or int64")
    return [c if c.dtype in validate.COORDINATE_DTYPES else c.long() for c in columns]


def _summed(ordered: Sequence[Tensor], values: Tensor) -> tuple[list[Tensor], Tensor]:
    """Entries sorted by coordinates with equal ones added."""
    first = torch.ones(values.shape[0], dtype=torch.bool)
    first[1:] = False
    for column in ordered:
        first[1:] |= column[1:] != column[:-1]
    groups = first.cumsum(0) - 1
    total = torch.zeros(int(groups[-1]) + 1, dtype=values.dtype).index_add(0, groups, values)
    return [c[first] for c in ordered], total


def to_torch(matrix: SparseTensor) -> Tensor:
    """See `SparseTensor.to_torch`."""
    return torch_layouts.write(matrix)


def to_scipy(matrix: SparseTensor) -> "scipy.sparse.sparray":
    """See `SparseTensor.to_scipy`."""
    from sparsify.storage.interop import scipy_arrays

    torch_layouts.without_fill(matrix)
    return scipy_arrays.write(matrix)
