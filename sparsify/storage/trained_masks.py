"""Masks under which dense weights train, kept beside the weights while they live.

In: `remember(weight, mask)`. Out: `entries(weight)` is that mask, also where an entry in it is 0; of other weights it
is `weight != 0`. Gradients of weights that remember a mask are 0 outside of it.

A dense tensor cannot say which of its zeros are entries: those that grew a moment ago start at 0. Copies of a weight
have its mask where `follow` says so. A weight that somebody writes to outside of its mask trains where it is not 0;
`clear_outside` puts its zeros back after steps of optimizers.
"""

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sparsify.storage.bits import BYTE, packed
from sparsify.storage.tensor import SparseTensor

_masks: Any = WeakTensorKeyDictionary()
# Sets entries of a contiguous tensor to 0 where bits are 0.
Clear = Callable[[Tensor], None]
# Gives that function for a number of entries of a dtype and their bits; None where it cannot.
MakeClear = Callable[[int, torch.dtype, Tensor], Clear | None]
_make_clear: MakeClear | None = None
# References of C++ and Python to a gradient, and to the tensor that it is a view of.
Held = tuple[tuple[int, int], tuple[int, int] | None]
# Those of gradients that nothing but a backward pass holds, as this Python and this torch count them.
_clean: set[Held] = set()
# Bits are followed by so many bytes at least: they are read in words.
WORD = 8


def clear_by(make: MakeClear) -> None:
    """Has gradients masked by functions of a higher room, which compiles them."""
    global _make_clear
    _make_clear = make


