"""Dense gradients of sparse weights, in the steps that ask for them.

In: a model whose call gave `y`, and the gradient of `y`. Out: by name the gradient of each weight, also where it is 0.

The forward result passes through `Tap`, whose backward gets the gradients of all results before the backward of the
model runs. There the source model runs once more, with dense weights and the random numbers of the call: any layer has
its gradient so, whatever kernels computed the call.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from sparsify.storage.tensor import SparseTensor


class Tap(torch.autograd.Function):
    """The tensors as they are; their gradients go to a function on their way back."""

    @staticmethod
    def forward(ctx: Any, receive: Callable[[Sequence[Tensor | None]], None], *tensors: Tensor) -> Any:
        """The tensors."""
        ctx.receive = receive
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """The gradients, which the function has read."""
        ctx.receive(gradients)
        return (None, *gradients)


class DenseGradients:
    """The gradients of weights, summed over the backward passes of a step.

    Attributes:
        found: by name; empty outside of steps that collect.
        is_collecting: whether calls of the model are followed.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Callable[[], nn.Module],
        weights: Callable[[], dict[str, Tensor]],
        names: Sequence[str],
    ) -> None:
        self.model, self.source, self.weights, self.names = model, source, weights, names
        self.found: dict[str, Tensor] = {}
        self.is_collecting = self._is_inside = False
        self._random = torch.get_rng_state()
        self._buffers: dict[str, Tensor] = {}
        self.attach()

    def attach(self) -> None:
        """Gives the model the hooks that follow its calls."""
        self._hooks = [
            self.model.register_forward_pre_hook(self._before),
            self.model.register_forward_hook(self._after, with_kwargs=True),
        ]

    def remove(self) -> None:
        """Leaves the model without hooks."""
        for hook in self._hooks:
            hook.remove()

    def _follows(self) -> bool:
        return self.is_collecting and not self._is_inside and torch.is_grad_enabled()

    def _before(self, module: nn.Module, args: Any) -> None:
        if self._follows():
            self._random = torch.get_rng_state()
            self._buffers = {name: buffer.clone() for name, buffer in self.source().named_buffers()}

    def _after(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
        if not self._follows():
            return None
        leaves, form = pytree.tree_flatten(result)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if not at:
            return None
        random, buffers = self._random, self._buffers

        def receive(gradients: Sequence[Tensor | None]) -> None:
            pairs = {i: g for i, g in zip(at, gradients, strict=True) if g is not None}
            self._collect(args, kwargs, pairs, random, buffers)

        for i, tapped in zip(at, Tap.apply(receive, *(leaves[i] for i in at)), strict=True):  # type: ignore[no-untyped-call]
            leaves[i] = tapped
        return pytree.tree_unflatten(leaves, form)

    def _collect(
        self,
        args: Any,
        kwargs: Any,
        gradients: Mapping[int, Tensor],
        random: Tensor,
        buffers: Mapping[str, Tensor],
    ) -> None:
        """Adds the gradients of the weights for those of the results."""
        source = self.source()
        weights = self.weights()
        wanted = [weights[name].requires_grad_() for name in self.names]
        given = {**weights, **{name: buffer.clone() for name, buffer in buffers.items()}}
        args, kwargs = pytree.tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        self._is_inside = True
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                torch.set_rng_state(random)
                leaves = pytree.tree_leaves(functional_call(source, given, args, kwargs))
                found = torch.autograd.grad(
                    [leaves[i] for i in gradients], wanted, list(gradients.values()), allow_unused=True
                )
        finally:
            self._is_inside = False
        for name, weight, gradient in zip(self.names, wanted, found, strict=True):
            gradient = torch.zeros_like(weight) if gradient is None else gradient
            self.found[name] = self.found[name] + gradient if name in self.found else gradient


def dense(weight: Tensor) -> Tensor:
    """A weight as a dense tensor without a past."""
    found = weight.detach()
    return found.to_dense() if isinstance(found, SparseTensor) else found.clone()
