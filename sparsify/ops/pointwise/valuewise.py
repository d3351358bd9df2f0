"""Functions of each entry alone, computed on the stored values and once on the fill: `dropout isin bucketize //`.

In: `torch.isin(A, elements)`. Out: the tensor on the pattern of A with the function applied to values and fill.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsify.ops.entries import lookup
from sparsify.ops.register.table import operator, refuse
from sparsify.storage.tensor import SparseTensor


def on_values(function: Any, input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    """`function` of every entry: of the values, and of a tensor [1] of the fill."""
    fill = function(torch.full((1,), input.fill, dtype=input.dtype), *args, **kwargs)
    return SparseTensor(input.pattern, function(input.values(), *args, **kwargs), fill.item())


def random_on_values(function: Any, input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
    """A random `function` of every entry, with zeros kept, of a tensor with the fill 0."""
    if input.fill != 0:
        raise refuse(f"random numbers for unstored entries of {input.fill}", "with_fill(0)")
    return SparseTensor(input.pattern, function(input.values(), *args, **kwargs))


@operator(functional.dropout, torch.dropout, torch.feature_dropout)
def dropout(
    input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False, **_: Any
) -> Any:
    """`torch.nn.functional.dropout`: unstored zeros stay zeros, dropped or not."""
    if inplace:
        raise refuse("dropout in place", "the result")
    return random_on_values(functional.dropout, input, p, training) if training else input


@operator(torch.bernoulli, Tensor.bernoulli)
def bernoulli(input: SparseTensor, *, generator: Any = None, out: Any = None) -> SparseTensor:
    """`torch.bernoulli`: 1 with each entry as the probability."""
    if out is not None:
        raise refuse("bernoulli with out=", "use the result")
    return random_on_values(torch.bernoulli, input, generator=generator)


@operator(torch.isin)
def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False
) -> SparseTensor:
    """`torch.isin`: membership of each entry in a set of others."""
    if not isinstance(elements, SparseTensor):
        raise refuse("isin of dense elements among sparse ones", "test_elements.unique()")
    tests = lookup.unique(test_elements) if isinstance(test_elements, SparseTensor) else test_elements
    return on_values(torch.isin, elements, tests, invert=invert)


@operator(torch.bucketize)
def bucketize(
    input: SparseTensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False, out: Any = None
) -> SparseTensor:
    """`torch.bucketize`: the number of boundaries below each entry."""
    if out is not None or not isinstance(input, SparseTensor) or isinstance(boundaries, SparseTensor):
        raise refuse("bucketize with out=, or with sparse boundaries", "boundaries.to_dense()")
    return on_values(torch.bucketize, input, boundaries, out_int32=out_int32, right=right)


@operator(torch.floor_divide, Tensor.floor_divide, Tensor.__floordiv__)
def floor_divide(input: Any, other: Any, *, out: Any = None) -> SparseTensor:
    """`torch.floor_divide`: by a number."""
    if out is not None or not isinstance(input, SparseTensor) or not isinstance(other, int | float):
        raise refuse("a rounded quotient of two tensors, or with out=", "torch.floor(A / B)")
    return on_values(torch.floor_divide, input, other)


def _of_dtype(function: Any) -> Any:
    """The implementation of a function of the dtype alone: `A.new_zeros(3)`."""

    def compute(input: SparseTensor, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = function(torch.empty(0, dtype=input.dtype), *args, **kwargs)
        return result

    return compute


for _name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"):
    operator(getattr(Tensor, _name))(_of_dtype(getattr(Tensor, _name)))
