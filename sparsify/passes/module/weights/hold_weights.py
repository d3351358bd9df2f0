"""Weights in the forms that the variants of a sparse model read.

In: a `SparseModule` and its variants. Out: the same model, with dense weights where a variant reads them dense, and
packed weights elsewhere; the memory of replaced forms is returned to the system.
"""

from typing import TYPE_CHECKING

import torch

from sparsify.passes.capture.shell import share_tensors
from sparsify.passes.module.variants.variant import Variant
from sparsify.runtime.trim import trim

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule


def hold_weights(module: "SparseModule", variants: list[Variant], *, packs: bool = True) -> None:
    """Makes weights dense that one of the variants reads dense; `packs` packs all other weights."""
    with module._weights.lock, torch.inference_mode(False), torch.no_grad():
        module._weights.release(variants)
        if packs:
            module._weights.pack(variants)
        share_tensors(module, module._source)
    if packs:
        trim()  # frees dense weights and the memory of the comparison
