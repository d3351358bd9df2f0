"""The time of a variant against that of the source model, where nothing else says that its kernels are worth it.

In: a variant whose graph asserts what the data must be. Out: nothing, or a `CaptureError` where the source model is
faster on the inputs of the captured call, with gradients where it trains.
"""

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from sparsify.errors import CaptureError
from sparsify.passes.capture import calls
from sparsify.passes.capture.shell import Modes
from sparsify.passes.module.hooks import drop_gradient_hooks
from sparsify.passes.module.operator_graph import seconds
from sparsify.passes.module.variant import Variant
from sparsify.passes.module.verify import trained_tensors
from sparsify.storage.own_memory import runs_natively

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

TURNS: Final = 3
# So much of the time of the source model is noise.
NOISE: Final = 1.05


def require_gain(
    module: "SparseModule", variant: Variant, call: calls.Call, tensors: list[Tensor], mode: Modes
) -> None:
    """Raises where the source model computes the call, and its gradients, faster than a variant.

    Raises:
        CaptureError: it says how much faster.
    """
    trains = module._asked.is_trainable(variant.captured.training) and torch.is_grad_enabled()
    parameters = trained_tensors(module, call) if trains else []
    with torch.random.fork_rng(devices=[]):
        apart = module._weights.mirror(mode, module)
        apart.copy_buffers()
        drop_gradient_hooks(apart.model)
        runs = (
            lambda: calls.run_call(apart.model, module._signature, call),
            lambda: module.finish(variant, tensors),
        )
        if not runs_natively([*module._source.parameters(), *tensors]):
            return
        taken = [[seconds(run, parameters) for run in runs] for _ in range(TURNS + 1)][1:]
    source, own = (min(times) for times in zip(*taken, strict=True))
    if own > NOISE * source:
        raise CaptureError(
            f"{type(module._source).__name__} takes {1e3 * source:.3g} ms as it is, and {1e3 * own:.3g} ms in kernels"
        )
