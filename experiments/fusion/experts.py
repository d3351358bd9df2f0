"""Mixtures of experts by a top-k gate, against the implementations that transformers has.

In: `experts(8, place)`. Out: a `Case` whose result is checked against float64.
"""

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

import sparsify
from sparsify.bench.harness import Case, Target
from sparsify.bench.place import Place
from sparsify.bench.products import ITEM, against, row, scaled
from sparsify.bench.roofline import Work

TOKENS: Final = 1024
WIDTH: Final = 512
HIDDEN: Final = 1024
CHOSEN: Final = 2
# transformers' names of its implementations: a loop over experts, and torch's grouped product. The third one,
# "batched_mm", copies the matrices of the experts for each token: gigabytes here.
IMPLEMENTATIONS: Final = ("eager", "grouped_mm")
TEXT: Final = """
H[t,e,h] = G[t,e] * silu(sum(d, X[t,d] * U[e,0,h,d])) * sum(d, X[t,d] * U[e,1,h,d])
Y[t,o] += H[t,e,h] * V[e,o,h]
"""


def experts(count: int, place: Place, ratio: float | None = None) -> Case:
    """Experts with gated units, of which a gate chooses two for each token."""
    tokens, width, hidden = (scaled(size, place) for size in (TOKENS, WIDTH, HIDDEN))
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, width, generator=numbers)
    up = torch.randn(count, 2 * hidden, width, generator=numbers) / width**0.5
    down = torch.randn(count, width, hidden, generator=numbers) / hidden**0.5
    weights, chosen = torch.randn(tokens, count, generator=numbers).softmax(-1).topk(CHOSEN)
    pairs = tokens * CHOSEN
    size = ITEM * (up.numel() + down.numel())
    case = row(
        f"experts-{count}",
        f"{count} experts, {CHOSEN} a token, {tokens} tokens, {width} channels, {hidden} inside",
        lambda: _looped(x.double(), up.double(), down.double(), weights.double(), chosen),
        Work(6.0 * pairs * width * hidden, size + ITEM * tokens * width, 0.0, ITEM * tokens * width),
    )
    token = torch.arange(tokens).repeat_interleave(CHOSEN)
    parts = up.view(count, 2, hidden, width)

    def ours() -> Tensor:
        places = torch.stack((token, chosen.flatten()))
        gate = sparsify.tensor((places, weights.flatten(), (tokens, count)), "csc")
        found: Tensor = sparsify.evaluate(TEXT, "Y", G=gate, X=x, U=parts, V=down)
        return found

    theirs = {name: _theirs(name, x, up, down, weights, chosen) for name in IMPLEMENTATIONS}
    case = against(case, ours, theirs)
    present = tuple(name for name, call in theirs.items() if call is not None)
    case.targets = [Target("sparsify", present, ratio, "the fastest of transformers'")] if present else []
    return case


def _looped(x: Tensor, up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """One expert after the other, on the tokens that chose it."""
    result = torch.zeros_like(x)
    for expert in range(len(up)):
        token, place = torch.where(chosen == expert)
        gate, rows = linear(x[token], up[expert]).chunk(2, -1)
        rows = linear(silu(gate) * rows, down[expert])
        result.index_add_(0, token, rows * weights[token, place, None])
    return result


def _theirs(
    name: str, x: Tensor, up: Tensor, down: Tensor, weights: Tensor, chosen: Tensor
) -> Callable[[], Tensor] | None:
    """The experts of transformers' Mixtral with one of its implementations; `None` without transformers."""
    try:
        module: Any = import_module("transformers.models.mixtral.modeling_mixtral")
    except ImportError:
        return None
    count, width, hidden = down.shape
    config = SimpleNamespace(
        num_local_experts=count,
        hidden_size=width,
        intermediate_size=hidden,
        hidden_act="silu",
        _experts_implementation=name,
    )
    found = module.MixtralExperts(config).requires_grad_(False)
    found.gate_up_proj.copy_(up)
    found.down_proj.copy_(down)
    return lambda: found(x, chosen, weights)
