"""Attention whose scores have a bias of each distance: read by distance, against dense attention in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import sparsify
from sparsify import options, patterns

HEADS, WIDTH, LEAST = 2, 16, torch.finfo(torch.float32).min
WINDOW: dict[str, Any] = {"kind": "sliding_window", "before": 5, "after": 3, "block": 8}
RECIPE = {
    "schema": 1,
    "name": "window",
    "sparsify": [{"targets": ["op:scaled_dot_product_attention"], "mask": WINDOW}],
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # sums of products in float32


@pytest.fixture(autouse=True)
def untimed():
    """Schedules are not timed here."""
    with options.override(tune_seconds=0):
        yield


class Layer(nn.Module):
    """Attention with a mask that a model builds; a pattern for the reference."""

    def __init__(self, way: str, groups: int = HEADS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.table, self.slopes = nn.Embedding(9, HEADS), nn.Parameter(torch.rand(HEADS, 1, 1))
        self.way, self.groups = way, groups

    def forward(self, x: Tensor, padding: Tensor, pattern: Tensor | None = None) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        if self.groups < HEADS:
            k, v = (
                z[:, : self.groups, None].expand(-1, -1, HEADS // self.groups, -1, -1).reshape(q.shape)
                for z in (k, v)
            )
        places = torch.arange(x.shape[1])
        mask = getattr(self, self.way)(places[:, None], places[None], padding[:, None, None] > 0)
        if pattern is not None:
            # Torch misreads masks in float32 beside queries in float64.
            mask = mask.to(q.dtype).masked_fill(~pattern, -torch.inf)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)

    def bias(self, i: Tensor, j: Tensor) -> Tensor:
        """A number for each head and distance, as T5's."""
        return self.table((j - i).clamp(-4, 4) + 4).permute(2, 0, 1).unsqueeze(0)

    def alone(self, i: Tensor, j: Tensor, kept: Tensor) -> Tensor:
        return self.bias(i, j)

    def padded(self, i: Tensor, j: Tensor, kept: Tensor) -> Tensor:
        """Keys that are padding have the least score there is: queries that have no other keys attend to all."""
        return torch.where(kept & (i >= 0), self.bias(i, j), LEAST)

    def ordered(self, i: Tensor, j: Tensor, kept: Tensor) -> Tensor:
        return torch.where(kept & (j <= i), self.bias(i, j), LEAST)

    def sloped(self, i: Tensor, j: Tensor, kept: Tensor) -> Tensor:
        """ALiBi, with masks as numbers."""
        numbers = torch.where(kept, 0.0, LEAST).to(self.slopes.dtype)
        return (self.slopes * -(j - i).abs() + torch.where(j <= i, 0.0, -torch.inf)) + numbers

    def nothing(self, i: Tensor, j: Tensor, kept: Tensor) -> Tensor:
        """Zeros, where keys are no padding: as cross-attention of T5."""
        return torch.where(
            kept & (i >= 0), torch.zeros((1, HEADS, i.shape[0], j.shape[1]), dtype=self.slopes.dtype), LEAST
        )

    def counted(self, i: Tensor, j: Tensor, kept: Tensor) -> Tensor:
        """What is added is 0 or 1."""
        return self.slopes * (j - i) + kept.long()

    def given(self, i: Tensor, j: Tensor, kept: Tensor) -> Tensor:
        """Numbers of keys, whose differences bfloat16 would not hold."""
        return torch.where(kept, 100.0 + j * 0.125, LEAST)

    def learned(self, i: Tensor, j: Tensor, kept: Tensor) -> Tensor:
        """Not of distances alone."""
        return torch.where(kept, self.bias(i, j) * self.table.weight[0, 0] * i, LEAST)


READ = {
    "alone": " + R[h,j-i+extent(i)-1]",
    "padded": " + where(B[b,j], R[h,j-i+extent(i)-1], ",
    "ordered": " + where(logical_and(B[b,j], j <= i), R[h,j-i+extent(i)-1], ",
    "sloped": " + (R[h,j-i+extent(i)-1] + B[b,j])",
    "nothing": " + where(B[b,j], 0.0, ",
    "counted": " + B[b,h,i,j]",
    "learned": " + where(B[b,j], R[h,j-i+extent(i)-1] * i, ",
}


def inputs(batch: int, length: int, kept: int = -4) -> tuple[Tensor, Tensor]:
    """Rows, and which of them are no padding, of the last text so many."""
    padding = torch.ones(batch, length, dtype=torch.long)
    padding[-1, kept:] = 0
    return torch.randn(batch, length, WIDTH), padding


def gradients(model: nn.Module, result: Tensor, names: list[str], seed: Tensor) -> dict[str, Tensor]:
    found = torch.autograd.grad(
        result, [model.get_parameter(name) for name in names], seed, allow_unused=True
    )
    return {name: one for name, one in zip(names, found, strict=True) if one is not None}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("way", READ)
