"""`torch.nn.functional` with a sparse `one_hot`: only the ones are stored.

In: `one_hot(gates.argmax(1), experts)`. Out: a `SparseTensor` [rows, experts] with one stored entry a row.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as _functional
from torch import Tensor

from sparsify.errors import DtypeError, ShapeError

if TYPE_CHECKING:
    from sparsify.storage.format import Format


def one_hot(tensor: Tensor, num_classes: int = -1, *, format: "Format | str | None" = None) -> Tensor:
    """`torch.nn.functional.one_hot` as a `SparseTensor` of int64: one stored entry for each entry of `tensor`.

    Args:
        tensor: classes [...], int64, from 0.
        num_classes: extent of the new last mode; -1: the largest class plus 1.
        format: format of the result [..., num_classes]; by default the modes of `tensor` are dense and the last mode
            is `singleton`, one coordinate a row. `"dense"` gives torch's dense tensor.

    Raises:
        DtypeError: classes not in int64.
        ShapeError: a class below 0, or beyond `num_classes`.

    >>> one_hot(torch.tensor([2, 0]), 3).to_dense().tolist()
    [[0, 0, 1], [1, 0, 0]]
    """
    from sparsify.storage.format import Format
    from sparsify.storage.interop.tensors import tensor as stored

    if tensor.dtype != torch.int64:
        raise DtypeError(f"one_hot of {tensor.dtype}", "classes in int64, tensor.long()")
    least, most = (int(tensor.min()), int(tensor.max())) if tensor.numel() else (0, -1)
    classes = most + 1 if num_classes == -1 else num_classes
    if least < 0:
        raise ShapeError(f"one_hot of the class {least}; classes from 0")
    if classes < 1 or most >= classes:
        raise ShapeError(
            f"one_hot of {classes} classes with the class {most}; num_classes={max(most + 1, 1)} or more"
        )
    if format is None:
        format = Format(", ".join([*["dense"] * tensor.dim(), "singleton" if tensor.dim() else "compressed"]))
    shape = tensor.shape
    rows = (
        torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, tensor.dim()).T if shape else _one_row()
    )
    coordinates = torch.cat([rows, tensor.reshape(1, -1)])
    return stored((coordinates, torch.ones(tensor.numel(), dtype=torch.int64), (*shape, classes)), format)


def _one_row() -> Tensor:
    """The coordinates of the only entry of a tensor without modes: none."""
    return torch.zeros(0, 1, dtype=torch.int64)


def __getattr__(name: str) -> Any:
    """torch's function called `name`."""
    return getattr(_functional, name)


def __dir__() -> list[str]:
    """The names of `torch.nn.functional`."""
    return dir(_functional)
