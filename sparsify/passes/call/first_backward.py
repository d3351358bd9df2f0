"""A region whose gradients no kernel has computed yet, under autograd.

In: `FirstGradient.apply(call, *arguments)`. Out: the results of the region, whose backward asks the kernel for
gradients, and the dense nodes where there can be none.

Results that no gradient reads are not kept and are no views: they may be written to in place, as those of torch.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sparsify.passes.call.region_call import RegionCall

Result = torch.Tensor | tuple[torch.Tensor, ...]
# Per result it, or its gradient; `None` for one that is not kept, and for zeros.
Known = Sequence[torch.Tensor | None]
Gradients = Sequence[torch.Tensor | None]


def listed(result: Result) -> tuple[torch.Tensor, ...]:
    """The results; one that is in no tuple, too."""
    return result if isinstance(result, tuple) else (result,)


def with_gradients(result: Result, gradients: Gradients) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results that have gradients and depend on what needs them, and those."""
    every = zip(listed(result), gradients, strict=True)
    pairs = [(one, found) for one, found in every if found is not None and one.requires_grad]
    return [one for one, _ in pairs], [found for _, found in pairs]


def differentiated(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], given: list[torch.Tensor], create_graph: bool = False
) -> Sequence[torch.Tensor | None]:  # fmt: skip
    """The gradients of the inputs by those of the outputs, `None` where no output depends on one."""
    if not outputs:
        return [None] * len(inputs)
    return torch.autograd.grad(outputs, inputs, given, create_graph=create_graph, allow_unused=True)


def unviewed(result: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result as a tensor of its own, unless it is a view of one of the tensors, which writing to it would change."""
    base = result._base
    if base is None or any(tensor is base or tensor._base is base for tensor in tensors):
        return result
    return result.data


class FirstGradient(torch.autograd.Function):
    """A region whose gradients no kernel has computed yet: when there can be none, the dense nodes do it."""

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
        if torch.is_grad_enabled():  # gradients of these gradients are wanted
            found = call.gradients_with_graph(arguments, needed, gradients)
        else:
            found = call.gradients(arguments, needed, results, gradients)
        made = dict(zip(needed, found, strict=True))
        return None, *[made.get(position) for position in range(len(arguments))]
