"""Reductions over modes: `sum mean amax amin prod any all count_nonzero nansum`. Unstored entries count as the fill.

In: `torch.sum(A, 1)`. Out: `Y[i] += A[i,j]`, a dense vector; a sparse one if the dense one would be out of all
proportion to the stored entries, as for 10^9 rows with a thousand nonempty ones.
"""

import builtins
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from sparsify.compiler.einsum.infer.format import dense_format
from sparsify.compiler.evaluate import evaluate
from sparsify.compiler.operands.renumber_coordinates import LARGE, TIMES
from sparsify.errors import EinsumError, ShapeError
from sparsify.ops.entries.reshape import reshaped
from sparsify.ops.pointwise.elementwise import INDICES
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.tensor import SparseTensor

Modes = int | Sequence[int] | None


@operator(torch.sum, Tensor.sum, torch._sparse_sum)
def sum(
    input: SparseTensor,
    dim: Modes = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Any = None,
) -> Tensor:
    """`torch.sum`."""
    return _reduced("+=", input if dtype is None else input.to(dtype), dim, keepdim, out)


@operator(torch.mean, Tensor.mean)
def mean(
    input: SparseTensor,
    dim: Modes = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Any = None,
) -> Tensor:
    """`torch.mean`: over all entries, unstored ones included.

    Raises:
        EinsumError: integers and truth values, as in torch; `dtype` selects a floating point type.
    """
    taken = input if dtype is None else input.to(dtype)
    if not (taken.dtype.is_floating_point or taken.dtype.is_complex):
        raise EinsumError(f"torch.mean of {taken.dtype}", "mean(..., dtype=torch.float32)")
    return _reduced("+=", taken, dim, keepdim, out, is_mean=True)


@operator(torch.nansum, Tensor.nansum)
def nansum(
    input: SparseTensor,
    dim: Modes = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Any = None,
) -> Tensor:
    """`torch.nansum`: the sum of the entries, NaN ignored."""
    return sum(cast(SparseTensor, torch.where(input.isnan(), 0, input)), dim, keepdim, dtype=dtype, out=out)


@operator(torch.nanmean, Tensor.nanmean)
def nanmean(
    input: SparseTensor,
    dim: Modes = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Any = None,
) -> Tensor:
    """`torch.nanmean`: the mean of the entries, NaN ignored."""
    total = nansum(input, dim, keepdim, dtype=dtype, out=out)
    count = math.prod(input.shape[mode] for mode in modes_of(input, dim))
    missing = sum(cast(SparseTensor, input.isnan().to(total.dtype)), dim, keepdim)
    return total / (count - missing)


@operator(torch.amax, Tensor.amax)
def amax(input: SparseTensor, dim: Modes = (), keepdim: bool = False, *, out: Any = None) -> Tensor:
    """`torch.amax`: the largest entry, possibly an unstored one."""
    return _extreme("max=", input, dim, keepdim, out)


@operator(torch.amin, Tensor.amin)
def amin(input: SparseTensor, dim: Modes = (), keepdim: bool = False, *, out: Any = None) -> Tensor:
    """`torch.amin`: the smallest entry, possibly an unstored one."""
    return _extreme("min=", input, dim, keepdim, out)


@operator(torch.prod, Tensor.prod)
def prod(
    input: SparseTensor,
    dim: Modes = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Any = None,
) -> Tensor:
    """`torch.prod`: unstored entries count, so a row with an unstored zero has the product 0."""
    return _reduced("*=", input if dtype is None else input.to(dtype), dim, keepdim, out)


@operator(torch.any, Tensor.any)
def any(input: SparseTensor, dim: Modes = None, keepdim: bool = False, *, out: Any = None) -> Tensor:
    """`torch.any`: whether any entry is nonzero."""
    return _reduced("|=", input.to(torch.bool), dim, keepdim, out)


