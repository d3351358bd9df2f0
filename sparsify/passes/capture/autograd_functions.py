"""Functions with custom backward passes, called by `torch.autograd.Function.apply`.

In: `checkpoint(layer, x, use_reentrant=True)`. Out: `layer(x)` under export, with gradients known to autograd.

Export traces only the forward pass of a function: a captured graph would have other gradients, or none. For a
checkpoint the inner function is captured; any other function makes the capture of a model in training fail. Operators
of `torch.library` stay in the graph, with their gradients.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from sparsify.errors import CaptureError
from sparsify.runtime.locks import Lock

_apply: Final = Function.__dict__["apply"]
# The module in which torch creates the functions of `torch.library.register_autograd`.
OPERATORS: Final = "torch._library.autograd"
_state: Final = threading.local()
_lock: Final = Lock()
_entered = 0


@contextmanager
def inlined(*, has_gradients: bool) -> Iterator[None]:
    """A context in which checkpoints of this thread call their inner function.

    Args:
        has_gradients: whether functions with a custom backward pass raise `CaptureError`.
    """
    before = getattr(_state, "refuses", None)
    _state.refuses = has_gradients
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)
        _state.refuses = before


def _enter(count: int) -> None:
    """Counts the context's entries over all threads; without any, `Function.apply` is torch's own."""
    global _entered
    _state.entered = getattr(_state, "entered", 0) + count
    with _lock:
        _entered += count
        _substitute()


def _substitute() -> None:
    """Puts `apply` in place of torch's own while a thread is within the context."""
    Function.apply = classmethod(apply) if _entered else _apply  # type: ignore[assignment, method-assign]


def _forget_others() -> None:
    """Resets the counter in a forked process, which has this thread alone."""
    global _entered
    _entered = getattr(_state, "entered", 0)
    _substitute()


os.register_at_fork(after_in_child=_forget_others)


def apply(kind: type[Function], *args: Any, **kwargs: Any) -> Any:
    """`kind.apply(...)`; within `inlined` the function of a checkpoint, called."""
    refuses = getattr(_state, "refuses", None)
    if refuses is None or kind.__module__ == OPERATORS:
        return _apply.__func__(kind, *args, **kwargs)
    if issubclass(kind, CheckpointFunction):
        function, _preserves_draws, *operands = args
        return function(*operands)
    if refuses and torch.is_grad_enabled() and any(has_gradient(one) for one in args):
        raise CaptureError(f"the model calls {kind.__name__}, whose own backward pass a graph does not have")
    return _apply.__func__(kind, *args, **kwargs)


def has_gradient(value: Any) -> bool:
    """Whether a value is a tensor that requires a gradient."""
    return isinstance(value, torch.Tensor) and value.requires_grad
