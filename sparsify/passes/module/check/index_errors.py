"""Torch's errors for indices out of range, extended by the ranges of the inputs.

In: `IndexError("index out of range in self")` of a call with `edge_index`. Out: the same class with the text `index out
of range in self; edge_index has indices from 0 to 50; x has 50 rows; ...`.
"""

import re
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from sparsify.storage.own_memory import runs_natively

OUTSIDE: Final = re.compile(r"^index .*out of (range|bounds)")


def is_of_index(error: Exception) -> bool:
    """Whether an error of torch reports an index out of range."""
    return OUTSIDE.match(str(error)) is not None


def with_inputs(error: Exception, names: Sequence[str], tensors: Sequence[Tensor]) -> Exception:
    """The same error with the minimum and maximum of each index input and the rows of all other inputs."""
    if not runs_natively(tensors):
        return error
    indices, rows = [], []
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.dtype in (torch.int32, torch.int64) and tensor.numel():
            indices.append(f"{name} has indices from {int(tensor.min())} to {int(tensor.max())}")
        elif tensor.is_floating_point() and tensor.dim() > 1:
            rows.append(f"{name} has {tensor.shape[0]} rows")
    parts = [
        str(error),
        *indices,
        *rows,
        "indices are from 0 to the number of rows that they address, less 1",
    ]
    return type(error)("; ".join(parts))
