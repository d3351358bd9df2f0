"""torch's namespace over dense and sparse tensors: `import sparsify.torch as torch` in place of `import torch`.

In: `torch.einsum("ij,ik,kj->ij", torch.rand(9, 9).to_sparse(), B, C)`. Out: a `SparseTensor`.

Factories take `format=`; `einsum` takes `format=` and `schedule=` and operands of torch's sparse layouts;
`sparse_coo_tensor` and the like make `SparseTensor`s; `nn.functional.one_hot` stores only the ones; `rearrange`
is new. Every other name is torch's own object, submodules included, and computes on `SparseTensor`s through
`__torch_function__`.

Read `factories.py`, then `expressions.py` and `rearrange_modes.py`, then `aliases.py` (imports of submodules).

Source: Yan, Root, Gale, Broman and Kjolstad, Scorch: A Library for Sparse Deep Learning, 2024, section 3.1.
"""

from typing import Any

import torch as _torch

from sparsify.torch import aliases, nn
from sparsify.torch.expressions import einsum
from sparsify.torch.factories import FACTORIES
from sparsify.torch.rearrange_modes import rearrange

globals().update(FACTORIES)
aliases.install(__name__, _torch.__name__)

__all__ = [*_torch.__all__, "einsum", "nn", "rearrange"]


def __getattr__(name: str) -> Any:
    """torch's object called `name`."""
    try:
        return getattr(_torch, name)
    except AttributeError:
        raise AttributeError(f"neither torch nor {__name__!r} has an attribute {name!r}") from None


def __dir__() -> list[str]:
    """torch's names and the new names of the module."""
    return sorted({*dir(_torch), *__all__})