class Mask:
    """The mask of a weight.

    Attributes:
        entries: bool [*shape].
        is_full: whether it has all entries.
        is_hooked: whether gradients of the weight are masked.
        version: of the weight when nothing was set outside of the mask.
    """

    __slots__ = ("_clear", "entries", "is_full", "is_hooked", "version")

    def __init__(self, entries: Tensor, version: int) -> None:
        self.is_hooked = False
        self.set(entries, version)

    def set(self, entries: Tensor, version: int) -> None:
        """Becomes another mask of the weight."""
        self.entries, self.version = entries, version
        self.is_full = bool(entries.all())
        self._clear: dict[torch.dtype, Clear | None] = {}

    def clear(self, dtype: torch.dtype) -> Clear | None:
        """Sets a gradient to 0 outside of the mask, where it lies."""
        if dtype not in self._clear and _make_clear is not None:
            # Bits in whole words, made when a gradient is first masked.
            count = self.entries.numel()
            flags = torch.zeros(-(-count // (WORD * BYTE)) * WORD * BYTE, dtype=torch.bool)
            flags[:count] = self.entries.reshape(-1)
            self._clear[dtype] = _make_clear(count, dtype, packed(flags))
        return self._clear.get(dtype)

    def applied(self, gradient: Tensor, held: Held) -> Tensor:
        """A gradient that is 0 outside of the mask: in place where nothing else reads its memory."""
        if self.is_full:
            return gradient
        if held in _clean and has_own_memory(gradient):
            clear = self._clear.get(gradient.dtype) or self.clear(gradient.dtype)
            if clear is not None:
                clear(gradient)
                return gradient
        return masked(gradient, self.entries)


def has_own_memory(gradient: Tensor) -> bool:
    """Whether a gradient that nothing else refers to lies in memory that no other tensor, nor a graph, reads."""
    if type(gradient) is not Tensor or not gradient.is_cpu or not gradient.is_contiguous():
        return False
    if torch.is_grad_enabled() or gradient.requires_grad or torch._C._are_functorch_transforms_active():
        return False
    storage = gradient.untyped_storage()
    if not storage.resizable():
        return False  # memory of numpy, or of another library
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count <= 2 + gradient._is_view()


class _Probe(Mask):
    """Notes the references of the gradients that it is applied to."""

    __slots__ = ()

    def applied(self, gradient: Tensor, held: Held) -> Tensor:
        """The gradient as it is."""
        if has_own_memory(gradient):
            _clean.add(held)
        return gradient


def _count_references() -> None:
    """Notes the references of gradients of products that nothing but their backward pass holds."""
    one = torch.ones(2, 2)
    with torch.inference_mode(False), torch.enable_grad():
        for product in (torch.nn.functional.linear, torch.matmul):
            weight = torch.ones(2, 2, requires_grad=True)
            probe = _Probe(torch.zeros(2, 2, dtype=torch.bool), _version(weight))
            probe.is_full = False
            weight.register_hook(_hook(weakref.ref(weight), probe))
            product(one, weight).sum().backward()


def remember(weight: Tensor, mask: Tensor) -> None:
    """From now on a dense weight [*shape] trains under a mask, bool [*shape]."""
    known: Mask | None = _masks.get(weight)
    if known is not None:
        known.set(mask, _version(weight))
    else:
        known = _masks[weight] = Mask(mask, _version(weight))
    if weight.requires_grad and not known.is_full and not known.is_hooked:
        if not _clean and not torch._C._are_functorch_transforms_active():
            _count_references()
        known.is_hooked = True
        weight.register_hook(_hook(weakref.ref(weight), known))


def _hook(reference: "weakref.ref[Tensor]", mask: Mask) -> Callable[[Tensor], Tensor]:
    """The hook that masks the gradients of a weight.

    Other nodes of the graph, hooks, functions of the user, and callers that gave the gradient of a result may hold
    it, or the tensor that it is a view of: then it has more references than one that nothing holds.
    """

    def mask_gradient(gradient: Tensor) -> Tensor:
        if mask.is_full:
            return gradient
        # Counted in this function: further calls would hold references of their own, more where functions are traced.
        base = gradient._base
        held: Held = (
            (gradient._use_count(), sys.getrefcount(gradient)),  # type: ignore[attr-defined]
            None if base is None else (base._use_count(), sys.getrefcount(base)),  # type: ignore[attr-defined]
        )
        owner = reference()
        if owner is not None and mask.version != owner._version:
            check(owner, mask)
        return mask.applied(gradient, held)

    return mask_gradient


def check(weight: Tensor, mask: Mask) -> None:
    """Gives a weight that was written to outside of its mask another one: what is not 0."""
    is_set = weight.detach() != 0
    version = _version(weight)
    if bool((is_set & ~mask.entries).any()):
        mask.set(is_set, version)
    mask.version = version


def is_remembered(weight: Tensor) -> bool:
    """Whether a weight remembers a mask."""
    return weight in _masks


def unwritten(weights: Iterable[Tensor]) -> list[Tensor]:
    """The weights that remember a mask and that nobody has written to since the mask was checked."""
    if not len(_masks):
        return []
    found = ((weight, _masks.get(weight)) for weight in weights)
    return [weight for weight, mask in found if mask is not None and mask.version == _version(weight)]


def clear_outside(weights: Iterable[Tensor]) -> None:
    """Sets weights that were written to, as by the step of an optimizer, to 0 outside of their masks."""
    for weight in weights:
        mask: Mask = _masks[weight]
        if mask.is_full:
            continue
        found = weight.detach()
        clear = mask.clear(found.dtype) if found.is_cpu and found.is_contiguous() else None
        if clear is None:
            found.masked_fill_(~mask.entries, 0)
        else:
            clear(found)
        mask.version = _version(weight)


def entries(weight: Tensor) -> Tensor:
    """The entries of a weight, bool [*shape]: those a sparse one stores; the mask of a dense one, or what is not 0.

    A weight that was written to outside of its mask, as by `load_state_dict`, has forgotten it.
    """
    if isinstance(weight, SparseTensor):
        return _stored(weight)
    mask: Mask | None = _masks.get(weight)
    if mask is None:
        return weight.detach() != 0
    if mask.is_full:
        return mask.entries
    # Writes that torch does not count are found here, too.
    check(weight, mask)
    return mask.entries


def restricted(weight: Tensor) -> Tensor | None:
    """The mask outside of which a weight has no entries, bool [*shape]; `None` for a dense one without a mask."""
    return entries(weight) if isinstance(weight, SparseTensor) or weight in _masks else None


def _stored(weight: SparseTensor) -> Tensor:
    """Where a sparse weight stores entries."""
    pattern = weight._pattern
    at, inside = pattern.kept_coordinates(False), pattern.kept_inside()
    found = torch.zeros(pattern.shape, dtype=torch.bool)
    found[tuple((at if inside is None else at[:, inside]).cpu())] = True
    return found


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
    """The number of times torch has counted writes to a weight."""
    return 0 if weight.is_inference() else weight._version
