"""Collectives of split products as operators of torch with gradients.

In: the partial result of a process for its input columns. Out: `sum_parts`, the sum over processes, with a gradient
already available in each process; `share`, a tensor read by all processes, with the sum of their gradients.
"""

from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from sparsify.runtime.failures import named
from sparsify.scale.halo import is_rehearsed

_GROUPS: list[Any] = []
# Keeps graph passes from merging or dropping calls: each process makes all of them.
_TAGS: Final = (torch.Tag.nondeterministic_seeded,)


def register(group: Any) -> int:
    """The number of a group of processes in operators."""
    _GROUPS.append(group)
    return len(_GROUPS) - 1


def _total(values: Tensor, group: int) -> Tensor:
    """The sum over the processes of a group, the same in each."""
    found = values.clone(memory_format=torch.contiguous_format)
    if not is_rehearsed("sum_parts", values):
        with named("a sum of products", _GROUPS[group]):
            dist.all_reduce(found, group=_GROUPS[group])
    return found


@torch.library.custom_op("sparsify::sum_parts", mutates_args=(), tags=_TAGS)
def sum_parts(values: Tensor, group: int) -> Tensor:
    """The sum over processes; each process gets the gradient of the sum."""
    return _total(values, group)


@torch.library.custom_op("sparsify::share", mutates_args=(), tags=_TAGS)
def share(values: Tensor, group: int) -> Tensor:
    """A copy of a replicated tensor; the gradient is the sum over processes."""
    return values.clone(memory_format=torch.contiguous_format)


def _alike(values: Tensor, group: int) -> Tensor:
    return torch.empty_like(values, memory_format=torch.contiguous_format)


sum_parts.register_fake(_alike)
share.register_fake(_alike)


def _keep_group(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    """Saves the group for the gradient."""
    ctx.group = inputs[1]


def _sum_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """`d/dx_p sum_q x_q = 1`."""
    return gradient, None


def _share_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """The sum of the gradients of all readers."""
    return _total(gradient, ctx.group), None


torch.library.register_autograd("sparsify::sum_parts", _sum_backward, setup_context=_keep_group)
torch.library.register_autograd("sparsify::share", _share_backward, setup_context=_keep_group)
