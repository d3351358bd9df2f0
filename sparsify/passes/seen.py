"""Tensors as they were, to tell whether they are the same ones, unchanged.

In: `see(weight)`. Out: a `Seen`; `seen.is_same(weight)` until the tensor is gone or written to.
"""

import weakref
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Seen:
    """A tensor as it was: while it lives and its version is the same, so are its values.

    Attributes:
        copy: its values, of one that is written to without a new version.
    """

    reference: "weakref.ref[torch.Tensor]"
    version: int
    address: int
    shape: torch.Size
    strides: tuple[int, ...]
    copy: torch.Tensor | None = None

    def is_same(self, leaf: Any) -> bool:
        """Whether `leaf` is that tensor, or another view of exactly its memory, unchanged."""
        if self.copy is not None and not (
            isinstance(leaf, torch.Tensor) and leaf.shape == self.shape and torch.equal(leaf, self.copy)
        ):
            return False
        known = self.reference()
        if known is None or known._version != self.version:
            return False
        if known is leaf:
            return bool(known.data_ptr() == self.address and known.shape == self.shape)
        if not isinstance(leaf, torch.Tensor) or leaf.is_inference():
            return False
        return (
            leaf._version == self.version
            and leaf.data_ptr() == known.data_ptr() == self.address
            and leaf.dtype == known.dtype
            and (leaf.shape, leaf.stride()) == (self.shape, self.strides)
        )

    def is_stale(self) -> bool:
        """Whether no tensor can be it any more."""
        known = self.reference()
        return known is None or known._version != self.version


def see(leaf: Any, *, is_counted: bool = True) -> Any:
    """A tensor as it is now; a size is itself.

    Args:
        leaf: the tensor.
        is_counted: whether its version tells of all that is written to it.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    copy = None if is_counted else leaf.detach().clone()
    return Seen(weakref.ref(leaf), leaf._version, leaf.data_ptr(), leaf.shape, leaf.stride(), copy)
