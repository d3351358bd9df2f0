"""Masks under which dense weights train, kept beside the weights while they live.

In: `remember(weight, mask)`. Out: `entries(weight)` is that mask, also where an entry in it is 0; of other weights it
is `weight != 0`. Gradients of weights that remember a mask are 0 outside of it.

A dense tensor cannot say which of its zeros are entries: those that grew a moment ago start at 0. Copies of a weight
have its mask where `follow` says so.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sparsify.storage.tensor import SparseTensor

_masks: Any = WeakTensorKeyDictionary()


def remember(weight: Tensor, mask: Tensor) -> None:
    """From now on a dense weight [*shape] trains under a mask, bool [*shape]."""
    is_known = weight in _masks
    _masks[weight] = mask
    if weight.requires_grad and not is_known:
        reference = weakref.ref(weight)

        def mask_gradient(gradient: Tensor) -> Tensor:
            owner = reference()
            return gradient if owner is None or owner not in _masks else masked(gradient, _masks[owner])

        weight.register_hook(mask_gradient)


def entries(weight: Tensor) -> Tensor:
    """The entries of a weight, bool [*shape]: those a sparse one stores; the mask of a dense one, or what is not 0.

    A weight that was written to outside of its mask, as by `load_state_dict`, has forgotten it.
    """
    if isinstance(weight, SparseTensor):
        return _stored(weight)
    is_set = weight.detach() != 0
    mask: Tensor | None = _masks.get(weight)
    if mask is None or bool((is_set & ~mask).any()):
        return is_set
    return mask


def restricted(weight: Tensor) -> Tensor | None:
    """The mask outside of which a weight has no entries, bool [*shape]; `None` for a dense one without a mask."""
    return entries(weight) if isinstance(weight, SparseTensor) or weight in _masks else None


def _stored(weight: SparseTensor) -> Tensor:
    """Where a sparse weight stores entries."""
    pattern = weight._pattern
    at, inside = pattern.kept_coordinates(False), pattern.kept_inside()
    found = torch.zeros(pattern.shape, dtype=torch.bool)
    found[tuple(at if inside is None else at[:, inside])] = True
    return found


def follow(copies: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Gives copies of weights the masks that the weights remember; pairs of a weight and its copy."""
    for weight, made in copies:
        if weight in _masks and made is not weight:
            remember(made, _masks[weight])


def known(weights: Iterable[Any]) -> list[Tensor]:
    """The masks that some of these remember."""
    if not len(_masks):
        return []
    masks = (_masks.get(weight) for weight in weights if isinstance(weight, Tensor))
    return [mask for mask in masks if mask is not None]


def masked(gradient: Tensor, mask: Tensor) -> Tensor:
    """A gradient that is 0 outside of a mask; of a table whose rows are listed, its values."""
    if gradient.layout != torch.sparse_coo:
        return torch.where(mask, gradient, 0)
    listed = gradient.coalesce()
    rows = mask[tuple(listed.indices())]
    values = torch.where(rows, listed.values(), 0)
    return torch.sparse_coo_tensor(listed.indices(), values, listed.shape, is_coalesced=True)
