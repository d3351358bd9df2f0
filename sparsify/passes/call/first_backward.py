"""A region under autograd, before any kernel has computed its gradients.

In: `FirstGradient.apply(call, *arguments)`. Out: the results of the region, whose backward pass uses the gradient
kernel, or the dense nodes if no gradient kernel can be built. Results that no gradient reads are not saved and are no
views: they may be overwritten in place, as torch's results.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sparsify.passes.call.region_call import RegionCall

Result = torch.Tensor | tuple[torch.Tensor, ...]
# Per result the tensor, or its gradient; `None` for an unsaved result, and for zeros.
Known = Sequence[torch.Tensor | None]
Gradients = Sequence[torch.Tensor | None]


def listed(result: Result) -> tuple[torch.Tensor, ...]:
    """The results as a tuple, also for a single result."""
    return result if isinstance(result, tuple) else (result,)


def with_gradients(result: Result, gradients: Gradients) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results with gradients that require grad, and the gradients."""
    every = zip(listed(result), gradients, strict=True)
    pairs = [(one, found) for one, found in every if found is not None and one.requires_grad]
    return [one for one, _ in pairs], [found for _, found in pairs]


def differentiated(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], given: list[torch.Tensor], create_graph: bool = False
) -> Sequence[torch.Tensor | None]:  # fmt: skip
    """The gradients of the inputs from the outputs' gradients, `None` for independent inputs."""
    if not outputs:
        return [None] * len(inputs)
    return torch.autograd.grad(outputs, inputs, given, create_graph=create_graph, allow_unused=True)


def unviewed(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result as a separate tensor, unless it is a view of an argument, which a write would change."""
    base = result._base
    if base is None or any(tensor is base or tensor._base is base for tensor in tensors):
        return result
    return result.data


class FirstGradient(torch.autograd.Function):
    """A region without a gradient kernel so far; the dense nodes are the fallback."""

    @staticmethod
    def forward(ctx: Any, call: "RegionCall", *arguments: Any) -> Result:
        result = call.computed(arguments, ())
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        wanted = tuple([position for position, need in enumerate(ctx.needs_input_grad[1:]) if need])
        ctx.call = call
        ctx.sizes = [None if isinstance(argument, torch.Tensor) else argument for argument in arguments]
        results = tuple([unviewed(one, tensors) for one in listed(result)])
        ctx.save_for_backward(*call.read_of(results, wanted), *tensors)
        if not call.is_several:
            return results[0]
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        call: RegionCall = ctx.call
        saved = ctx.saved_tensors  # once: checkpoints compute each saved tensor for one read
        results, tensors = saved[: len(gradients)], saved[len(gradients) :]
        left = iter(tensors)
        arguments = [next(left) if size is None else size for size in ctx.sizes]
        needed = [position for position, need in enumerate(ctx.needs_input_grad[1:]) if need]
        if torch.is_grad_enabled():  # second-order gradients are wanted
            found = call.gradients_with_graph(arguments, needed, gradients)
        else:
            found = call.gradients(arguments, needed, results, gradients)
        made = dict(zip(needed, found, strict=True))
        return None, *[made.get(position) for position in range(len(arguments))]
