"""Transforms of `torch.func`: active transforms, followed tensors, and a context outside; tangents.

In: `grad(f)(x)`, inside of `f`. Out: `is_followed(x)` holds; inside of `outside()` torch computes without
transforms, on unfollowed tensors. For `forward_ad.make_dual(x, t)` outside of transforms `have_tangents` holds.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

are_active = torch._C._are_functorch_transforms_active
outside = temporarily_clear_interpreter_stack


def is_followed(arguments: Any) -> bool:
    """Whether a transform follows a tensor in the arguments, or its values."""
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    return any(is_functorch_wrapped_tensor(getattr(tensor, "_vals", tensor)) for tensor in tensors)


def have_tangents(arguments: Any) -> bool:
    """Whether `torch.autograd.forward_ad` carries a tangent of a tensor in the arguments, or of its values."""
    if forward_ad._current_level < 0 or not torch._C._is_fwd_grad_enabled():
        return False
    tensors = [getattr(leaf, "_vals", leaf) for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)
