"""Attention with bounds of scores and with sinks, as models spell them, against dense attention in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsify
from sparsify import options, patterns
from sparsify.errors import RecipeError
from tests.passes.lift.attention.test_find import recipe

HEADS, GROUPS, WIDTH = 4, 2, 16
CAP = 0.5
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # sums of products in float32


@pytest.fixture(autouse=True)
def untimed():
    """Schedules are not timed here."""
    with options.override(tune_seconds=0):
        yield


class Layer(nn.Module):
    """Heads that share keys, a causal mask, scores in bounds or beside a sink; a pattern for the reference."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // GROUPS) for _ in range(2))
        self.sinks = nn.Parameter(torch.randn(HEADS))
        self.way = way

    def forward(self, x: Tensor, mask: Tensor | None = None, pattern: Tensor | None = None) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        k, v = (
            z[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).reshape(len(x), HEADS, -1, WIDTH // HEADS)
            for z in (k, v)
        )
        scores = torch.matmul(q, k.transpose(2, 3)) * (WIDTH // HEADS) ** -0.5
        found: Tensor = getattr(self, self.way)(scores, mask, pattern)
        return self.o(torch.matmul(found, v).transpose(1, 2).reshape(x.shape))

    def masked(self, scores: Tensor, mask: Tensor | None, pattern: Tensor | None) -> Tensor:
        if mask is not None:
            scores = scores + mask
        return scores if pattern is None else scores.masked_fill(~pattern, -torch.inf)

    def bounded(self, scores: Tensor, mask: Tensor | None, pattern: Tensor | None) -> Tensor:
        scores = torch.tanh(scores / CAP) * CAP
        return torch.softmax(self.masked(scores, mask, pattern), -1)

    def beside(self, scores: Tensor, mask: Tensor | None, pattern: Tensor | None) -> Tensor:
        scores = self.masked(scores, mask, pattern)
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(len(scores), -1, scores.shape[-2], -1)
        both = torch.cat([scores, sinks], -1)
        both = both - both.max(-1, keepdim=True).values
        return torch.dropout(torch.softmax(both, -1)[..., :-1], 0.25, self.training)

    def both(self, scores: Tensor, mask: Tensor | None, pattern: Tensor | None) -> Tensor:
        return self.beside(torch.tanh(scores / CAP) * CAP, mask, pattern)

    def shifted(self, scores: Tensor, mask: Tensor | None, pattern: Tensor | None) -> Tensor:
        scores = self.masked(scores, mask, pattern)
        return torch.softmax(scores - scores.amax(-1, keepdim=True), -1)

    def bounded_masks(self, scores: Tensor, mask: Tensor | None, pattern: Tensor | None) -> Tensor:
        scores = torch.tanh(self.masked(scores, mask, None))
        return torch.softmax(self.masked(scores, None, pattern), -1)

    def first_cut(self, scores: Tensor, mask: Tensor | None, pattern: Tensor | None) -> Tensor:
        sinks = self.sinks[None, :, None, None].expand(len(scores), -1, scores.shape[-2], -1)
        return torch.softmax(torch.cat([sinks, scores], -1), -1)[..., :-1]

    def kept(self, scores: Tensor, mask: Tensor | None, pattern: Tensor | None) -> Tensor:
        scores = self.masked(scores - scores.mean(-1, keepdim=True), mask, pattern)
        return torch.softmax(scores, -1)


def causal(length: int) -> Tensor:
    """What transformers adds to scores."""
    return torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", ["bounded", "both", "shifted", "bounded_masks", "kept"])
def test_results_and_gradients(way):
    model, x = Layer(way).eval(), torch.randn(2, 24, WIDTH)
    sparse = sparsify.apply(model, recipe(), (x, causal(24)), strict=True, trainable=True)
    (region,) = sparse.report.regions
    assert "repeat" not in region.einsum
    assert ("tanh(" in region.einsum, "Z[" in region.einsum) == (
        way in ("bounded", "both", "bounded_masks"),
        way in ("beside", "both"),
    )
    wide = copy.deepcopy(model).double()
    for length in (24, 17):
        x, mask = torch.randn(3, length, WIDTH), causal(length)
        pattern = patterns.bigbird(length, block=4, random=1, global_=1).to_dense()
        found, wanted = sparse(x, mask), wide(x.double(), mask.double(), pattern)
        torch.testing.assert_close(found.double(), wanted, **CLOSE)
        seed = torch.randn_like(found)
        names = [name for name, _ in model.named_parameters() if name != "sinks" or way in ("beside", "both")]
        gradients = torch.autograd.grad(found, [sparse.get_parameter(name) for name in names], seed)
        exact = torch.autograd.grad(wanted, [wide.get_parameter(name) for name in names], seed.double())
        for name, one, other in zip(names, gradients, exact, strict=True):
            torch.testing.assert_close(
                one.double(), other, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.sampled(2)
def test_weights_beside_sinks_are_dropped():
    model, x = Layer("beside").train(), torch.randn(2, 24, WIDTH)
    sparse = sparsify.apply(model, recipe(), (x,), strict=True)
    assert "uniform(seed" in sparse.report.regions[0].einsum
    torch.manual_seed(1)
    found = sparse(x)
    torch.manual_seed(1)
    torch.testing.assert_close(found, sparse.original(x), **CLOSE)
    assert not torch.equal(found, sparse(x))


@pytest.mark.parametrize(
    ("way", "why"),
    [("first_cut", "not taken of")],
)
def test_other_forms_stay(way, why):
    with pytest.raises(RecipeError, match=why):
        sparsify.apply(Layer(way).eval(), recipe(), (torch.randn(2, 24, WIDTH), causal(24)))


@pytest.mark.sampled(2)
def test_attention_that_no_rule_selects_is_the_models():
    """Sinks and bounds where a rule is for other layers."""
    model: Any = nn.Sequential(Layer("both"), Layer("both")).eval()
    given = recipe()
    given["sparsify"][0]["targets"] = ["scope:0"]
    x = torch.randn(2, 24, WIDTH)
    sparse = sparsify.apply(model, given, (x,), strict=True)
    pattern = patterns.bigbird(24, block=4, random=1, global_=1).to_dense()
    torch.testing.assert_close(sparse(x), model[1](model[0](x, None, pattern)), **CLOSE)
