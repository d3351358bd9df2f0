"""Packed weights in a further format, beside the one that the model holds: for calls with far more rows, or far fewer.

In: a weight held `i/16: dense, j/64: dense, i%16: dense, j%64: sliced(16, crd=int8)`. Out: the operand
`j/96: dense, i: dense, j%96: compressed(crd=int8)` of the same entries, made at the first call and again when the
weight was written to or replaced.
"""

from collections.abc import Callable

import torch

from sparsify.passes.seen import Seen, see
from sparsify.storage.tensor import SparseTensor

# Weights of which further formats are remembered: those of copies of a model.
REMEMBERED = 8


class Beside:
    """Operands by the weights that they were made of; structures that want the same share one."""

    def __init__(self) -> None:
        self.memory: list[tuple[Seen, SparseTensor]] = []

    def __call__(self, weight: SparseTensor, operand: Callable[[torch.Tensor], SparseTensor]) -> SparseTensor:
        """The operand of a weight, `operand` of its dense entries where it is new."""
        values = weight._vals
        if (known := self.known(weight)) is not None:
            return known
        with torch.inference_mode(False), torch.no_grad():
            made = operand(weight.detach().to_dense())
        if not values.is_inference():  # inference tensors do not count their versions
            kept = [known for known in self.memory if not known[0].is_stale()]
            self.memory = [(see(values), made), *kept[: REMEMBERED - 1]]
        return made

    def known(self, weight: SparseTensor) -> SparseTensor | None:
        """The operand of a weight where it is remembered."""
        values = weight._vals
        return next((made for seen, made in self.memory if seen.is_same(values)), None)
