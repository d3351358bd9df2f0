"""Mixtures of experts in halves against transformers' own experts, which multiply halves by instructions for them.

In: the region of a Mixtral's experts in bfloat16.
Out: two calls of the same work: the region's kernel, and transformers' grouped product.

Kernels multiply halves as float32: where the CPU has faster instructions for bfloat16, torch's products use them.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import fx, nn

from sparsify.compiler.prepare import build_all
from sparsify.passes.capture.draft import Draft
from sparsify.passes.capture.libraries import transformers_experts
from sparsify.passes.choose import dry_run
from sparsify.passes.choose.estimate import UNKNOWN_ROWS, example
from sparsify.passes.graph.operators import known_size, scope, tensor_value
from sparsify.passes.lift.experts.mixture import BY_EXPERT, HALVES, MIXTURE
from sparsify.passes.region.region import Region
from sparsify.passes.region.sparse_operand import Matrix
from sparsify.storage.interop import tensor

# Experts of a token where a module does not say how many.
CHOSEN: Final = 2


def module_of(draft: Draft, region: Region) -> nn.Module | None:
    """The stacked experts of transformers that a region in halves computes; `None` for other regions."""
    value = tensor_value(region.output)
    if MIXTURE not in region.notes or value is None or value.dtype not in HALVES:
        return None
    names = {scope(node).partition("@")[0] for node in region.covered}
    named = dict(draft.model.named_modules())
    found = [named[name] for name in names if name in named]
    found = [
        module
        for module in found
        if transformers_experts.is_stacked(module) and transformers_experts.is_known(module)
    ]
    return found[0] if len(found) == 1 else None


def calls(
    draft: Draft, region: Region, module: Any
) -> dict[str, tuple[Callable[..., torch.Tensor], Sequence[Any]]]:
    """Both functions, each with arguments of as many rows as the example; tokens choose experts at random.

    Raises:
        SparsifyError: the kernel cannot be built.
    """
    site = dry_run.site(draft, region)
    kernel = site.call.kernel
    build_all([(kernel, site.sizes)])
    assert region.program is not None, "a mixture has a program"
    operands = {region.names[name]: operand for name, operand in region.operands.items()}
    given = {name: example(draft, node) for name, node in operands.items() if isinstance(node, fx.Node)}
    value = tensor_value(region.output)
    assert value is not None, "a mixture is a tensor"
    tokens, width = (known_size(extent, UNKNOWN_ROWS) or UNKNOWN_ROWS for extent in value.shape)
    draws = torch.Generator().manual_seed(0)
    count = int(getattr(module.config, "num_experts_per_tok", CHOSEN))
    weights, chosen = torch.rand(tokens, module.num_experts, generator=draws).topk(count)
    weights = weights.to(value.dtype)
    dense = torch.zeros(tokens, module.num_experts, dtype=value.dtype).scatter(1, chosen, weights)
    (gate,) = (name for name, operand in operands.items() if isinstance(operand, Matrix))
    given[gate] = tensor(dense, BY_EXPERT)
    hidden = torch.randn(tokens, width, generator=draws).to(value.dtype)
    table: Any = vars(sys.modules[transformers_experts.MODULE])["ALL_EXPERTS_FUNCTIONS"]
    own_arguments = [given[name] for name in region.program.inputs]
    stacked = [getattr(module, name) for name in transformers_experts.weight_names(module)]

    def theirs(hidden: torch.Tensor, weights: torch.Tensor, *_: Any) -> torch.Tensor:
        found: torch.Tensor = table[transformers_experts.OWN](module, hidden, chosen, weights)
        return found

    return {"kernel": (kernel, own_arguments), "transformers": (theirs, [hidden, weights, *stacked])}
