"""NaN and infinite entries of tensors.

In: `[1.0, nan]`. Out: `nan at [1]`, "" where all entries are finite.
"""

import torch

from sparsify.storage.tensor import SparseTensor


def value_at(tensor: torch.Tensor, places: torch.Tensor) -> str:
    """The entry of a tensor at the first of some places."""
    return f"{tensor.detach()[tuple(places[0].tolist())].item():.3g}"


def first_not_finite(tensor: torch.Tensor) -> str:
    """The first NaN or infinite entry, `nan at [2, 5]`; "" without one."""
    if not tensor.is_floating_point() or isinstance(tensor, SparseTensor):
        return ""
    if bool(tensor.detach().sum().isfinite()):
        return ""  # a sum with an entry that is not finite is not finite
    places = tensor.detach().isfinite().logical_not()
    return (
        ""
        if not places.any()
        else f"{value_at(tensor, coordinates := places.nonzero())} at {coordinates[0].tolist()}"
    )
