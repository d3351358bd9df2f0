"""Order statistics along a mode: `max min topk kthvalue median nanmedian quantile`. Unstored entries count as the fill.

In: `torch.topk(A, 5)`. Out: values [rows, 5] and columns [rows, 5], both dense; A is never densified.

The stored entries of a row are sorted: entries preceding the fill come first, then one fill per unstored
entry, then the rest; so the entry of any rank is found without the dense row.
"""

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsify.errors import ShapeError
from sparsify.ops.entries import lookup
from sparsify.ops.entries.move import LARGEST_KEY, entries_of
from sparsify.ops.entries.reshape import reshaped
from sparsify.ops.reduce import places, reductions
from sparsify.ops.register.memory import check_shape
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.modes import mode_of
from sparsify.storage.tensor import SparseTensor, operators


class Rows(NamedTuple):
    """Stored entries sorted by row and column; a row is a line along one mode.

    Attributes:
        rows, columns: of each entry [n].
        positions: position of each entry's value in the tensor [n].
        values: value of each entry [n], not differentiable.
        shape: number of rows and of entries in each row, unstored ones included.
    """

    rows: Tensor
    columns: Tensor
    positions: Tensor
    values: Tensor
    shape: tuple[int, int]

    def per_row(self, marked: Tensor) -> Tensor:
        """The number of entries of each row marked by a mask [n]."""
        return torch.bincount(self.rows[marked], minlength=self.shape[0])


def rows_of(input: SparseTensor, mode: int) -> Rows:
    """The lines of a tensor along a mode."""
    rest = [extent for other, extent in enumerate(input.shape) if other != mode]
    shape = prod(rest), input.shape[mode]
    if not shape[1] or prod(shape) + shape[0] > LARGEST_KEY:
        raise refuse(f"ranks along mode {mode} of {list(input.shape)}", "1 entry or more, below 2^63 in all")
    entries = entries_of(input)
    columns = entries.columns[mode].long()
    rows = torch.zeros_like(columns)
    for other, extent in enumerate(input.shape):
        if other != mode:
            rows = rows * extent + entries.columns[other]
    order = torch.argsort(rows * shape[1] + columns)
    positions = order if entries.source is None else entries.source[order]
    return Rows(rows[order], columns[order], positions, input._vals.detach()[positions], shape)


def ranked(input: SparseTensor, mode: int, ranks: Tensor, descending: bool = False) -> tuple[Tensor, Tensor]:
    """The entries of given ranks of every line along a mode, and their coordinates in the line.

    NaN is larger than any number, as in torch. Equal entries are ranked by their coordinates, but unstored ones
    come after stored ones that precede the fill and before all others.

    Args:
        ranks: from 0, [k] for all lines or [rows, k].

    Returns: values and coordinates, both [rows, k]; values are differentiable.
    """
    lines = rows_of(input, mode)
    count, width = lines.shape
    check_shape("ranks", (count, ranks.shape[-1]), torch.int64, input)
    stored = torch.bincount(lines.rows, minlength=count)
    start = stored.cumsum(0) - stored
    before = lines.per_row(_precedes(lines.values, input.fill, descending))
    ranks = ranks.expand(count, ranks.shape[-1])
    unstored = (width - stored).unsqueeze(1)
    early = ranks < before.unsqueeze(1)
    is_fill = ~early & (ranks < before.unsqueeze(1) + unstored)
    columns = _unstored_columns(lines, start, (ranks - before.unsqueeze(1)).clamp(min=0))
    if lines.rows.shape[0]:
        order = torch.sort(lines.values, stable=True, descending=descending).indices
        order = order[torch.argsort(lines.rows[order], stable=True)]
        rank_position = start.unsqueeze(1) + torch.where(early, ranks, ranks - unstored)
        entry = order[rank_position.clamp(0, order.shape[0] - 1)]
        columns = torch.where(is_fill, columns, lines.columns[entry])
        positions = torch.where(is_fill, -1, lines.positions[entry])
    else:
        positions = torch.full_like(columns, -1)
    return lookup.values_at(input, positions.reshape(-1)).reshape(columns.shape), columns


