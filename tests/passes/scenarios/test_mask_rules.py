"""Patterns of recipes: what their numbers, places and files say, and attention of torch's modules under them."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sparsify
from sparsify.errors import CaptureError, RecipeError, ShapeError
from sparsify.passes.module import capture_call

HEADS, WIDTH = 2, 16
# Weighted means of normal numbers in float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Heads(nn.Module):
    """Attention of two heads to the input itself."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        heads = x.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads * scale, heads, heads)


class Layer(nn.Module):
    """torch's layer, asked for weights that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return self.layer(x, x, x, key_padding_mask=padding, attn_mask=mask)[0]


class Scaled(nn.Module):
    """`baddbmm` with both factors, as BLOOM has it."""

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        scores = torch.baddbmm(bias, x, x.mT, beta=self.beta, alpha=0.25)
        return torch.softmax(scores, -1) @ x


def rule(**mask):
    return {
        "schema": 1,
        "name": "masked",
        "sparsify": [{"targets": ["op:scaled_dot_product_attention"], "mask": mask}],
    }


def under(kept, x):
    """The result of `Heads` in float64, for truth values [queries, keys] or [heads, queries, keys]."""
    heads = x.double().unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=kept).float()


@pytest.mark.parametrize("heads", [None, HEADS])
def test_masks_of_files(heads, tmp_path):
    kept = torch.rand(*(() if heads is None else (heads,)), 20, 20) > 0.6
    np.save(tmp_path / "mask.npy", kept.numpy())
    x = torch.randn(3, 20, WIDTH)
    sparse = sparsify.apply(
        Heads(), rule(kind="from_file", path=str(tmp_path / "mask.npy"), block=4), x, strict=True
    )
    torch.testing.assert_close(sparse(x), under(kept, x), **CLOSE)
    with pytest.raises(ShapeError, match=r"holds a mask .*20, 20\], and \[21, 21\] is wanted"):
        sparse(torch.randn(2, 21, WIDTH))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [False, True])
def test_files_that_are_written_again(causal, tmp_path, monkeypatch):
    x = torch.randn(2, 20, WIDTH)
    for place in ("first", "second"):  # the same name in two folders, and each of them twice
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        for seed in (0, 1):
            kept = (torch.rand(20, 20, generator=torch.Generator().manual_seed(seed)) < 0.4) | torch.eye(
                20
            ).bool()
            np.save("mask.npy", kept.numpy())
            sparse = sparsify.apply(
                Heads(), rule(kind="from_file", path="mask.npy", block=4, causal=causal), x, strict=True
            )
            with torch.no_grad():
                torch.testing.assert_close(sparse(x), under(kept.tril() if causal else kept, x), **CLOSE)
                torch.testing.assert_close(sparse.original(x), sparse(x), **CLOSE)


def test_files_that_are_none(tmp_path):
    with pytest.raises(RecipeError, match="mask: there is no file"):
        sparsify.apply(
            Heads(), rule(kind="from_file", path=str(tmp_path / "mask.npy")), torch.randn(2, 20, WIDTH)
        )


def test_places_of_global_tokens():
    x = torch.randn(2, 20, WIDTH)
    sparse = sparsify.apply(
        Heads(), rule(kind="longformer", window=2, block=4, **{"global": [0, 7]}), x, strict=True
    )
    i, j = torch.arange(20)[:, None], torch.arange(20)[None]
    kept = ((i - j).abs() <= 1) | (i == 0) | (j == 0) | (i == 7) | (j == 7)
    torch.testing.assert_close(sparse(x), under(kept, x), **CLOSE)


def test_patterns_by_head_where_the_number_of_heads_may_vary():
    class Given(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, q, q)

    q, given = torch.randn(3, HEADS, 20, WIDTH), rule(kind="bigbird", block=4, heads=HEADS)
    with pytest.raises(RecipeError, match=r"for each of 2 heads, .* may vary; dynamic=\(\) fixes all"):
        sparsify.apply(Given(), given, q)
    sparse = sparsify.apply(Given(), given, q, dynamic=())
    assert len(sparse.report.regions) == 1


def test_patterns_for_other_numbers_of_heads():
    with pytest.raises(RecipeError, match=r"for each of 3 heads, and op:.* has 2 heads"):
        sparsify.apply(Heads(), rule(kind="bigbird", block=4, heads=3), torch.randn(2, 20, WIDTH))


def test_too_many_captures_do_not_run_unmasked(monkeypatch):
    monkeypatch.setattr(capture_call, "MAX_CAPTURES", 1)
    x = torch.randn(2, 20, WIDTH)
    sparse = sparsify.apply(Heads(), rule(kind="causal", block=4), x)
    with pytest.raises(
        CaptureError, match="more than 1 captures, and the source model cannot run with the masks"
    ):
        sparse(x, 2.0)


@pytest.mark.sampled(2)
def test_weights_that_nobody_reads():
    model = Layer().eval()
    sparse = sparsify.apply(
        model, rule(kind="sliding_window", before=3, block=4), torch.randn(2, 20, WIDTH), strict=True
    )
    i, j = torch.arange(25)[:, None], torch.arange(25)[None]
    outside = (i - j).abs() > 3
    x, padding = torch.randn(3, 25, WIDTH), torch.arange(25) >= torch.tensor([25, 20, 9])[:, None]
    double = Layer().double()
    for given in ((x, None, None), (x, padding, None), (x, padding, torch.rand(25, 25) > 0.8)):
        hidden = outside if given[2] is None else outside | given[2]
        wanted = double(x.double(), given[1], hidden).float()
        kept = wanted.isfinite()  # torch has no numbers for queries without keys
        torch.testing.assert_close(sparse(*given)[kept], wanted[kept], **CLOSE)


@pytest.mark.parametrize("beta", [1, 0.5, 0])
def test_products_that_are_added_to_a_mask(beta):
    x, bias = torch.randn(2, 20, WIDTH), torch.randn(2, 1, 20)
    sparse = sparsify.apply(Scaled(beta), rule(kind="causal", block=4), (x, bias), strict=True)
    scores = 0.25 * x.double() @ x.double().mT + beta * bias.double()
    later = torch.ones(20, 20, dtype=torch.bool).triu(1)
    wanted = torch.softmax(scores.masked_fill(later, -torch.inf), -1) @ x.double()
    torch.testing.assert_close(sparse(x, bias), wanted.float(), **CLOSE)
