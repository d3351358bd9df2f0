"""Dense gradients of sparse weights, in the steps that ask for them.

In: a model whose call gave `y`, and the gradient of `y`. Out: by name the gradient of each weight, also where it is 0.

Kernels whose backward reads a sparse weight compute its gradient densely, too: one more product. Where something else
reads a weight, the source model runs once more, with dense weights and the random numbers of the call, so that any
layer has its gradient. The forward result passes through `Tap` for that, whose backward gets the gradients of results.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from sparsify.compiler.differentiate import Wanted
from sparsify.passes.graph.node_info import call_of
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.module.sparse_parameters import takes_sparse
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


@dataclass(frozen=True)
class Pass:
    """A backward pass of the model: the call, the gradients of its results by place, and what the call began with."""

    args: Any
    kwargs: Any
    gradients: Mapping[int, Tensor]
    random: Tensor
    buffers: Mapping[str, Tensor]


class DenseGradients:
    """The gradients of weights, summed over the backward passes of a step.

    Attributes:
        found: by name; empty outside of steps that collect, and until `settle`.
        is_collecting: whether backward passes are followed.
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
        self._is_inside = False
        self._passes: list[Pass] = []
        self._wanted: dict[str, Wanted] = {}
        self.is_collecting = False
        self._random = torch.get_rng_state()
        self._buffers: dict[str, Tensor] = {}
        self.attach()

    def collect(self, is_wanted: bool) -> None:
        """Follows the passes of the next step, or none any more; what was found is forgotten."""
        self.is_collecting = is_wanted
        self.found.clear()
        self._passes.clear()
        weights = {name: self.source().get_parameter(name) for name in self.names if is_wanted}
        self._wanted = {n: Wanted(found) for n, found in weights.items() if isinstance(found, SparseTensor)}

    def settle(self) -> None:
        """Finds the gradients for the passes so far, before the weights change."""
        if not self._passes:
            return
        readers = readers_of(self.model, self.names)
        wanted = {name: self._wanted[name].given if name in self._wanted else [] for name in self.names}
        whole = {name: count * len(self._passes) for name, count in readers.items()}
        if all(len(given) == whole.get(name) for name, given in wanted.items()):
            for name, given in wanted.items():
                form = cast(SparseTensor, self.source().get_parameter(name)).format
                parts = [part if operand.format == form else part.t() for operand, part in given]
                total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
                self.found[name] = self.found[name] + total if name in self.found else total
        else:  # something reads a weight that is no kernel
            for one in self._passes:
                self._collect(one)
        self._passes.clear()
        for given in wanted.values():
            given.clear()

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
            self._passes.append(Pass(args, kwargs, pairs, random, buffers))

        for i, tapped in zip(at, Tap.apply(receive, *(leaves[i] for i in at)), strict=True):  # type: ignore[no-untyped-call]
            leaves[i] = tapped
        return pytree.tree_unflatten(leaves, form)

    def _collect(self, one: Pass) -> None:
        """Adds the gradients of the weights for a pass: the source model runs once more."""
        source = self.source()
        weights = self.weights()
        wanted = [weights[name].requires_grad_() for name in self.names]
        given = {**weights, **{name: buffer.clone() for name, buffer in one.buffers.items()}}
        args, kwargs = pytree.tree_map_only(Tensor, Tensor.detach, (one.args, one.kwargs))
        self._is_inside = True
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                torch.set_rng_state(one.random)
                leaves = pytree.tree_leaves(functional_call(source, given, args, kwargs))
                found = torch.autograd.grad(
                    [leaves[i] for i in one.gradients],
                    wanted,
                    list(one.gradients.values()),
                    allow_unused=True,
                )
        finally:
            self._is_inside = False
        for name, weight, gradient in zip(self.names, wanted, found, strict=True):
            gradient = torch.zeros_like(weight) if gradient is None else gradient
            self.found[name] = self.found[name] + gradient if name in self.found else gradient


def readers_of(model: nn.Module, names: Sequence[str]) -> dict[str, int]:
    """How many operands of kernels each weight is in a call; without those that something else reads, too."""
    counts: dict[str, set[int]] = {name: set() for name in names}
    for variant in model.variants if isinstance(model, SparseModule) else ():
        if not variant.captured.training:
            continue
        for weight in variant.captured.graph.find_nodes(op="get_attr"):
            if str(weight.target) in counts:
                counts[str(weight.target)].add(kernels_of(weight))
    return {name: next(iter(found)) for name, found in counts.items() if len(found) == 1 and 0 not in found}


def kernels_of(weight: fx.Node) -> int:
    """How many operands of kernels a weight of a graph is, 0 where something else reads it."""
    if not all(takes_sparse(user, weight) for user in weight.users):
        return 0
    places = [(call_of(user), user.args[1:]) for user in weight.users]
    return sum(
        any(arguments[leaf] is weight for leaf in operand.leaves)
        for region, arguments in places
        for operand in region.operands
    )


def dense(weight: Tensor) -> Tensor:
    """A weight as a dense tensor without a past."""
    found = weight.detach()
    return found.to_dense() if isinstance(found, SparseTensor) else found.clone()