def _precedes(values: Tensor, fill: Any, descending: bool) -> Tensor:
    """Whether values come before the fill in the order."""
    if fill != fill:
        result = torch.zeros_like(values, dtype=torch.bool) if descending else ~values.isnan()
    else:
        result = (values > fill) | values.isnan() if descending else values < fill
    return result


def _unstored_columns(lines: Rows, start: Tensor, numbers: Tensor) -> Tensor:
    """The coordinates of the unstored entries with the given numbers [rows, k], counted from 0 in each line.

    Entry `n` of a line with coordinate `c` has `c - n` unstored entries before it, a number that never decreases.
    """
    width = lines.shape[1] + 1
    nth = torch.arange(lines.rows.shape[0]) - start[lines.rows]
    keys = lines.rows * width + (lines.columns - nth)
    unstored_keys = torch.arange(lines.shape[0]).unsqueeze(1) * width + numbers.clamp(max=width - 1)
    return numbers + torch.searchsorted(keys, unstored_keys, right=True) - start.unsqueeze(1)


def _pair(
    entries: tuple[Tensor, Tensor], input: SparseTensor, mode: int, keepdim: bool = True
) -> tuple[Tensor, Tensor]:
    """Values and places of lines [rows, k] as tensors with the mode of extent k, or without the mode."""
    rest = [extent for other, extent in enumerate(input.shape) if other != mode]
    values, places = (part.reshape([*rest, part.shape[1]]).movedim(-1, mode) for part in entries)
    return (values, places) if keepdim else (values.squeeze(mode), places.squeeze(mode))


def _ordered(input: Any, out: Any) -> None:
    """Checks for a sparse tensor with ordered entries."""
    if out is not None or not isinstance(input, SparseTensor):
        raise refuse("order statistics with out=", "use the result")
    if input.dtype == torch.bool or input.dtype.is_complex or not input.dim():
        raise refuse(f"order statistics of {input.dtype}", "A.to(torch.int8) or A.abs()")


@operator(torch.topk, Tensor.topk)
def topk(
    input: SparseTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: Any = None
) -> Any:
    """`torch.topk`: the `k` largest or smallest entries along a mode and their places."""
    _ordered(input, out)
    mode = mode_of(dim, input.dim())
    if not 0 <= k <= input.shape[mode]:
        raise ShapeError(
            f"topk of {k} of the {input.shape[mode]} entries along mode {mode}; as many or fewer"
        )
    if not input.shape[mode]:
        raise refuse("topk of no entries")
    entries = ranked(input, mode, torch.arange(k), largest)
    return torch.return_types.topk(_pair(entries, input, mode))


@operator(torch.kthvalue, Tensor.kthvalue)
def kthvalue(input: SparseTensor, k: int, dim: int = -1, keepdim: bool = False, *, out: Any = None) -> Any:
    """`torch.kthvalue`: the `k`-th smallest entry along a mode, from 1, and the place."""
    _ordered(input, out)
    mode = mode_of(dim, input.dim())
    if not 1 <= k <= input.shape[mode]:
        raise ShapeError(
            f"kthvalue of {k} of the {input.shape[mode]} entries along mode {mode}; 1 to as many"
        )
    entries = ranked(input, mode, torch.tensor([k - 1]))
    return torch.return_types.kthvalue(_pair(entries, input, mode, keepdim))


def _median(input: SparseTensor, dim: int | None, keepdim: bool, out: Any, kind: Any, skip_nan: bool) -> Any:
    """The lower median along a mode and the place, or of all entries."""
    _ordered(input, out)
    lines_input = input if dim is not None else reshaped(input, (input.numel(),))
    mode = 0 if dim is None else mode_of(dim, input.dim())
    lines = rows_of(lines_input, mode)
    stored = torch.bincount(lines.rows, minlength=lines.shape[0])
    nans = lines.per_row(lines.values.isnan())
    if input.fill != input.fill:
        nans = nans + lines.shape[1] - stored
    last = lines.shape[1] - 1
    middle = (last - nans).clamp(min=0) // 2 if skip_nan else torch.where(nans > 0, last, last // 2)
    entries = ranked(lines_input, mode, middle.unsqueeze(1))
    if dim is None:
        return entries[0].reshape(())
    return kind(_pair(entries, input, mode, keepdim))


