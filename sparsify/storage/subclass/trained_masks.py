"""Masks of dense weights in training, kept beside the weights during their lifetime.

In: `remember(weight, mask)`. Out: `entries(weight)` is the mask, also for entries equal to 0; for other weights
`weight != 0`. Gradients of weights with a mask are 0 outside of the mask.

A dense tensor cannot distinguish entries from zeros: new entries start at 0. Copies of a weight
have the mask of the original after `follow`. A weight written to outside of its mask trains on its nonzeros;
`clear_outside` restores the zeros after optimizer steps.
"""

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sparsify.storage.level.bits import BYTE, packed
from sparsify.storage.tensor import SparseTensor

_masks: Any = WeakTensorKeyDictionary()
# Zeroes entries of a contiguous tensor at zero bits.
Clear = Callable[[Tensor], None]
# Makes the `Clear` function for a number of entries of a dtype and their bits; None if unsupported.
MakeClear = Callable[[int, torch.dtype, Tensor], Clear | None]
_make_clear: MakeClear | None = None
# Reference counts in C++ and Python of a gradient, and of its base.
Held = tuple[tuple[int, int], tuple[int, int] | None]
# Reference counts of gradients held by a backward pass only, measured on this Python and torch.
_clean: set[Held] = set()
# Functions of torch called for each gradient, without a search through modules.
_is_grad_enabled = torch.is_grad_enabled
_are_transforms_active = torch._C._are_functorch_transforms_active
_count_uses = torch._C._storage_Use_Count
# Minimum padding behind bits in bytes: bits are read in words.
WORD = 8


def clear_by(make: MakeClear) -> None:
    """Registers compiled functions that mask gradients, from a higher package."""
    global _make_clear
    _make_clear = make


