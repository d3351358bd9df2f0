"""Composite reductions: `var std var_mean std_mean logsumexp`. Unstored entries count as the fill.

In: `torch.var(A, 1)`. Out: means `m`, then `S[i] += square(A[i,j] - m[i])` divided by the count; A is never densified.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from sparsify.compiler.evaluate import evaluate
from sparsify.ops.pointwise.elementwise import INDICES, div
from sparsify.ops.reduce import reductions
from sparsify.ops.reduce.reductions import Modes, modes_of, with_ones
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.tensor import SparseTensor


@operator(torch.var, Tensor.var)
def var(input: SparseTensor, *args: Any, **kwargs: Any) -> Tensor:
    """`torch.var`: the mean squared distance from the mean."""
    return _of_variance(input, args, kwargs)[0]


@operator(torch.std, Tensor.std)
def std(input: SparseTensor, *args: Any, **kwargs: Any) -> Tensor:
    """`torch.std`: the square root of the variance."""
    return torch.sqrt(var(input, *args, **kwargs))


@operator(torch.var_mean)
def var_mean(input: SparseTensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """`torch.var_mean`: the variance and the mean."""
    return _of_variance(input, args, kwargs)


@operator(torch.std_mean)
def std_mean(input: SparseTensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """`torch.std_mean`: the standard deviation and the mean."""
    variance, mean = _of_variance(input, args, kwargs)
    return torch.sqrt(variance), mean


@operator(torch.logsumexp, Tensor.logsumexp, torch.special.logsumexp)
def logsumexp(input: SparseTensor, dim: Modes, keepdim: bool = False, *, out: Any = None) -> Tensor:
    """`torch.logsumexp`: the maximum is subtracted from the exponents, against overflow."""
    if out is not None or not input.dtype.is_floating_point:
        raise refuse("logsumexp of integers, or with out=", "A.to(torch.float32)")
    gone = modes_of(input, dim)
    if any(input.shape[mode] == 0 for mode in gone):
        raise refuse("logsumexp of no entries")
    largest = reductions.amax(cast(SparseTensor, input.detach()), gone)
    largest = (
        torch.where(largest.isfinite(), largest, 0) if not isinstance(largest, SparseTensor) else largest
    )
    total = _accumulated("exp({} - {})", input, gone, largest)
    return _shaped(torch.log(total) + largest, input, gone, keepdim)


def _of_variance(input: SparseTensor, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The variance and the mean, with either form of torch's arguments."""
    dim, correction, keepdim = _arguments(*args, **kwargs)
    if not input.dtype.is_floating_point:
        raise refuse(f"a variance of {input.dtype}", "A.to(torch.float32)")
    gone = modes_of(input, dim)
    count = math.prod(input.shape[mode] for mode in gone)
    if count <= correction:
        raise refuse(f"a variance of {count} entries with the correction {correction}")
    mean = reductions.mean(input, gone)
    total = _accumulated("square({} - {})", input, gone, mean)
    variance = (
        div(total, count - correction) if isinstance(total, SparseTensor) else total / (count - correction)
    )
    return _shaped(variance, input, gone, keepdim), _shaped(mean, input, gone, keepdim)


def _arguments(
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: Any = None,
) -> tuple[Modes, float, bool]:
    """The modes, the correction and `keepdim`; `var(A, False)` has the second argument first."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if out is not None or (unbiased is not None and correction is not None):
        raise refuse("a variance with out=, or with both unbiased and correction")
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    return dim, correction, keepdim


def _accumulated(text: str, input: SparseTensor, gone: Sequence[int], reduction: Tensor) -> Tensor:
    """The sum over modes of a function of the entries and of an earlier reduction result."""
    names = INDICES[: input.dim()]
    left = ",".join(name for mode, name in enumerate(names) if mode not in gone)
    target, other = (f"Y[{left}]", f"m[{left}]") if left else ("Y", "m")
    text = text.format(f"A[{','.join(names)}]", other)
    return cast(Tensor, evaluate(f"{target} += {text}", A=input, m=reduction))


def _shaped(result: Tensor, input: SparseTensor, gone: Sequence[int], keepdim: bool) -> Tensor:
    """The result, with modes of extent 1 in place of the reduced ones if `keepdim`."""
    return with_ones(result, input.shape, gone) if keepdim else result