def test_results_and_gradients(way):
    model = Layer(way).eval()
    sparse = sparsify.apply(model, RECIPE, inputs(2, 24), strict=True)
    (region,) = sparse.report.regions
    assert READ[way] in region.einsum
    assert any("by distance" in note for note in region.notes) == ("R[" in READ[way])
    wide = copy.deepcopy(model).double()
    for batch, length in ((2, 24), (3, 37)):
        pattern = patterns.sliding_window(length, before=5, after=3).to_dense()
        x, padding = inputs(batch, length, 4)  # some queries have no other keys
        with torch.no_grad():
            torch.testing.assert_close(sparse(x, padding), model(x, padding, pattern), **CLOSE)
        # What torch recomputes of rows whose scores are all the least number is no gradient of theirs.
        x, padding = inputs(batch, length)
        found, exact = sparse(x, padding), wide(x.double(), padding, pattern)
        torch.testing.assert_close(found.double(), exact, **CLOSE)
        seed = torch.randn_like(found)
        names = [name for name, _ in model.named_parameters()]
        own = gradients(sparse, found, names, seed)
        wanted = gradients(wide, exact, names, seed.double())
        assert own.keys() == wanted.keys()
        for name in own:
            torch.testing.assert_close(own[name].double(), wanted[name], **CLOSE)
    assert len(sparse.variants) == 1


@pytest.mark.sampled(3)
def test_a_bias_that_is_trained_is_kept_for_each_pair():
    model = Layer("padded").train()
    sparse = sparsify.apply(model, RECIPE, inputs(2, 24), strict=True)
    assert "where(B[b,j], B1[h,i,j], " in sparse.report.regions[0].einsum
    x, padding = inputs(3, 17)
    pattern = patterns.sliding_window(17, before=5, after=3).to_dense()
    found, wanted = sparse(x, padding), model(x, padding, pattern)
    torch.testing.assert_close(found, wanted, **CLOSE)
    seed = torch.randn_like(found)
    (own,), (other,) = (torch.autograd.grad(y, [model.table.weight], seed) for y in (found, wanted))
    torch.testing.assert_close(own, other, **CLOSE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("way", ["nothing", "padded"])
def test_gradients_of_queries_that_attend_to_padding_alone(way, groups):
    """Torch's fused attention has them wrong: verification takes those of its plain one."""
    model = Layer(way, groups).eval()
    x, padding = inputs(2, 24, 4)
    pattern = patterns.sliding_window(24, before=5, after=3).to_dense()
    sparse = sparsify.apply(model, RECIPE, (x, padding), strict=True, trainable=True)
    wide, found = copy.deepcopy(model).double(), sparse(x, padding)
    with sdpa_kernel(SDPBackend.MATH):
        seed, names = torch.randn_like(found), ["q.weight", "k.weight", "v.weight", "v.bias"]
        wanted = gradients(wide, wide(x.double(), padding, pattern), names, seed.double())
    own = gradients(sparse, found, names, seed)
    assert own.keys() == wanted.keys()
    for name in own:
        torch.testing.assert_close(own[name].double(), wanted[name], **CLOSE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("way", "groups"), [("given", HEADS), ("sloped", HEADS), ("padded", HEADS), ("ordered", 1)]
)
def test_masks_in_float32_of_attention_in_halves(way, groups):
    """Torch adds them to scores as they are, and rounds the result."""
    model = Layer(way, groups).eval()
    model.requires_grad_(False)
    for linear in (model.q, model.k, model.v):
        linear.bfloat16().requires_grad_(True)
    (x, padding), pattern = inputs(2, 24, 4), patterns.sliding_window(24, before=5, after=3).to_dense()
    x = x.bfloat16()
    sparse = sparsify.apply(model, RECIPE, (x, padding), strict=True, trainable=True)
    assert len(sparse.report.regions) == 1
    found, exact = sparse(x, padding), copy.deepcopy(model).double()(x.double(), padding, pattern)
    assert found.dtype == model(x, padding).dtype == torch.bfloat16
    # As exact as with masks in bfloat16, of which the least number is none.
    torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=2**-7)
    seed = torch.randn_like(found)
    (own,) = torch.autograd.grad(found, [sparse.get_parameter("v.weight")], seed)
    assert own.dtype == torch.bfloat16


@pytest.mark.sampled(3)
def test_heads_that_share_keys():
    model = Layer("padded", groups=1).eval()
    sparse = sparsify.apply(model, RECIPE, inputs(2, 24), strict=True)
    assert "K[b,h,j,k]" not in sparse.report.regions[0].einsum
    x, padding = inputs(2, 19)
    pattern = patterns.sliding_window(19, before=5, after=3).to_dense()
    with torch.no_grad():
        torch.testing.assert_close(sparse(x, padding), model(x, padding, pattern), **CLOSE)


@pytest.mark.sampled(3)
def test_the_largest_tensor_of_a_long_text_is_no_square():
    """Of the 64 MB that the biases of all pairs take, two numbers for each distance are left."""
    model = Layer("padded").eval()
    sparse = sparsify.apply(model, RECIPE, inputs(2, 24), strict=True)
    with torch.no_grad():
        sparse(*inputs(1, 2897))  # makes the pattern
        with torch.profiler.profile(profile_memory=True) as profile:
            sparse(*inputs(1, 2897))
    assert max(event.self_cpu_memory_usage for event in profile.events()) < 1 << 20