class Mask:
    """The mask of a weight.

    Attributes:
        entries: bool [*shape].
        is_full: whether all entries are in the mask.
        is_hooked: whether gradients of the weight are masked.
        version: version of the weight at the last check for writes outside of the mask.
    """

    __slots__ = ("_clear", "entries", "is_full", "is_hooked", "version")

    def __init__(self, entries: Tensor, version: int) -> None:
        self.is_hooked = False
        self.set(entries, version)

    def set(self, entries: Tensor, version: int) -> None:
        """Replaces the mask of the weight."""
        self.entries, self.version = entries, version
        self.is_full = bool(entries.all())
        self._clear: dict[torch.dtype, Clear | None] = {}

    def clear(self, dtype: torch.dtype) -> Clear | None:
        """Function that zeroes a gradient of a dtype outside of the mask, in place; `None` without a compiler."""
        if dtype not in self._clear and _make_clear is not None:
            # Bits in whole words, made when a gradient is first masked.
            count = self.entries.numel()
            flags = torch.zeros(-(-count // (WORD * BYTE)) * WORD * BYTE, dtype=torch.bool)
            flags[:count] = self.entries.reshape(-1)
            self._clear[dtype] = _make_clear(count, dtype, packed(flags))
        return self._clear.get(dtype)

    def applied(self, gradient: Tensor, reference_counts: Held) -> Tensor:
        """The gradient, zeroed outside of the mask: in place if nothing else reads the memory."""
        if self.is_full:
            return gradient
        if reference_counts in _clean and has_own_memory(gradient):
            clear = self._clear.get(gradient.dtype) or self.clear(gradient.dtype)
            if clear is not None:
                clear(gradient)
                return gradient
        return masked(gradient, self.entries)


def has_own_memory(gradient: Tensor) -> bool:
    """Whether a gradient without other references has memory not read by other tensors or by a graph."""
    if type(gradient) is not Tensor or not gradient.is_cpu or not gradient.is_contiguous():
        return False
    if _is_grad_enabled() or gradient.requires_grad or _are_transforms_active():
        return False
    storage = gradient.untyped_storage()
    if not storage.resizable():
        return False  # memory of numpy, or of another library
    count: int = _count_uses(storage._cdata)
    return count <= 2 + gradient._is_view()


class _Probe(Mask):
    """Records the reference counts of gradients passed to the hook."""

    __slots__ = ()

    def applied(self, gradient: Tensor, reference_counts: Held) -> Tensor:
        """The gradient, unchanged."""
        if has_own_memory(gradient):
            _clean.add(reference_counts)
        return gradient


def _count_references() -> None:
    """Records the reference counts of product gradients held only by their backward pass."""
    one = torch.ones(2, 2)
    with torch.inference_mode(False), torch.enable_grad():
        for product in (torch.nn.functional.linear, torch.matmul):
            weight = torch.ones(2, 2, requires_grad=True)
            probe = _Probe(torch.zeros(2, 2, dtype=torch.bool), _version(weight))
            probe.is_full = False
            weight.register_hook(_hook(weakref.ref(weight), probe))
            product(one, weight).sum().backward()


def remember(weight: Tensor, mask: Tensor) -> None:
    """Trains a dense weight [*shape] under a mask, bool [*shape], from now on."""
    record: Mask | None = _masks.get(weight)
    if record is not None:
        record.set(mask, _version(weight))
    else:
        record = _masks[weight] = Mask(mask, _version(weight))
    if weight.requires_grad and not record.is_full and not record.is_hooked:
        if not _clean and not torch._C._are_functorch_transforms_active():
            _count_references()
        record.is_hooked = True
        weight.register_hook(_hook(weakref.ref(weight), record))


def _hook(reference: "weakref.ref[Tensor]", mask: Mask) -> Callable[[Tensor], Tensor]:
    """The hook that masks the gradients of a weight.

    Other nodes of the graph, hooks, functions of the user, and callers with the gradient of a result may hold
    the gradient, or its base: then the reference count exceeds the count of an unshared gradient.
    """

    def mask_gradient(gradient: Tensor) -> Tensor:
        if mask.is_full:
            return gradient
        # Counted in this function: further calls would add references, more so if traced.
        base = gradient._base
        reference_counts: Held = (
            (gradient._use_count(), sys.getrefcount(gradient)),  # type: ignore[attr-defined]
            None if base is None else (base._use_count(), sys.getrefcount(base)),  # type: ignore[attr-defined]
        )
        owner = reference()
        if owner is not None and mask.version != owner._version:
            check(owner, mask)
        return mask.applied(gradient, reference_counts)

    return mask_gradient


def check(weight: Tensor, mask: Mask) -> None:
    """Replaces the mask of a weight written to outside of the mask by the nonzeros."""
    is_set = weight.detach() != 0
    version = _version(weight)
    if bool((is_set & ~mask.entries).any()):
        mask.set(is_set, version)
    mask.version = version


def is_remembered(weight: Tensor) -> bool:
    """Whether a weight has a mask."""
    return weight in _masks


def unwritten(weights: Iterable[Tensor]) -> list[Tensor]:
    """The weights with a mask and without writes since the last check of the mask."""
    if not len(_masks):
        return []
    pairs = ((weight, _masks.get(weight)) for weight in weights)
    return [weight for weight, mask in pairs if mask is not None and mask.version == _version(weight)]


def clear_outside(weights: Iterable[Tensor]) -> None:
    """Zeroes weights outside of their masks after writes, as by an optimizer step."""
    for weight in weights:
        mask: Mask = _masks[weight]
        if mask.is_full:
            continue
        data = weight.detach()
        clear = mask.clear(data.dtype) if data.is_cpu and data.is_contiguous() else None
        if clear is None:
            data.masked_fill_(~mask.entries, 0)
        else:
            clear(data)
        mask.version = _version(weight)


def entries(weight: Tensor) -> Tensor:
    """The entries of a weight, bool [*shape]: the stored ones if sparse; the mask of a dense one, or its nonzeros.

    A weight written to outside of its mask, as by `load_state_dict`, loses the mask.
    """
    if isinstance(weight, SparseTensor):
        return _stored(weight)
    mask: Mask | None = _masks.get(weight)
    if mask is None:
        return weight.detach() != 0
    if mask.is_full:
        return mask.entries
    # Writes not counted by torch are found by this check, too.
    check(weight, mask)
    return mask.entries


def restricted(weight: Tensor) -> Tensor | None:
    """The mask of all possible entries of a weight, bool [*shape]; `None` for a dense weight without a mask."""
    return entries(weight) if isinstance(weight, SparseTensor) or weight in _masks else None


def _stored(weight: SparseTensor) -> Tensor:
    """The mask of the stored entries of a sparse weight."""
    pattern = weight._pattern
    at, inside = pattern.kept_coordinates(False), pattern.kept_inside()
    mask = torch.zeros(pattern.shape, dtype=torch.bool)
    mask[tuple((at if inside is None else at[:, inside]).cpu())] = True
    return mask


def follow(copies: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copies masks from weights to their copies, given as pairs of a weight and its copy."""
    for weight, duplicate in copies:
        if weight in _masks and duplicate is not weight:
            remember(duplicate, _masks[weight].entries)


def masks_of(weights: Iterable[Any]) -> list[Tensor]:
    """The masks of all weights that have one."""
    if not len(_masks):
        return []
    masks = (_masks.get(weight) for weight in weights if isinstance(weight, Tensor))
    return [mask.entries for mask in masks if mask is not None]


def masked(gradient: Tensor, mask: Tensor) -> Tensor:
    """The gradient, zeroed outside of a mask; for a row-sparse gradient of a table, the values."""
    if gradient.layout != torch.sparse_coo:
        return torch.where(mask, gradient, 0)
    listed = gradient.coalesce()
    rows = mask[tuple(listed.indices())]
    values = torch.where(rows, listed.values(), 0)
    return torch.sparse_coo_tensor(listed.indices(), values, listed.shape, is_coalesced=True)


def _version(weight: Tensor) -> int:
    """The number of writes to a weight counted by torch."""
    return 0 if weight.is_inference() else weight._version
