"""Gradients of replicated tensors: each process reads its own copy, so gradients are summed over processes.

In: parameters before, and outputs behind, a graph over local rows. Out: the same values, with the gradients of
the sum of all processes' losses.
"""

from typing import Any

import torch
from torch import Tensor


class _Shared(torch.autograd.Function):
    """Parameters read by each process: gradients are summed over processes, all in one message."""

    @staticmethod
    def forward(ctx: Any, plan: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.plan = plan
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        found: list[Tensor | None] = [None] * len(gradients)
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            places = [place for place, gradient in enumerate(gradients) if gradient.dtype == dtype]
            flat = torch.cat([gradients[place].reshape(-1) for place in places])
            total = torch.ops.sparsify.all_reduce_sum(flat, ctx.plan)
            sizes = [gradients[place].numel() for place in places]
            for place, part in zip(places, total.split(sizes), strict=True):
                found[place] = part.view(gradients[place].shape)
        return None, *found


class _Alike(torch.autograd.Function):
    """A replicated result: a loss of the result counts once, not once for each process."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int) -> Tensor:
        ctx.count = count
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient / ctx.count, None


_SHARED: Any = _Shared.apply
_ALIKE: Any = _Alike.apply


def shared(parameters: list[Tensor], plan: int) -> list[Tensor]:
    """The parameters, with gradients summed over processes."""
    trained = [place for place, parameter in enumerate(parameters) if parameter.requires_grad]
    found = list(parameters)
    if trained and torch.is_grad_enabled():
        for place, value in zip(trained, _SHARED(plan, *(parameters[place] for place in trained))):
            found[place] = value
    return found


def alike(value: Tensor, count: int) -> Tensor:
    """A result replicated in `count` processes, with a part of the gradient in each."""
    found: Tensor = _ALIKE(value, count) if value.requires_grad else value
    return found