@operator(torch.all, Tensor.all)
def all(input: SparseTensor, dim: Modes = None, keepdim: bool = False, *, out: Any = None) -> Tensor:
    """`torch.all`: whether all entries are nonzero."""
    return _reduced("&=", input.to(torch.bool), dim, keepdim, out)


@operator(torch.count_nonzero, Tensor.count_nonzero)
def count_nonzero(input: SparseTensor, dim: Modes = None) -> Tensor:
    """`torch.count_nonzero`: the number of nonzero entries, explicit zeros excluded."""
    return _reduced("+=", input.to(torch.bool), dim, False, None)


def _extreme(assignment: str, input: SparseTensor, dim: Modes, keepdim: bool, out: Any) -> Tensor:
    """The largest or smallest entries along nonempty modes."""
    for mode in modes_of(input, dim):
        if input.shape[mode] == 0:
            raise ShapeError(
                f"the largest or smallest of no entries, along mode {mode} of {list(input.shape)}"
            )
    return _reduced(assignment, input, dim, keepdim, out)


def modes_of(input: Tensor, dim: Modes) -> tuple[int, ...]:
    """The modes named by `dim`, all of them for `None` and `()`."""
    rank = input.dim()
    dims = (dim,) if isinstance(dim, int) else tuple(dim) if dim is not None else ()
    for mode in dims:
        if not -rank <= mode < rank:
            raise ShapeError(f"mode {mode} of a tensor of {rank} modes; {-rank} to {rank - 1}")
    modes = tuple(mode % rank for mode in dims) or tuple(range(rank))
    if len(set(modes)) < len(modes):
        raise ShapeError(f"the modes {dims} name one twice; each once")
    return modes


def _reduced(
    assignment: str, input: SparseTensor, dim: Modes, keepdim: bool, out: Any, *, is_mean: bool = False
) -> Tensor:
    """The entries of a tensor reduced along modes, sums divided by the count for a mean."""
    if out is not None:
        raise refuse("a reduction with out=", "use the result")
    gone = modes_of(input, dim)
    names = INDICES[: input.dim()]
    left = ",".join(name for mode, name in enumerate(names) if mode not in gone)
    target = f"Y[{left}]" if left else "Y"
    extents = [extent for mode, extent in enumerate(input.shape) if mode not in gone]
    # Vectors are dense, whatever the inferred format; modes of extent 1 are no modes of a format.
    is_dense = not extents or ((keepdim or len(extents) < 2) and not is_vast(input, extents))
    format = dense_format(len(extents)) if is_dense else None
    entry, scalars = f"A[{','.join(names)}]", dict[str, Any]()
    text = f"{target} {assignment} {entry}"
    if is_mean:
        # One program for every number of entries, since the sum of 16-bit numbers may exceed 16 bits.
        text = f"{target} = sum({','.join(names[mode] for mode in gone)}, {entry}) / count"
        count = math.prod(input.shape[mode] for mode in gone)
        scalars = {"count": torch.tensor(count, dtype=torch.float64)}
    result = cast(Tensor, evaluate(text, A=input, format=format, **scalars))
    return with_ones(result, input.shape, gone) if keepdim else result


def is_vast(input: SparseTensor, shape: Sequence[int]) -> bool:
    """Whether a dense result of a shape would be out of all proportion to the entries and levels of a tensor.

    A level with a place for each coordinate is as large as the dense result itself.
    """
    least = builtins.max(
        LARGE, TIMES * input.nnz, TIMES * builtins.sum(len(a) for a in input._pattern.arrays_in_place())
    )
    return math.prod(shape) > least


def with_ones(result: Tensor, shape: Sequence[int], gone: Sequence[int]) -> Tensor:
    """A result with modes of extent 1 in place of the reduced modes of an operand's `shape`."""
    target_shape = [1 if mode in gone else extent for mode, extent in enumerate(shape)]
    return (
        reshaped(result, target_shape) if isinstance(result, SparseTensor) else result.reshape(target_shape)
    )
