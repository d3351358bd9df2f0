"""Experts of transformers models, captured as einsums over all experts, sparse again by gate rules.

In:  a Mixtral with experts that run one after the other on their chosen tokens: no graph can hold the loop.
Out: during capture, `einsum("te,teo->to", gate, results)` with a gate that is 0 for unchosen experts.

transformers' experts with stacked matrices look their implementation up in one table; Switch's experts are one layer
each. The table and the modules are restored. Experts without a kernel afterwards are captured once more with an
implementation of transformers, since all experts would take longer than the chosen ones.
"""

import copy
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from sparsify.passes.capture.libraries.transformers_bigbird import replaced
from sparsify.passes.graph.operators import operator_name, scope

MODULE: Final = "transformers.integrations.moe"
NAME: Final = "sparsify_all_experts"
# The implementation of transformers that graphs can hold.
OWN: Final = "grouped_mm"


@contextmanager
def spelled_out(model: nn.Module, without: Collection[str] = ()) -> Iterator[None]:
    """A context in which experts of transformers compute all results and weight them.

    Args:
        without: names of experts that run an implementation of transformers, in a form that graphs can hold.
    """
    table: Any = getattr(sys.modules.get(MODULE), "ALL_EXPERTS_FUNCTIONS", None)
    named = dict(model.named_modules())
    stacked: list[Any] = [m for m in named.values() if is_stacked(m)] if table is not None else []
    layers: list[Any] = [m for name, m in named.items() if is_layers(m) and name not in without]
    routers: list[Any] = [m for m in named.values() if layers and is_router(m)]
    implementations: dict[int, str] = {}
    excluded = {id(named[name]) for name in without}
    with ExitStack() as changes:
        if stacked:
            table[NAME] = partial(_experts, table, implementations, excluded)
            changes.callback(table.pop, NAME)
        for module in stacked:
            config = copy.copy(module.config)  # other threads may read the model's own
            implementations[id(config)] = config._experts_implementation
            config._experts_implementation = NAME
            changes.enter_context(replaced(module, "config", config))
        for module in layers:
            changes.enter_context(replaced(module, "forward", partial(all_layers, module)))
        for router in routers:
            unconverted = partial(_as_it_is, router.classifier)
            changes.enter_context(replaced(router.classifier, "to", unconverted))
        yield


def left_over(graph: fx.Graph, model: nn.Module) -> list[str]:
    """The names of experts still computed for all tokens in a graph, after regions replaced the others."""
    named = model.named_modules()
    names = {name for name, m in named if (is_stacked(m) and is_known(m)) or is_layers(m)}
    scopes = (scope(n).partition("@")[0] for n in graph.nodes if operator_name(n) == "einsum")
    return sorted(names & set(scopes))


def is_stacked(module: Any) -> bool:
    """Whether a module looks its experts' implementation up in the table of transformers."""
    return hasattr(module, "_apply_gate") and hasattr(
        getattr(module, "config", None), "_experts_implementation"
    )


def is_known(module: Any) -> bool:
    """Whether stacked experts have matrices `gate_up_proj` or `up_proj`, and `down_proj`, with both biases or none."""
    if any(getattr(module, name, False) for name in ("has_post_expert_norm", "_is_expert_parallel")):
        return False
    return all(isinstance(getattr(module, name, None), Tensor) for name in weight_names(module))


def weight_names(module: Any) -> list[str]:
    """The names of the matrices of stacked experts, and of the biases."""
    names = [first_name(module), "down_proj"]
    return [*names, *(f"{name}_bias" for name in names if getattr(module, "has_bias", False))]


def first_name(module: Any) -> str:
    """The name of the first matrices of stacked experts."""
    return "gate_up_proj" if getattr(module, "has_gate", False) else "up_proj"


def is_shown(module: Any) -> bool:
    """Whether the experts of a module are captured in a form of ours."""
    return (is_stacked(module) and is_known(module)) or is_layers(module)


def is_layers(module: Any) -> bool:
    """Whether a module has two linear layers `wi` and `wo` without biases per expert, as in Switch."""
    if not isinstance(module, nn.ModuleDict) or not hasattr(module, "num_experts") or not len(module):
        return False
    for expert in module.values():
        linear = [getattr(expert, name, None) for name in ("wi", "wo")]
        if not all(isinstance(layer, nn.Linear) and layer.bias is None for layer in linear):
            return False
        dropout = getattr(expert, "dropout", None)
        if not isinstance(dropout, nn.Dropout) or (dropout.training and dropout.p > 0):
            return False
        if not hasattr(expert, "act"):
            return False
    return True


def is_router(module: Any) -> bool:
    """Whether a router converts its classifier to the classifier's own dtype, which no graph can hold."""
    classifier = getattr(module, "classifier", None)
    if not hasattr(module, "expert_capacity") or not isinstance(classifier, nn.Linear):
        return False
    return classifier.weight.dtype == getattr(module, "dtype", None)


def _as_it_is(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module unchanged, as its dtype is right already."""
    return module


def _experts(
    table: Any,
    implementations: dict[int, str],
    excluded: Collection[int],
    experts: Any,
    *args: Any,
    **named: Any,
) -> Tensor:
    """The results of experts: spelled out, or by an implementation of transformers."""
    if is_known(experts) and id(experts) not in excluded:
        return all_experts(experts, *args, **named)
    implementation = implementations[id(experts.config)]
    result: Tensor = table[implementation if implementation in table else OWN](experts, *args, **named)
    return result


def all_experts(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The results of all experts, weighted by a gate.

    Args:
        experts: module with the matrices.
        hidden: [tokens, channels].
        chosen: experts of each token, [tokens, k].
        weights: weights of the chosen experts, [tokens, k].
    """
    gate = hidden.new_zeros(hidden.shape[0], experts.num_experts)
    gate = gate.scatter_add(1, chosen, weights.to(gate.dtype))
    is_transposed, has_bias = getattr(experts, "is_transposed", False), getattr(experts, "has_bias", False)
    first = first_name(experts)
    rows = torch.einsum("td,edh->teh" if is_transposed else "td,ehd->teh", hidden, getattr(experts, first))
    if has_bias:
        rows = rows + getattr(experts, f"{first}_bias")
    rows = experts._apply_gate(rows) if experts.has_gate else experts.act_fn(rows)
    results = torch.einsum("teh,eho->teo" if is_transposed else "teh,eoh->teo", rows, experts.down_proj)
    if has_bias:
        results = results + experts.down_proj_bias
    return torch.einsum("te,teo->to", gate, results)


def all_layers(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The results of all experts with separate layers, weighted by a gate.

    Args:
        experts: layers by name.
        hidden: [tokens, channels].
        chosen: 1 for the expert of a token and 0 for all others, all 0 for dropped tokens, [tokens, 1, experts].
        weights: weights of the chosen experts, [tokens, 1].
    """
    layers = list(experts.values())
    gate = chosen.squeeze(1).to(hidden.dtype) * weights
    first, last = (torch.stack([getattr(layer, name).weight for layer in layers]) for name in ("wi", "wo"))
    rows = layers[0].act(torch.einsum("td,ehd->teh", hidden, first))
    return torch.einsum("te,teo->to", gate, torch.einsum("teh,eoh->teo", rows, last))
