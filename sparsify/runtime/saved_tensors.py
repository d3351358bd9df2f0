"""Hooks on the tensors that autograd saves, such as those of checkpoints.

In: a call under `torch.utils.checkpoint.checkpoint`. Out: `are_hooked()`, whether hooks receive the tensors saved from
now on, and `unhooked()`, a context without them. A checkpoint counts the saved tensors of a call and requires the same
number from its recomputation; captures, comparisons and measurements run in the first call only.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
from torch import Tensor

_hooks: Final = torch._C._autograd._top_saved_tensors_default_hooks


def are_hooked() -> bool:
    """Whether hooks receive the tensors that autograd saves from now on."""
    return _hooks(True) is not None


def unhooked() -> AbstractContextManager[None]:
    """A context in which the caller's hooks receive no saved tensors."""
    return torch.autograd.graph.saved_tensors_hooks(_same, _same) if are_hooked() else nullcontext()


def _same(tensor: Tensor) -> Tensor:
    """The tensor."""
    return tensor
