"""Parts of sparse inputs, remembered per input.

In: a `torch.sparse` matrix that is passed again and again. Out: the same rows, columns and values each
time, so that what depends on them is found in memory, too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from sparsify.passes.operands.content_memo import Memo, keep_private
from sparsify.storage.tensor import SparseTensor

REMEMBERED = 8


class Memory:
    """The parts of the last few sparse inputs.

    Args:
        parts: what takes a sparse matrix apart.
    """

    def __init__(self, parts: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        self.parts = parts
        self.memo: Memo[Sequence[torch.Tensor]] = Memo(REMEMBERED)

    def __call__(self, matrix: torch.Tensor) -> Sequence[torch.Tensor]:
        """The parts of `matrix`; taken apart anew when its values need a gradient or it has changed."""
        if torch.is_grad_enabled() and needs_gradient(matrix):
            return self.parts(matrix)
        return self.memo.get(arrays_of(matrix), partial(self.made, matrix), owner=matrix)

    def made(self, matrix: torch.Tensor) -> Sequence[torch.Tensor]:
        """The parts of `matrix`, taken apart now."""
        with torch.inference_mode(False), torch.no_grad():  # what is kept may be asked for in any mode later
            return [keep_private(part.detach()) for part in self.parts(matrix)]


def arrays_of(matrix: torch.Tensor) -> tuple[Any, ...]:
    """Its layout and shape, and all that it is stored as."""
    if isinstance(matrix, SparseTensor):
        return matrix._pattern, matrix._fill, matrix._vals
    with torch.no_grad():
        if matrix.layout is torch.sparse_coo:
            return matrix.layout, matrix.shape, matrix.is_coalesced(), matrix._indices(), matrix._values()
        if matrix.layout in (torch.sparse_csr, torch.sparse_bsr):
            return matrix.layout, matrix.shape, matrix.crow_indices(), matrix.col_indices(), matrix.values()
        return matrix.layout, matrix.shape, matrix.ccol_indices(), matrix.row_indices(), matrix.values()


def needs_gradient(matrix: torch.Tensor) -> bool:
    """Whether a sparse tensor requires gradients, asked without going through `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        return matrix.requires_grad
