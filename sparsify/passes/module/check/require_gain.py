"""The time of a variant against the time of the source model, for variants without another proof of gain.

In: a variant with a graph that asserts conditions on data. Out: nothing, or a `CaptureError` where the source model is
faster on the inputs of the captured call, with gradients where the variant trains.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sparsify.errors import CaptureError
from sparsify.passes.capture import calls
from sparsify.passes.capture.shell import Modes
from sparsify.passes.module.check.verify import trained_tensors
from sparsify.passes.module.source.hooks import drop_gradient_hooks
from sparsify.passes.module.variants.run_eager import without_effects
from sparsify.passes.module.variants.variant import Variant
from sparsify.passes.operands.content_memo import reading_once
from sparsify.storage.own_memory import runs_natively
from sparsify.storage.subclass import trained_masks

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

TURNS: Final = 3
# The first turns build kernels.
WARM: Final = 3
# Short steps are timed in more turns, up to a limit in seconds.
MOST_TURNS: Final = 20
SECONDS: Final = 0.3
# Ratios of times below the limit are noise.
NOISE: Final = 1.05
# Sparse weights take less memory, and may be slower by a factor up to the limit.
SLOWER: Final = 1.03


def require_gain(
    module: "SparseModule", variant: Variant, call: calls.Call, tensors: list[Tensor], mode: Modes
) -> None:
    """Raises where the source model computes the call, and its gradients, faster than a variant.

    Raises:
        CaptureError: states both times.
    """
    source, kernels = times_of(module, variant, call, tensors, mode)
    if kernels > NOISE * source:
        raise CaptureError(
            f"{type(module._source).__name__} takes {1e3 * source:.3g} ms as it is, "
            f"and {1e3 * kernels:.3g} ms in kernels"
        )


class DenseTrainsFasterError(Exception):
    """A step of the dense model takes less time than one of kernels with sparse weights.

    Attributes:
        gain: how many times faster kernels are, less than 1.
    """

    def __init__(self, text: str, gain: float) -> None:
        super().__init__(text, gain)
        self.gain = gain

    def __str__(self) -> str:
        return str(self.args[0])


def require_training_gain(
    module: "SparseModule", variant: Variant, call: calls.Call, tensors: list[Tensor], mode: Modes
) -> None:
    """Raises where dense weights train faster than the sparse weights of a variant.

    Raises:
        DenseTrainsFasterError: states both times.
    """
    operands = [operand.structure for region in variant.regions for operand in region.operands]
    if variant.masked is not None or not any(
        structure is not None and structure.trained for structure in operands
    ):
        return
    source, kernels = times_of(module, variant, call, tensors, mode)
    if kernels > SLOWER * source:
        raise DenseTrainsFasterError(
            f"a step takes {1e3 * source:.3g} ms, and {1e3 * kernels:.3g} ms with sparse weights",
            source / kernels,
        )


def times_of(
    module: "SparseModule", variant: Variant, call: calls.Call, tensors: list[Tensor], mode: Modes
) -> tuple[float, float]:
    """Seconds of the source model and of a variant for a call, with gradients if trained; 0 on a device."""
    trains = module._request.is_trainable(variant.captured.training) and torch.is_grad_enabled()
    parameters = trained_tensors(module, call) if trains else []
    if not runs_natively([*module._source.parameters(), *tensors]):
        return 0.0, 0.0
    with torch.random.fork_rng(devices=[]):
        mirror = module._weights.mirror(mode, module)
        mirror.copy_buffers()
        drop_gradient_hooks(mirror.model)
        for name, weight in module._weights.sparse_parameters().items():
            trained_masks.remember(mirror.model.get_parameter(name), trained_masks.entries(weight))
        parameter_ids = {id(parameter) for parameter in module._source.parameters()}
        inputs = [tensor for tensor in parameters if id(tensor) not in parameter_ids]
        dense = [p for p in mirror.model.parameters() if p.requires_grad] + inputs if parameters else []
        run = without_effects(module, variant)
        args, kwargs = calls.arguments_of(pytree.tree_unflatten(call.values, call.spec), module._signature)
        ways = (
            Timed(lambda: calls.run_source(mirror.model, args, kwargs), dense),
            Timed(lambda: reading_once(run, tensors), parameters),
        )
        first = [[way.seconds() for way in ways] for _ in range(WARM)][-1]
        turns = max(TURNS, min(MOST_TURNS, int(SECONDS / max(sum(first), 1e-9))))
        taken = [[way.seconds() for way in ways] for _ in range(turns)]
    source, kernels = (min(times) for times in zip(*taken, strict=True))
    return source, kernels


class Timed:
    """A computation and its backward pass, as in training: gradients are accumulated into `.grad`.

    Args:
        run: function that returns a tree of results.
        wanted: tensors that get gradients, none without training; their present gradients are restored.
    """

    def __init__(self, run: Callable[[], Any], targets: Sequence[Tensor]) -> None:
        self.run, self.seeds = run, list[Tensor]()
        # Hooks after a gradient may be steps of optimizers.
        self.targets = [one for one in targets if not getattr(one, "_post_accumulate_grad_hooks", None)]

    def seconds(self) -> float:
        """The time of a turn."""
        before = [one.grad for one in self.targets]
        for one in self.targets:
            one.grad = None
        try:
            start = time.perf_counter()
            with torch.set_grad_enabled(bool(self.targets)):
                result = self.run()
            if self.targets:
                self.pull_back(result)
            return time.perf_counter() - start
        finally:
            for one, gradient in zip(self.targets, before, strict=True):
                one.grad = gradient

    def pull_back(self, result: Any) -> None:
        """Computes the gradients, with the same random gradients of the results in each turn."""
        leaves = [
            leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        if [seed.shape for seed in self.seeds] != [leaf.shape for leaf in leaves]:
            self.seeds = [torch.randn_like(leaf) for leaf in leaves]
        if leaves:
            torch.autograd.backward(leaves, self.seeds, inputs=self.targets)
