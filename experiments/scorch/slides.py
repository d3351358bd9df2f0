"""Models of the slides: a mixture of experts with a gate by `one_hot`, and a recommender with bags of table rows.

In: a `Setting`. Out: the figure: sparsify, the listing itself in sparsify's namespace, and torch, on generated
operands.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

import sparsify
import sparsify.torch as drop_in
from sparsify.bench.harness import Case, Contender
from sparsify.models import registry
from sparsify.models.samples import sample

from ..reproduce.figure import OURS, Figure, Outcome, Row, Setting, timed

TOKENS, WIDTH, OUT, EXPERTS = 512, 256, 256, 16
QUICK_TOKENS: Final = 128
TORCH, LISTING = "torch", "the listing"
GATE: Final = {
    "schema": 1,
    "name": "slides-experts",
    "sparsify": [{"targets": ["op:experts"], "role": "gate", "source": "computed"}],
}
BAGS: Final = {
    "schema": 1,
    "name": "slides-bags",
    "sparsify": [{"targets": ["op:embedding_bag"], "role": "activation", "source": "given"}],
}


class Mixture(nn.Module):
    """Mixture of experts of the slides as a module of torch operators."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.E = nn.Parameter(torch.randn(EXPERTS, WIDTH, OUT) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [tokens, OUT] of x [tokens, WIDTH]: one expert for each token."""
        gates = functional.one_hot(self.router(x).argmax(1), EXPERTS).to(x.dtype)
        x_dispatch = x.unsqueeze(1).expand(-1, EXPERTS, -1)
        y_experts = torch.einsum("bnd,ndh->bnh", x_dispatch, self.E)
        return torch.einsum("bnh,bn->bh", y_experts, gates)


def listing(model: Mixture, x: Tensor) -> Tensor:
    """Listing of the slides in sparsify's namespace: one product per statement."""
    gates = drop_in.nn.functional.one_hot(model.router(x).argmax(1), EXPERTS)
    x_dispatch = drop_in.rearrange(x, "bd->bnd", n=EXPERTS)
    y_experts = drop_in.einsum("bnd,ndh->bnh", x_dispatch, model.E)
    return drop_in.einsum("bnd,bn->bd", y_experts, gates)


def mixture(setting: Setting) -> Outcome:
    """Times of a mixture of experts."""
    tokens = QUICK_TOKENS if setting.quick else TOKENS
    model = Mixture().eval().requires_grad_(False)
    x = torch.randn(tokens, WIDTH)
    return _compared(model, GATE, (x,), setting, {LISTING: partial(listing, model, x)})


def recommender(setting: Setting) -> Outcome:
    """Times of a recommender."""
    entry = registry.find("dlrm")
    model = entry.make({}, setting.seed).eval().requires_grad_(False)
    inputs, _ = sample(entry, model, QUICK_TOKENS if setting.quick else None, None, setting.seed)
    return _compared(model, BAGS, inputs, setting, {})


def _compared(
    model: nn.Module,
    recipe: dict[str, Any],
    inputs: tuple[Tensor, ...],
    setting: Setting,
    others: dict[str, Callable[[], Any]],
) -> Outcome:
    """Times of a model: by `apply`, by torch, and by `others`."""
    with torch.no_grad():
        sparse = sparsify.apply(model, recipe, inputs)
        calls = {OURS: lambda: sparse(*inputs), **others, TORCH: lambda: model(*inputs)}
        expected = model(*inputs).double()
        case = Case("slides", "", "generated", [], [], lambda: expected, tolerance=1e-3)
        case.contenders += [Contender(who, call, who != OURS) for who, call in calls.items()]
        times = timed(case, setting)
    return Outcome(times, {}, {"regions": len(sparse.report.regions)}, f"batch {inputs[0].shape[0]}")


def rows(setting: Setting) -> Sequence[Row]:
    """Rows of the two models."""
    return [
        Row("mixture of experts", "generated", mixture, (), 20.0),
        Row("recommender", "generated", recommender, (), 30.0),
    ]


FIGURE = Figure(
    "slides",
    "models of the slides",
    rows,
    TORCH,
    "the slides show both as uses and give no times.",
    facts=("regions",),
    why={
        TORCH: "its dense products of all experts run near the machine's peak; ours gather the tokens of each expert",
        LISTING: "it applies all experts to all tokens, statement by statement, by the same dense product",
    },
)
