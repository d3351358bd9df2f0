"""Packed weights in a further format, beside the one that the model holds: for calls with far more rows, or far fewer.

In: a weight held `i/16: dense, j/64: dense, i%16: dense, j%64: sliced(16, crd=int8)`. Out: the operand
`j/96: dense, i: dense, j%96: compressed(crd=int8)` of the same entries, made at the first call and again when the
weight was written to or replaced.
"""

from collections.abc import Callable

import torch

from sparsify.passes.operands.content_memo import Memo
from sparsify.storage.tensor import SparseTensor

# Weights of which further formats are remembered: those of copies of a model.
REMEMBERED = 8


class Beside:
    """Operands by the weights that they were made of; structures that want the same share one."""

    def __init__(self) -> None:
        self.memory: Memo[SparseTensor] = Memo(REMEMBERED, are_weights=True)

    def __call__(self, weight: SparseTensor, operand: Callable[[torch.Tensor], SparseTensor]) -> SparseTensor:
        """The operand of a weight, `operand` of its dense entries where it is new."""

        def make() -> SparseTensor:
            with torch.inference_mode(False), torch.no_grad():
                return operand(weight.detach().to_dense())

        return self.memory.get((weight._vals, weight._pattern), make)

    def known(self, weight: SparseTensor) -> SparseTensor | None:
        """The operand of a weight where it is remembered."""
        return self.memory.known((weight._vals, weight._pattern))
