"""Copies of index arrays, private to a pattern or made for a user.

In: arrays, or `None`. Out: plain tensors in separate memory, in any mode of torch.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _disable_current_modes

from sparsify.storage import transformed


def untraced() -> AbstractContextManager[None]:
    """Context manager: no transform and no mode follows the computation."""
    is_transformed = transformed.are_active()
    if not is_transformed and not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    outside = transformed.outside if is_transformed else _disable_current_modes
    return cast(AbstractContextManager[None], outside())


def copies(arrays: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Copies of arrays; proxies of a traced graph are unchanged."""
    return tuple([None if array is None else _copy(array) for array in arrays])


def _copy(array: Tensor) -> Tensor:
    """A plain copy of a plain array, with a version counter, made outside of transforms and modes."""
    if not isinstance(array, Tensor) or type(array).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return array
    if torch.compiler.is_compiling() or is_functorch_wrapped_tensor(array):
        return array
    with torch._C.DisableTorchFunctionSubclass(), torch.inference_mode(False), torch.no_grad(), untraced():
        return array.as_subclass(Tensor).detach().clone()
