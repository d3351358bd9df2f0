"""Sparsifiers applied to tensors at hand.

In: `sparsify(weight, ScalarFraction(0.9), "csr")`. Out: a `SparseTensor` with exactly a tenth of the entries.
"""

from typing import Any

import torch
from torch import Tensor

from sparsify.errors import SparsifierError, public
from sparsify.sparsification.registered.layout import fits_layout, layout_of, shown
from sparsify.sparsification.registered.registry import closest_sparsifier
from sparsify.sparsification.registered.user_tensor import UserTensor, format_class, from_dense, made_of
from sparsify.sparsification.rules.sparsifier import Sparsifier, as_operand
from sparsify.sparsification.rules.streaming import KeepAll
from sparsify.storage.format import Format
from sparsify.storage.interop.tensors import tensor as stored
from sparsify.storage.tensor import SparseTensor


@public
def sparsify(tensor: Any, sparsifier: Any, format: Format | str | type | None = None) -> Tensor:
    """The entries of a tensor kept by a sparsifier, in a format; differentiable in the values of the tensor.

    Args:
        tensor: dense or sparse, or an argument of `sparsify.tensor`; of any shape. Dropped entries become 0.
        sparsifier: from `sparsify.sparsifiers`, or user-defined; an implementation registered by `register_sparsifier`
            for the layouts takes precedence over its mask. Streaming sparsifiers do not store zeros; others keep
            exactly the specified number of entries, zeros included.
        format: format of the result; by default CSR for matrices and compressed levels for other tensors, and the
            format of a sparse tensor. A class of `register_format`, or `torch.Tensor` for a dense tensor with zeros.

    Raises:
        SparsifierError: not a sparsifier, or one unsuitable for the tensor.
        ShapeError: blocks that do not divide the tensor, a reference of another shape.
        FormatError: a format that cannot hold the kept entries.

    Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 2.

    >>> from sparsify.sparsification.sparsifiers import ScalarFraction
    >>> sparsify(torch.tensor([[1.0, -3.0], [2.0, 0.5]]), ScalarFraction(0.5), "csr").values()
    tensor([-3.,  2.])
    """
    if not isinstance(tensor, SparseTensor | UserTensor):
        tensor = as_operand(tensor)
    cls = format_class(format)
    layout = cls or (
        format
        if format is torch.Tensor or isinstance(tensor, UserTensor)
        else _requested_format(tensor, format)
    )
    implementation = closest_sparsifier(sparsifier, tensor, layout) if isinstance(tensor, Tensor) else None
    if implementation is not None:
        result = implementation.compute(sparsifier, tensor)
        return _stored(sparsifier, tensor, result, layout)
    if not isinstance(sparsifier, Sparsifier):
        raise SparsifierError(
            f"sparsify(tensor, {sparsifier!r})",
            "an object of sparsify.sparsifiers, ScalarFraction(0.9), of a class that derives from Sparsifier, or "
            f"register an implementation:\n{_registration(sparsifier, tensor, layout)}",
        )
    if isinstance(tensor, UserTensor):
        lossless = tensor.to_sparse_tensor() if not tensor.requires_grad else None
        tensor = tensor.to_dense() if lossless is None else lossless
    if cls is None and format is not torch.Tensor:
        return sparsifier(tensor, format)  # type: ignore[arg-type]
    dense = tensor.to_dense() if isinstance(tensor, SparseTensor) else torch.as_tensor(tensor)
    masked = dense if isinstance(sparsifier, KeepAll) else dense.masked_fill(~sparsifier.mask(dense), 0)
    return masked if cls is None else from_dense(masked, cls)


def _requested_format(tensor: Any, format: Any) -> Format | None:
    """The requested format; `None` if left to the sparsifier."""
    if format is None or not isinstance(tensor, Tensor):
        return None
    return Format(format, rank=tensor.dim())


def _stored(sparsifier: Any, tensor: Tensor, result: Any, layout: Any) -> Tensor:
    """The result of an implementation, in the requested layout.

    Raises:
        SparsifierError: the result has another layout.
    """
    if format_class(type(result)) is not None:
        result = made_of(tensor, result)
    if type(result) is Tensor and isinstance(layout, Format):
        result = stored(result, layout)
    if not isinstance(result, Tensor) or (
        layout is not None and fits_layout(layout_of(result), layout) is None
    ):
        raise SparsifierError(
            f"the implementation of {type(sparsifier).__name__} returned {_kind(result)}",
            f"a tensor in the layout {shown(layout)}",
        )
    return result


def _kind(value: Any) -> str:
    """The kind of an object, for messages."""
    return f"a tensor {shown(layout_of(value))}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _registration(sparsifier: Any, tensor: Any, layout: Any) -> str:
    """The lines of code that register an implementation, to paste."""
    name = (sparsifier if isinstance(sparsifier, type) else type(sparsifier)).__name__
    input_layout = shown(layout_of(tensor)) if isinstance(tensor, Tensor) else "torch.Tensor"
    return (
        f"@sparsify.register_sparsifier(sparsifier={name}, input={input_layout}, output={shown(layout or '*')})\n"
        "def implementation(sparsifier, tensor): ..."
    )
