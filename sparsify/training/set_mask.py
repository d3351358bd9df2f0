"""The mask of a trained dense parameter: read, and replaced while its optimizer goes on.

In: `set_mask(weight, mask, optimizer)`. Out: the same parameter; entries that stay keep value and optimizer state,
dropped ones lose both, grown ones start at 0.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, optim

from sparsify.errors import FormatError, ShapeError, public
from sparsify.storage.tensor import SparseTensor

Optimizers = optim.Optimizer | Iterable[optim.Optimizer]


def mask_of(parameter: Tensor) -> Tensor:
    """The entries of a parameter that are not 0, bool [*shape].

    >>> mask_of(torch.tensor([0.0, 2.0])).tolist()
    [False, True]
    """
    dense = parameter.detach()
    return (dense.to_dense() if isinstance(dense, SparseTensor) else dense) != 0


@public
def set_mask(parameter: Tensor, mask: Tensor, optimizers: Optimizers = ()) -> None:
    """Gives a dense parameter the entries of a mask, and its optimizer state, too.

    Args:
        parameter: dense.
        mask: bool [*shape], true where entries are kept or grow.
        optimizers: one or several that train the parameter.

    Raises:
        ShapeError: a mask of another shape.
        FormatError: a sparse parameter.
    """
    if mask.shape != parameter.shape:
        raise ShapeError(f"a mask {list(mask.shape)} for a parameter {list(parameter.shape)}")
    if isinstance(parameter, SparseTensor):
        raise FormatError("set_mask of a sparse parameter", "train it dense")
    stays = mask_of(parameter) & mask
    several = [optimizers] if isinstance(optimizers, optim.Optimizer) else list(optimizers)
    with torch.no_grad():
        parameter.masked_fill_(~stays, 0)
        for optimizer in several:
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape:
                    value.masked_fill_(~stays, 0)
