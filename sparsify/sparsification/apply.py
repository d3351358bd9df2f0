"""Sparsifiers applied to tensors at hand.

In: `sparsify(weight, ScalarFraction(0.9), "csr")`. Out: a `SparseTensor` with exactly a tenth of the entries.
"""

from typing import Any

from torch import Tensor

from sparsify.errors import SparsifierError, public
from sparsify.sparsification.sparsifier import Sparsifier
from sparsify.storage.format import Format


@public
def sparsify(tensor: Any, sparsifier: Sparsifier, format: Format | str | None = None) -> Tensor:
    """The entries of a tensor that a sparsifier keeps, in a format; differentiable in the values of the tensor.

    Args:
        tensor: dense or sparse, or what `sparsify.tensor` takes; of any shape. What is dropped becomes 0.
        sparsifier: of `sparsify.sparsifiers`, or an own one. Streaming ones do not store what equals 0; others keep
            exactly as many entries as they say, zeros included.
        format: of the result; without it CSR for matrices and compressed levels for other tensors, and of a sparse
            tensor its own format.

    Raises:
        SparsifierError: not a sparsifier, or one that does not fit the tensor.
        ShapeError: blocks that do not divide the tensor, a reference of another shape.
        FormatError: a format that cannot hold what stays.

    Source: Ivanov, Dryden and Hoefler, STen: An Interface for Efficient Sparsity in PyTorch, 2022, section 2.

    >>> import torch
    >>> from sparsify.sparsification.sparsifiers import ScalarFraction
    >>> sparsify(torch.tensor([[1.0, -3.0], [2.0, 0.5]]), ScalarFraction(0.5), "csr").values()
    tensor([-3.,  2.])
    """
    if not isinstance(sparsifier, Sparsifier):
        raise SparsifierError(
            f"sparsify(tensor, {sparsifier!r})",
            "an object of sparsify.sparsifiers, ScalarFraction(0.9), or of a class that derives from Sparsifier",
        )
    return sparsifier(tensor, format)
