"""Whether the code that runs is traced, by Dynamo or by `torch.export`.

In: the state of this thread. Out: `is_traced()`.
"""

import torch


def is_elsewhere() -> bool:
    """Whether another thread is what compiles, and this one runs as usual."""
    if torch.compiler.is_dynamo_compiling():
        return False
    return torch._C._len_torch_dispatch_stack() == 0 and torch._guards.TracingContext.try_get() is None


def is_traced() -> bool:
    """Whether what this thread runs is traced."""
    return torch.compiler.is_compiling() and not is_elsewhere()
