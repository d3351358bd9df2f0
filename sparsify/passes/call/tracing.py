"""Whether running code is traced, by Dynamo or by `torch.export`, or observed by transforms and modes.

In: the state of this thread. Out: `is_traced()`, `is_unseen()`.
"""

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from sparsify.storage import transformed


def is_elsewhere() -> bool:
    """Whether another thread compiles, while this thread runs eagerly."""
    if torch.compiler.is_dynamo_compiling():
        return False
    return torch._C._len_torch_dispatch_stack() == 0 and torch._guards.TracingContext.try_get() is None


def is_traced() -> bool:
    """Whether this thread is traced."""
    return torch.compiler.is_compiling() and not is_elsewhere()


def is_unseen() -> bool:
    """Whether no transform and no mode observes the computation."""
    if transformed.are_active() or forward_ad._current_level >= 0:
        return False
    modes = torch._C._len_torch_dispatch_stack()
    return modes == 0 or all(getattr(m, "only_looks", False) for m in _get_current_dispatch_mode_stack())
