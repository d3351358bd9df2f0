"""Parts of sparse inputs, remembered per input.

In: a `torch.sparse` matrix that is passed again and again. Out: the same rows, columns and values each
time, so that what depends on them is found in memory, too.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sparsify.storage.tensor import SparseTensor

REMEMBERED = 8


class Memory:
    """The parts of the last few sparse inputs.

    Args:
        parts: what takes a sparse matrix apart.
    """

    def __init__(self, parts: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        self.parts = parts
        self.entries: list[tuple[Any, int, Sequence[torch.Tensor]]] = []

    def __call__(self, matrix: torch.Tensor) -> Sequence[torch.Tensor]:
        """The parts of `matrix`; taken apart anew when its values need a gradient or have changed."""
        values = matrix._vals if isinstance(matrix, SparseTensor) else matrix
        if values.is_inference() or (torch.is_grad_enabled() and needs_gradient(matrix)):
            return self.parts(matrix)
        for reference, version, parts in self.entries:
            if reference() is matrix and values._version == version:
                return parts
        with torch.inference_mode(False), torch.no_grad():  # what is kept may be asked for in any mode later
            parts = self.parts(matrix)
        self.entries = [(weakref.ref(matrix), values._version, parts), *self.entries[: REMEMBERED - 1]]
        return parts


def needs_gradient(matrix: torch.Tensor) -> bool:
    """Whether a sparse tensor requires gradients, asked without going through `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        return matrix.requires_grad
