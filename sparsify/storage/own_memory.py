"""Tensors with entries in directly readable memory.

In: a tensor. Out: whether kernels and digests can read the tensor. Tensors of other devices, meta and fake tensors
have no readable memory, nor have classes with `__torch_dispatch__`, such as `torch_geometric.EdgeIndex`: they hold
other tensors, or none.
"""

from collections.abc import Iterable
from typing import Final

import torch

PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})
_dispatch: Final = torch.Tensor.__torch_dispatch__


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether the entries of a strided tensor are in main memory at its address."""
    if not tensor.is_cpu:
        return False
    return has_entries(tensor)


def runs_natively(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether kernels accept the tensors: none is on another device, where torch's operators compute.

    Tensors without entries, as on the device `meta`, count as on no device; reading them is an error.
    """
    for tensor in tensors:  # noqa: SIM110, calls of kernels wait for this
        if not (tensor.is_cpu or tensor.is_meta):
            return False
    return True


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether the entries of a strided tensor are on a device other than the CPU, readable by torch's operators."""
    return not runs_natively((tensor,)) and has_entries(tensor)


def has_entries(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor is one of torch's own classes, or dispatches like one."""
    kind = type(tensor)
    return kind in PLAIN or kind.__torch_dispatch__ is _dispatch


def without_memory(tensor: torch.Tensor) -> str:
    """The kind of a tensor without readable memory, and the advice for a replacement."""
    if not tensor.is_cpu:
        return f"is on the device {tensor.device}, kernels are for tensors in main memory"
    kind = type(tensor).__name__
    remedy = "its as_tensor()" if hasattr(tensor, "as_tensor") else "a plain tensor"
    return f"is of class {kind}, without memory of its own for kernels to read; give {remedy}"
