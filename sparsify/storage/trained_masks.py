"""Masks under which dense weights train, kept beside the weights while they live.

In: `remember(weight, mask)`. Out: `entries(weight)` is that mask, also where an entry in it is 0; of other weights it
is `weight != 0`. Gradients of weights that remember a mask are 0 outside of it.

A dense tensor cannot say which of its zeros are entries: those that grew a moment ago start at 0. Copies of a weight
have its mask where `follow` says so. A weight that somebody writes to outside of its mask trains where it is not 0;
steps of optimizers write where gradients were, and `trust` notes that they need no check.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sparsify.storage.bits import BYTE, packed

_masks: Any = WeakTensorKeyDictionary()
# Sets entries of a contiguous tensor to 0 where bits are 0; False where it cannot.
Clear = Callable[[Tensor, Tensor], bool]
_clear: Clear | None = None
# Bits are followed by so many bytes at least: they are read in words.
WORD = 8


def clear_by(clear: Clear) -> None:
    """Has gradients masked by a function of a higher room, which compiles it."""
    global _clear
    _clear = clear


class Mask:
    """The mask of a weight.

    Attributes:
        entries: bool [*shape].
        is_full: whether it has all entries.
        version: of the weight when nothing was set outside of the mask.
    """

    __slots__ = ("_bits", "entries", "is_full", "version")

    def __init__(self, entries: Tensor, version: int) -> None:
        self.entries, self.version = entries, version
        self.is_full = bool(entries.all())
        self._bits: Tensor | None = None

    @property
    def bits(self) -> Tensor:
        """The mask as bits, whole words of them, made when a gradient is first masked."""
        if self._bits is None:
            count = -(-self.entries.numel() // (WORD * BYTE)) * WORD * BYTE
            flags = torch.zeros(count, dtype=torch.bool)
            flags[: self.entries.numel()] = self.entries.reshape(-1)
            self._bits = packed(flags)
        return self._bits

    def applied(self, gradient: Tensor) -> Tensor:
        """A gradient that is 0 outside of the mask: in place where nothing else reads its memory."""
        if self.is_full:
            return gradient
        if _clear is not None and is_unshared(gradient) and _clear(gradient, self.bits):
            return gradient
        return masked(gradient, self.entries)


def is_unshared(gradient: Tensor) -> bool:
    """Whether a gradient lies in memory of its own, which no graph of a second derivative reads either."""
    if type(gradient) is not Tensor or not gradient.is_cpu or not gradient.is_contiguous():
        return False
    if torch.is_grad_enabled() or gradient.requires_grad or torch._C._are_functorch_transforms_active():
        return False
    # One reference is Python's and one that of the backward pass; a view has one to its base besides.
    storage = gradient.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)  # type: ignore[attr-defined]
    return gradient._use_count() <= 2 and count <= 2 + gradient._is_view()  # type: ignore[attr-defined]


def remember(weight: Tensor, mask: Tensor) -> None:
    """From now on a dense weight [*shape] trains under a mask, bool [*shape]."""
    is_known = weight in _masks
    _masks[weight] = Mask(mask, _version(weight))
    if weight.requires_grad and not is_known:
        reference = weakref.ref(weight)

        def mask_gradient(gradient: Tensor) -> Tensor:
            owner = reference()
            found = None if owner is None else _masks.get(owner)
            if found is None or found.is_full:
                return gradient
            if found.version != owner._version:  # type: ignore[union-attr]
                found = checked(owner, found)  # type: ignore[arg-type]
            masked: Tensor = found.applied(gradient)
            return masked

        weight.register_hook(mask_gradient)


def checked(weight: Tensor, mask: Mask) -> Mask:
    """The mask of a weight that was written to: another one where something outside of it is set."""
    is_set = weight.detach() != 0
    version = _version(weight)
    if bool((is_set & ~mask.entries).any()):
        mask = _masks[weight] = Mask(is_set, version)
    mask.version = version
    return mask


def is_remembered(weight: Tensor) -> bool:
    """Whether a weight remembers a mask."""
    return weight in _masks


def unwritten(weights: Iterable[Tensor]) -> list[Tensor]:
    """Those of some weights that remember a mask, and that nobody has written to since it was checked."""
    if not len(_masks):
        return []
    found = ((weight, _masks.get(weight)) for weight in weights)
    return [weight for weight, mask in found if mask is not None and mask.version == _version(weight)]


def trust(weights: Iterable[Tensor]) -> None:
    """Notes that what was written to these weights lies in their masks."""
    for weight in weights:
        _masks[weight].version = _version(weight)


def entries(weight: Tensor) -> Tensor:
    """The entries of a dense weight, bool [*shape]: the mask that it remembers, or what is not 0.

    A weight that was written to outside of its mask, as by `load_state_dict`, has forgotten it.
    """
    mask: Mask | None = _masks.get(weight)
    if mask is None:
        return weight.detach() != 0
    if mask.is_full:
        return mask.entries
    # Writes that torch does not count are found here, too.
    return checked(weight, mask).entries


def follow(copies: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Gives copies of weights the masks that the weights remember; pairs of a weight and its copy."""
    for weight, made in copies:
        if weight in _masks and made is not weight:
            remember(made, _masks[weight].entries)


def known(weights: Iterable[Any]) -> list[Tensor]:
    """The masks that some of these remember."""
    if not len(_masks):
        return []
    masks = (_masks.get(weight) for weight in weights if isinstance(weight, Tensor))
    return [mask.entries for mask in masks if mask is not None]


def masked(gradient: Tensor, mask: Tensor) -> Tensor:
    """A gradient that is 0 outside of a mask; of a table whose rows are listed, its values."""
    if gradient.layout != torch.sparse_coo:
        return torch.where(mask, gradient, 0)
    listed = gradient.coalesce()
    rows = mask[tuple(listed.indices())]
    values = torch.where(rows, listed.values(), 0)
    return torch.sparse_coo_tensor(listed.indices(), values, listed.shape, is_coalesced=True)


def _version(weight: Tensor) -> int:
    """How often torch has counted writes to a weight."""
    return 0 if weight.is_inference() else weight._version
