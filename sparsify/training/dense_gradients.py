"""Dense gradients of sparse weights, on request for single steps.

In: a model, a call with result `y`, and the gradient of `y`. Out: by name the gradient of each weight, also at zeros.

Kernels with a sparse weight in the backward pass compute the dense gradient, too: one more product. For a weight with
other readers, the source model runs once more, with dense weights and the random numbers of the call, so any
layer has a gradient. The forward result passes through `Tap`, to capture the gradients of results in the backward.

A backward pass counts for the weights with computed gradients: hooks of the weights record them. A pass for the
gradients of inputs alone, as `torch.autograd.grad(loss, x)`, adds nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree
from torch.utils.hooks import unserializable_hook

from sparsify.compiler.kernel.transforms.autograd import GradientRequest, graph_task
from sparsify.passes.graph.node_info import call_of
from sparsify.passes.module.sparse_module import SparseModule
from sparsify.passes.module.weights.sparse_parameters import takes_sparse
from sparsify.storage.tensor import SparseTensor


class Tap(torch.autograd.Function):
    """Identity on tensors; a function receives the gradients in the backward pass."""

    @staticmethod
    def forward(ctx: Any, receive: Callable[[Sequence[Tensor | None]], None], *tensors: Tensor) -> Any:
        """The tensors, unchanged."""
        ctx.receive = receive
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """The gradients, after being passed to the function."""
        ctx.receive(gradients)
        return (None, *gradients)


@dataclass(frozen=True, eq=False)
class Pass:
    """A backward pass of a call: the graph task, the call, the gradients of results by position, the random state."""

    task: int
    args: Any
    kwargs: Any
    gradients: Mapping[int, Tensor]
    random: Tensor
    buffers: Mapping[str, Tensor]


class DenseGradients:
    """The gradients of weights, summed over the backward passes of a step.

    Attributes:
        gradients: dense gradients by name; empty outside of collecting steps, and until `settle`.
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
        self.gradients: dict[str, Tensor] = {}
        self._is_inside = False
        self._passes: list[Pass] = []
        self._tasks: dict[str, dict[int, int]] = {}
        self._weight_hooks: list[Any] = []
        self._records: dict[str, GradientRequest] = {}
        self.is_collecting = False
        self._random = torch.get_rng_state()
        self._buffers: dict[str, Tensor] = {}
        self.attach()

    def collect(self, is_collecting: bool) -> None:
        """Starts or stops following the passes of the next step; earlier results are dropped."""
        self.is_collecting = is_collecting
        self.gradients.clear()
        self._forget()
        self._records.clear()
        self.follow_weights()

    def follow_weights(self) -> None:
        """Hooks the current parameters of the weights, in a collecting step."""
        for hook in self._weight_hooks:
            hook.remove()
        weights = {name: self.source().get_parameter(name) for name in self.names if self.is_collecting}
        self._weight_hooks = [weight.register_hook(self._noted(name)) for name, weight in weights.items()]
        for name, weight in weights.items():
            if isinstance(weight, SparseTensor) and name not in self._records:
                self._records[name] = GradientRequest(weight)

    def settle(self) -> None:
        """Computes the gradients for the passes so far, before the weights change."""
        passes = {name: self._passes_for(name) for name in self.names}
        if not any(passes.values()):
            self._forget()
            return
        readers = readers_of(self.model, self.names)
        parts = {name: self._parts(name) for name in self.names}
        if all(len(parts[name]) == readers.get(name, -1) * len(passes[name]) for name in self.names):
            for name in self.names:
                if parts[name]:
                    self._add(
                        name, parts[name][0] if len(parts[name]) == 1 else torch.stack(parts[name]).sum(0)
                    )
        else:  # a reader other than kernels
            for one in self._passes:
                if names := [name for name in self.names if one in passes[name]]:
                    self._collect(one, names)
        for name in self.names:
            if name not in self.gradients:  # read by no pass
                self.gradients[name] = torch.zeros_like(dense(self.source().get_parameter(name)))
        self._forget()

    def _forget(self) -> None:
        """Drops the passes so far."""
        self._passes.clear()
        self._tasks.clear()
        for record in self._records.values():
            record.dense_gradients.clear()

    def _noted(self, name: str) -> Callable[[Tensor], None]:
        """The hook of a weight, recording the graph tasks that compute its gradient.

        Reentrant checkpoints run nested graph tasks within the task of the pass; nested tasks belong to the latest
        pass.
        """

        def note(gradient: Tensor) -> None:
            if self._passes and not self._is_inside:
                task = graph_task()
                is_own = any(one.task == task for one in self._passes)
                self._tasks.setdefault(name, {})[task] = task if is_own else self._passes[-1].task

        return cast(Callable[[Tensor], None], unserializable_hook(note))

    def _passes_for(self, name: str) -> list[Pass]:
        """The passes with a computed gradient of a weight."""
        tasks = set(self._tasks.get(name, {}).values())
        return [one for one in self._passes if one.task in tasks]

    def _parts(self, name: str) -> list[Tensor]:
        """The dense gradients of a weight from kernels, in passes with a computed gradient of the weight."""
        if name not in self._records:
            return []
        form, tasks = cast(SparseTensor, self.source().get_parameter(name)).format, self._tasks.get(name, {})
        parts = [
            (operand, part) for operand, part, task in self._records[name].dense_gradients if task in tasks
        ]
        return [part if operand.format == form else part.t() for operand, part in parts]

    def _add(self, name: str, gradient: Tensor) -> None:
        """Adds to the gradient of a weight."""
        self.gradients[name] = self.gradients[name] + gradient if name in self.gradients else gradient

    def attach(self) -> None:
        """Installs the hooks following the calls of the model."""
        self._hooks = [
            self.model.register_forward_pre_hook(self._before),
            self.model.register_forward_hook(self._after, with_kwargs=True),
        ]
        self.follow_weights()

    def remove(self) -> None:
        """Removes the hooks of the model."""
        for hook in (*self._hooks, *self._weight_hooks):
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
            self._passes.append(Pass(graph_task(), args, kwargs, pairs, random, buffers))

        for i, tapped in zip(at, Tap.apply(receive, *(leaves[i] for i in at)), strict=True):  # type: ignore[no-untyped-call]
            leaves[i] = tapped
        return pytree.tree_unflatten(leaves, form)

    def _collect(self, one: Pass, names: Sequence[str]) -> None:
        """Adds the gradients of some weights for a pass, by running the source model once more."""
        source = self.source()
        weights = self.weights()
        targets = [weights[name].requires_grad_() for name in names]
        state = {**weights, **{name: buffer.clone() for name, buffer in one.buffers.items()}}
        args, kwargs = pytree.tree_map_only(Tensor, Tensor.detach, (one.args, one.kwargs))
        self._is_inside = True
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                torch.set_rng_state(one.random)
                leaves = pytree.tree_leaves(functional_call(source, state, args, kwargs))
                gradients = torch.autograd.grad(
                    [leaves[i] for i in one.gradients],
                    targets,
                    list(one.gradients.values()),
                    allow_unused=True,
                )
        finally:
            self._is_inside = False
        for name, weight, gradient in zip(names, targets, gradients, strict=True):
            self._add(name, torch.zeros_like(weight) if gradient is None else gradient)


def readers_of(model: nn.Module, names: Sequence[str]) -> dict[str, int]:
    """The number of kernel operands of each weight in a call; weights with other readers are left out."""
    counts: dict[str, set[int]] = {name: set() for name in names}
    for variant in model.variants if isinstance(model, SparseModule) else ():
        if not variant.captured.training:
            continue
        for weight in variant.captured.graph.find_nodes(op="get_attr"):
            if str(weight.target) in counts:
                counts[str(weight.target)].add(kernels_of(weight))
    return {
        name: next(iter(kernels))
        for name, kernels in counts.items()
        if len(kernels) == 1 and 0 not in kernels
    }


def kernels_of(weight: fx.Node) -> int:
    """The number of kernel operands of a weight in a graph, 0 for a weight with other readers."""
    if not all(takes_sparse(user, weight) for user in weight.users):
        return 0
    places = [(call_of(user), user.args[1:]) for user in weight.users]
    return sum(
        any(arguments[leaf] is weight for leaf in operand.leaves)
        for region, arguments in places
        for operand in region.operands
    )


def dense(weight: Tensor) -> Tensor:
    """A weight as a detached dense tensor."""
    detached = weight.detach()
    return detached.to_dense() if isinstance(detached, SparseTensor) else detached.clone()
