"""A region whose gradients no kernel has computed yet, under autograd.

In: `FirstGradient.apply(call, *arguments)`. Out: the results of the region, whose backward asks the kernel for
gradients, and the dense nodes where there can be none.
"""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sparsify.passes.region_call import RegionCall

Result = torch.Tensor | tuple[torch.Tensor, ...]


def listed(result: Result) -> tuple[torch.Tensor, ...]:
    """The results; one that is in no tuple, too."""
    return result if isinstance(result, tuple) else (result,)


class FirstGradient(torch.autograd.Function):
    """A region whose gradients no kernel has computed yet: when there can be none, the dense nodes do it."""

    @staticmethod
    def forward(ctx: Any, call: "RegionCall", *arguments: Any) -> Result:
        result = call.computed(arguments, ())
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        ctx.call = call
        ctx.sizes = [None if isinstance(argument, torch.Tensor) else argument for argument in arguments]
        ctx.save_for_backward(*listed(result), *tensors)
        if call.is_several:
            ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call: RegionCall = ctx.call
        results, tensors = ctx.saved_tensors[: len(gradients)], ctx.saved_tensors[len(gradients) :]
        left = iter(tensors)
        arguments = [next(left) if size is None else size for size in ctx.sizes]
        needed = [position for position, need in enumerate(ctx.needs_input_grad[1:]) if need]
        if torch.is_grad_enabled():  # gradients of these gradients are wanted
            found = call.gradients_with_graph(arguments, needed, gradients)
        else:
            found = call.gradients(arguments, needed, results, gradients)
        made = dict(zip(needed, found, strict=True))
        return None, *[made.get(position) for position in range(len(arguments))]