@operator(torch.median, Tensor.median)
def median(input: SparseTensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """`torch.median`: the lower of two middle entries; NaN if any entry is."""
    return _median(input, dim, keepdim, out, torch.return_types.median, skip_nan=False)


@operator(torch.nanmedian, Tensor.nanmedian)
def nanmedian(input: SparseTensor, dim: int | None = None, keepdim: bool = False, *, out: Any = None) -> Any:
    """`torch.nanmedian`: the lower of two middle entries, NaN ignored."""
    return _median(input, dim, keepdim, out, torch.return_types.nanmedian, skip_nan=True)


@operator(torch.max, Tensor.max)
def max(input: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.max` of all entries, along a mode with places, or of two tensors."""
    return _extreme("max", input, *args, **kwargs)


@operator(torch.min, Tensor.min)
def min(input: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.min` of all entries, along a mode with places, or of two tensors."""
    return _extreme("min", input, *args, **kwargs)


def _extreme(name: str, input: Any, dim: Any = None, keepdim: bool = False, **named: Any) -> Any:
    """The largest or smallest entries; the place is the first one among equals."""
    other = named.pop("other", dim if isinstance(dim, Tensor) else None)
    if other is not None:
        return operators[torch.maximum if name == "max" else torch.minimum](input, other, **named)
    if named.pop("out", None) is not None or named:
        raise refuse(f"torch.{name} with {', '.join(named) or 'out='}", "use the result")
    reduce = getattr(reductions, f"a{name}")
    if dim is None:
        return reduce(input)
    numbers = input.to(torch.int8) if input.dtype == torch.bool else input
    mode = mode_of(dim, input.dim())
    positions = getattr(places, f"arg{name}")(numbers, mode, True)
    if isinstance(positions, SparseTensor):
        values, indices = reduce(input, mode, keepdim), getattr(places, f"arg{name}")(numbers, mode, keepdim)
    else:
        values = lookup.gather(input, mode, positions)
        values, indices = (part if keepdim else part.squeeze(mode) for part in (values, positions))
    return getattr(torch.return_types, name)([values, indices])


@operator(torch.aminmax, Tensor.aminmax)
def aminmax(input: SparseTensor, *, dim: int | None = None, keepdim: bool = False, out: Any = None) -> Any:
    """`torch.aminmax`: the smallest and the largest entries."""
    modes = () if dim is None else dim
    smallest, largest = (
        reduce(input, modes, keepdim, out=out) for reduce in (reductions.amin, reductions.amax)
    )
    return torch.return_types.aminmax((smallest, largest))


@operator(torch.quantile, Tensor.quantile)
def quantile(
    input: SparseTensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: Any = None,
) -> Tensor:
    """`torch.quantile`: entries at fractions of the count, linearly interpolated between neighbours."""
    _ordered(input, out)
    if interpolation != "linear" or keepdim or not input.dtype.is_floating_point:
        raise refuse("a quantile with keepdim, of integers, or not interpolated linearly", "torch.kthvalue")
    shares = q if isinstance(q, Tensor) else torch.tensor(q, dtype=input.dtype)
    if shares.dtype != input.dtype or shares.dim() > 1 or bool(((shares < 0) | (shares > 1)).any()):
        raise refuse(f"the quantiles {q}", f"numbers of {input.dtype} from 0 to 1")
    lines_input = input if dim is not None else reshaped(input, (input.numel(),))
    mode = 0 if dim is None else mode_of(dim, input.dim())
    at = shares.reshape(-1) * (lines_input.shape[mode] - 1)
    low, high = (ranked(lines_input, mode, edge.long())[0] for edge in (at.floor(), at.ceil()))
    result = torch.lerp(low, high, at - at.floor()).T
    last = ranked(lines_input, mode, torch.tensor([lines_input.shape[mode] - 1]))[0].T
    result = torch.where(last.isnan(), last, result)
    rest = [extent for other, extent in enumerate(lines_input.shape) if other != mode]
    return result.reshape([*shares.shape, *rest])
