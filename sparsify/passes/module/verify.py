"""The verification of a variant against the source model, on the inputs of the call that it was captured for.

In: `verify(module, variant, call, tensors)`. Out: the report knows the largest difference, the times of the regions and
the memory of both, or a `VerificationError`. Variants that are trained are compared by their gradients, too: those of
all parameters, and of the inputs that require one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils import _pytree as pytree

from sparsify.passes.capture import calls
from sparsify.passes.capture.shell import Modes
from sparsify.passes.module.compare import compare, compare_training
from sparsify.passes.module.hooks import drop_gradient_hooks
from sparsify.passes.module.run_eager import without_effects
from sparsify.passes.module.variant import Variant, pruned_among
from sparsify.passes.operands.content_memo import reading_once
from sparsify.runtime.peak import Peak

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

TIMED_CALLS: Final = 3


def verify(
    module: "SparseModule", variant: Variant, call: calls.Call, tensors: list[torch.Tensor], mode: Modes
) -> None:
    """Times the regions of a variant, and compares it with the source model on the inputs of the call.

    Raises:
        VerificationError: the results, or the gradients of a variant that is trained, differ.
    """
    peak, report = Peak(), variant.report
    writes = variant.writes()

    def given() -> list[torch.Tensor]:
        return [tensor.clone() for tensor in tensors] if writes else tensors

    def sparse() -> Any:
        result = reading_once(without_effects(module, variant), given())
        return result if variant.is_plain else pytree.tree_unflatten(result, variant.captured.output)

    def dense() -> Any:
        apart = module._weights.mirror(mode, module)
        apart.copy_buffers()
        drop_gradient_hooks(apart.model)
        with peak:
            if variant.masked is None:
                given_call = calls.copied(call) if writes else call
                return calls.run_call(apart.model, module._signature, given_call)
            return variant.masked_result(apart.model, given())

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        # First, so that what is compared follows the plan of its memory.
        variant.timed(sparse, TIMED_CALLS)
        read = [*module._source.parameters(), *tensors]
        report.largest_error = compare(dense, sparse, module._asked.recipe.verify, read=read)
    report.dense_peak_bytes = peak.bytes
    if module._asked.is_trainable(variant.captured.training):
        report.largest_error = max(report.largest_error, gradient_error(module, variant, call, dense, sparse))


def gradient_error(
    module: "SparseModule",
    variant: Variant,
    call: calls.Call,
    dense: Callable[[], Any],
    sparse: Callable[[], Any],
) -> float:
    """The largest difference of gradients, 0 where none are wanted."""
    given = [value for value in call.values if type(value) is torch.Tensor]
    tensors = [tensor for tensor in (*module._source.parameters(), *given) if tensor.requires_grad]
    if not tensors or not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return 0.0

    def pruned() -> set[int]:
        return pruned_among(tensors, [variant], module._source)

    try:
        with torch.random.fork_rng(devices=[]):
            return compare_training(dense, sparse, module._asked.recipe.verify, tensors, pruned)
    finally:
        for region in variant.regions:
            region.differentiable.clear()  # until the model's first backward, operands are remembered
