"""Copies of index arrays that only a pattern reaches, or of those for a user.

In: arrays, `None` where there are none. Out: plain tensors in memory of their own, in whatever mode torch is.
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
    """Inside, neither a transform nor a mode follows what is computed."""
    is_transformed = transformed.are_active()
    if not is_transformed and not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    outside = transformed.outside if is_transformed else _disable_current_modes
    return cast(AbstractContextManager[None], outside())


def copies(arrays: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Copies of arrays; those that stand for others in a traced graph are as they are."""
    return tuple([None if array is None else _copy(array) for array in arrays])


def _copy(array: Tensor) -> Tensor:
    """A plain copy of a plain array, which counts its versions, made outside of whatever follows computations."""
    if not isinstance(array, Tensor) or type(array).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return array
    if torch.compiler.is_compiling() or is_functorch_wrapped_tensor(array):
        return array
    with torch._C.DisableTorchFunctionSubclass(), torch.inference_mode(False), torch.no_grad(), untraced():
        return array.as_subclass(Tensor).detach().clone()
