"""Experts of transformers' models, captured as einsums over all of them, which a rule for gates makes sparse again.

In:  a Mixtral, whose experts run one after the other on the tokens that chose them: no graph can hold that.
Out: while it is captured, `einsum("te,teo->to", gate, results)` with a gate that is 0 for experts that are not chosen.

transformers' experts all ask one table for their implementation. What is in it stays as it was.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

MODULE: Final = "transformers.integrations.moe"
NAME: Final = "sparsify_all_experts"


@contextmanager
def spelled_out(model: nn.Module) -> Iterator[None]:
    """Within this context experts of transformers compute all results and weight them."""
    table: Any = getattr(sys.modules.get(MODULE), "ALL_EXPERTS_FUNCTIONS", None)
    experts: list[Any] = [m for m in model.modules() if is_known(m)] if table is not None else []
    configs = {id(module.config): module.config for module in experts}
    before = {key: config._experts_implementation for key, config in configs.items()}
    if configs:
        table[NAME] = all_experts
    try:
        for config in configs.values():
            config._experts_implementation = NAME
        yield
    finally:
        for key, config in configs.items():
            config._experts_implementation = before[key]
        if configs:
            del table[NAME]


def is_known(module: Any) -> bool:
    """Whether a module has the matrices of experts stacked, `gate_up_proj` or `up_proj` and `down_proj`, no biases."""
    if not hasattr(module, "_apply_gate") or not hasattr(module, "config"):
        return False
    first = "gate_up_proj" if getattr(module, "has_gate", False) else "up_proj"
    odd = [
        getattr(module, name, False) for name in ("has_bias", "has_post_expert_norm", "_is_expert_parallel")
    ]
    return not any(odd) and all(isinstance(getattr(module, n, None), Tensor) for n in (first, "down_proj"))


def all_experts(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The results of all experts, weighted by a gate.

    Args:
        experts: the module that has their matrices.
        hidden: [tokens, channels].
        chosen: the experts of each token, [tokens, k].
        weights: theirs, of the same shape.
    """
    if not is_known(experts):
        found: Tensor = type(experts).forward.__wrapped__(experts, hidden, chosen, weights)
        return found
    gate = hidden.new_zeros(hidden.shape[0], experts.num_experts)
    gate = gate.scatter_add(1, chosen, weights.to(gate.dtype))
    turned = getattr(experts, "is_transposed", False)
    first = experts.gate_up_proj if experts.has_gate else experts.up_proj
    rows = torch.einsum("td,edh->teh" if turned else "td,ehd->teh", hidden, first)
    rows = experts._apply_gate(rows) if experts.has_gate else experts.act_fn(rows)
    results = torch.einsum("teh,eho->teo" if turned else "teh,eoh->teo", rows, experts.down_proj)
    return torch.einsum("te,teo->to", gate, results)
