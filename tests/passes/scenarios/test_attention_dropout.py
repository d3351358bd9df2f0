"""Dropout inside of attention in training: which weights are dropped, how many, and gradients of the others."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

import sparsify
from sparsify import options, patterns
from sparsify.compiler.einsum.counter_random import uniform
from sparsify.passes.graph.draws import SEEDS
from tests.passes.lift.attention.test_find import WIDTH, Attention, recipe

RATE = 0.25
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # weighted means of normal numbers in float32


@pytest.fixture(autouse=True)
def untimed():
    """Schedules are not timed here."""
    with options.override(tune_seconds=0):
        yield


class Dropped(Attention):
    """One layer that drops weights in training, by torch's operator or spelled out."""

    def operator(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        rate = RATE if self.training else 0.0
        return scaled_dot_product_attention(q, k, v, mask, rate, is_causal=self.causal)

    def spelled(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return dropout(torch.softmax(scores, -1), RATE, self.training) @ v


def weights_kept(seed: int, shape: torch.Size) -> Tensor:
    """What the next call after `manual_seed` keeps: seeds of heads are the first that it draws."""
    torch.manual_seed(seed)
    heads = torch.randint(SEEDS, shape[:2])
    rows, columns = (torch.arange(extent) for extent in shape[2:])
    numbers = uniform(heads[..., None, None], rows[:, None], columns)
    torch.manual_seed(seed)
    return torch.from_numpy(numbers >= RATE)


def expected(model: Dropped, pattern: Tensor, x: Tensor, kept: Tensor) -> Tensor:
    """The result in float64 by torch alone, of the weights that are kept."""
    q, k, v = (model.heads(layer(x)) for layer in (model.q, model.k, model.v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill(~pattern, -torch.inf), -1) * kept / (1 - RATE)
    return (weights @ v).transpose(1, 2).reshape(x.shape)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("way", "causal", "how"),
    [
        ("operator", False, {"kind": "bigbird", "block": 4, "random": 1, "global": 1}),
        ("operator", True, {"kind": "sliding_window", "before": 5, "block": 8}),
        ("spelled", False, {"kind": "sliding_window", "before": 5, "after": 2}),
    ],
)
def test_results_and_gradients(way, causal, how):
    model, x = Dropped(way, causal).train(), torch.randn(2, 24, WIDTH)
    sparse = sparsify.apply(model, recipe(**how), (x,), strict=True)
    (region,) = sparse.report.regions
    assert "uniform(seed[b,h], i, j)" in region.einsum
    numbers = {name.replace("global", "global_"): n for name, n in how.items() if name != "kind"}
    for length in (24, 13):
        pattern = getattr(patterns, how["kind"])(length, **numbers).to_dense() != 0
        pattern = pattern.tril() if causal else pattern
        x = torch.randn(3, length, WIDTH, requires_grad=True)
        y = x.detach().double().requires_grad_()
        kept = weights_kept(length, torch.Size((3, 2, length, length)))
        found = sparse(x)
        double = Dropped(way).double()
        double.load_state_dict(model.state_dict())
        wanted = expected(double, pattern, y, kept)
        torch.testing.assert_close(found.double(), wanted, **CLOSE)
        seed = torch.randn_like(found)
        torch.testing.assert_close(
            torch.autograd.grad(found, x, seed)[0].double(),
            torch.autograd.grad(wanted, y, seed.double())[0],
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip


@pytest.mark.sampled(2)
def test_modes_and_seeds():
    """In evaluation nothing is dropped; in training each call draws anew, the same after `manual_seed`."""
    model, x = Dropped().train(), torch.randn(2, 16, WIDTH)
    sparse = sparsify.apply(model, recipe(), (x,), strict=True)
    torch.manual_seed(1)
    first, second = sparse(x), sparse(x)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(sparse(x), first)
    plain = sparse.eval()(x)
    assert torch.equal(sparse(x), plain)
    assert "uniform" not in sparse.report.regions[0].einsum
    pattern = patterns.bigbird(16, block=4, random=1, global_=1).to_dense() != 0
    wanted = expected(model, pattern, x, torch.ones(()) * (1 - RATE))
    torch.testing.assert_close(plain, wanted, **CLOSE)
    torch.manual_seed(1)
    assert torch.equal(sparse.train()(x), first)


@pytest.mark.sampled(2)
def test_rate_and_mean():
    """Equal scores: a row of results says how many of its weights were kept."""
    model, x = Dropped(), torch.randn(4, 64, WIDTH)
    with torch.no_grad():
        model.q.weight.zero_(), model.q.bias.zero_()
        model.v.weight.zero_(), model.v.bias.fill_(1)
    sparse = sparsify.apply(model.train(), recipe("sliding_window", before=63, after=63), (x,), strict=True)
    torch.manual_seed(0)
    with torch.no_grad():
        steps = torch.stack([sparse(x)[..., :: WIDTH // 2] for _ in range(8)])  # [steps, batch, rows, heads]
    count = steps.numel() * 64
    share = steps.double().mean() * (1 - RATE)
    assert abs(share - (1 - RATE)) < 4 * (RATE * (1 - RATE) / count) ** 0.5
    # Rows of different steps, texts, and heads are not alike.
    centred = steps.double() - 1
    spread = centred.square().mean()
    for mode in range(4):
        alike = (centred * centred.roll(1, mode)).mean() / spread
        assert abs(alike) < 4 / steps.numel() ** 0.5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves(dtype):
    model, x = Dropped().train().to(dtype), torch.randn(2, 16, WIDTH).to(dtype)
    sparse = sparsify.apply(model, recipe(), (x,), strict=True)
    kept = weights_kept(3, torch.Size((2, 2, 16, 16)))
    found = sparse(x)
    pattern = patterns.bigbird(16, block=4, random=1, global_=1).to_dense() != 0
    double = Dropped().double()
    double.load_state_dict(model.state_dict())
    wanted = expected(double, pattern, x.double(), kept)
    assert (found - wanted).abs().max() < 8 * torch.finfo(dtype).eps * wanted.abs().max()


def encoder(**how: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.2, batch_first=True, **how)


@pytest.mark.sampled(4)
def test_encoder_layers():
    """Whose other dropout is torch's, with padding, outputs and gradients."""
    model = nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False).train()
    x, padding = torch.randn(2, 12, WIDTH), torch.zeros(2, 12, dtype=torch.bool)
    padding[1, 9:] = True
    sparse = sparsify.apply(
        model,
        recipe("sliding_window", before=4, after=4),
        {"src": x, "src_key_padding_mask": padding},
        strict=True,
    )
    assert len(sparse.report.regions) == 2
    assert sparse.verify_gradients(x, src_key_padding_mask=padding) < 1e-4


@pytest.mark.sampled(4)
def test_attention_that_no_rule_chose_drops_as_torch_does():
    model = nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False).train()
    x = torch.randn(2, 12, WIDTH)
    rule = recipe("sliding_window", before=4, after=4)
    rule["sparsify"][0]["targets"] = ["scope:layers.1.*"]
    sparse = sparsify.apply(model, rule, (x,))
    assert len(sparse.report.regions) == 1
    assert sparse.verify_gradients(x) < 1e-4
