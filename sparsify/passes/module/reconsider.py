"""Another benchmark of kernels for weights that train dense for speed, after they gained zeros.

In: a model in training with dense weights under masks, and `reconsider(module, outcome)`. Out: the next call with
gradients is captured with sparse weights and timed against the dense model. If kernels are faster, sparse parameters
replace the dense ones, and `outcome` gets the pairs of both; otherwise the model is unchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from sparsify.errors import CaptureError, VerificationError
from sparsify.passes.capture import calls
from sparsify.passes.capture.shell import Modes, replace
from sparsify.passes.module.capture_call import draft_of, publish
from sparsify.passes.module.check.require_gain import DenseTrainsFasterError
from sparsify.passes.module.weights.hold_weights import hold_weights
from sparsify.runtime.locks import CAPTURES
from sparsify.runtime.saved_tensors import unhooked

if TYPE_CHECKING:
    from sparsify.passes.module.sparse_module import SparseModule

# A dense parameter and its sparse replacement.
Pair = tuple[Tensor, Tensor]
# Gets the pairs (none where the dense model is faster) and the speedup of kernels.
Outcome = Callable[[Sequence[Pair], float], None]
# Expected speedup of kernels without a timing.
UNKNOWN: Final = 0.0


@dataclass(frozen=True)
class Pending:
    """A decision between dense and sparse weights, pending until the next call with gradients.

    Attributes:
        outcome: callback that gets the result.
        is_timed: whether the faster alternative wins; otherwise kernels win.
    """

    outcome: Outcome
    is_timed: bool = True


def reconsider(module: "SparseModule", outcome: Outcome, *, is_timed: bool = True) -> None:
    """Schedules the capture, with sparse weights, of the next call with gradients of a model in training.

    Args:
        module: model with dense weights under masks.
        outcome: callback for the pairs of dense and sparse parameters, and the speedup of kernels.
        is_timed: whether dense weights stay where they are faster.
    """
    if module._weights.is_own:  # otherwise the parameters are shared with another model
        module._pending = Pending(outcome, is_timed)


def settle(module: "SparseModule", call: calls.Call, tensors: list[Tensor], mode: Modes) -> None:
    """Captures a call for a pending decision, with kernels; restores the earlier state if slower.

    Args:
        module: captured model; its other captures are dropped where weights become sparse.
        call, tensors, mode: call with gradients.
    """
    with CAPTURES, unhooked():
        pending, module._pending = module._pending, None
        if pending is None:
            return  # another thread was first
        weights, earlier, gain = module._weights, module._captures.entries, UNKNOWN
        before = dict(weights.source.named_parameters())
        module._captures.entries, weights.may_exchange = [], True
        try:
            with torch.inference_mode(False):
                draft = draft_of(module, call, tensors, mode)
            publish(module, draft, call, tensors, mode, is_timed=pending.is_timed)
        except (DenseTrainsFasterError, CaptureError, VerificationError) as error:
            gain = error.gain if isinstance(error, DenseTrainsFasterError) else UNKNOWN
            module._captures.entries = earlier
        finally:
            weights.may_exchange = False
        now = weights.source.named_parameters()
        pairs = {name: (before[name], parameter) for name, parameter in now if parameter is not before[name]}
        if module._captures.entries is earlier or not pairs:
            for dense, sparse in pairs.values():
                replace(weights.source, sparse, dense)
            weights.trained -= pairs.keys()
            pairs, module._captures.entries = {}, earlier
            hold_weights(module, module.variants)
        if pairs:
            module._request = replace_fields(module._request, trains_dense="")
        module._call_index.clear()
        module.show(module._captures.shown(mode) or module.variants[0])
        pending.outcome(list(pairs.values()), gain)
