"""Attention that a model writes as einsums: one program under a pattern; against the same einsums in float64."""

import pytest
import torch
from torch import Tensor, nn

import sparsify
from sparsify import options, patterns
from sparsify.errors import RecipeError

LENGTH, WIDTH = 13, 8


class Einsums(nn.Module):
    """Scores, their softmax, the weighted mean, by two equations."""

    def __init__(self, scores: str, mean: str, heads: tuple[int, ...], kept: tuple[int, ...]) -> None:
        super().__init__()
        self.equations = scores, mean
        torch.manual_seed(0)
        self.shapes = heads, kept
        widths = [torch.Size(shape).numel() * WIDTH for shape in (heads, kept, kept)]
        self.layers = nn.ModuleList(nn.Linear(WIDTH, width) for width in widths)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        heads, kept = self.shapes
        shapes = heads, kept, kept
        q, k, v = (
            layer(x).unflatten(-1, (*shape, WIDTH)) for layer, shape in zip(self.layers, shapes, strict=True)
        )
        first = (k, q) if self.equations[0].startswith("bj") else (q, k)
        scores = torch.einsum(self.equations[0], *first) * 0.3
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        second = (v, weights) if self.equations[1].startswith("bj") else (weights, v)
        return torch.einsum(self.equations[1], *second)


def applied(model: nn.Module, x: Tensor) -> sparsify.SparseModule:
    rule = {
        "targets": ["op:scaled_dot_product_attention"],
        "mask": {"kind": "sliding_window", "before": 3, "block": 4},
    }
    with options.override(tune_seconds=0):
        recipe = {"schema": 1, "name": "einsums", "sparsify": [rule]}
        return sparsify.apply(model.eval(), recipe, (x,), strict=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("scores", "mean", "heads", "kept"),
    [
        ("bihd,bjhd->bhij", "bhij,bjhd->bihd", (3,), (3,)),
        ("bjhd,bihd->bhij", "bjhd,bhij->bihd", (3,), (3,)),
        ("...id,...jd->...ij", "... i j, ... j d -> ... i d", (), ()),
        ("...id,...jd", "...ij,...jd", (), ()),
        ("bighd,bjgd->bghij", "bghij,bjgd->bighd", (2, 3), (2,)),
    ],
)
def test_einsums_are_one_program(scores, mean, heads, kept) -> None:
    model, x = Einsums(scores, mean, heads, kept), torch.randn(2, LENGTH, WIDTH)
    sparse = applied(model, x)
    assert [note.partition(" under ")[0] for note in sparse.report.regions[0].notes] == ["attention"]
    assert ("K[a,j,b,k]" in sparse.report.regions[0].einsum) == (heads != kept)
    for length in (LENGTH, 9):
        x = torch.randn(2, length, WIDTH)
        mask = patterns.sliding_window(length, before=3).to_dense().double().log()
        double = Einsums(scores, mean, heads, kept).double()
        wanted = double(x.double(), mask).float()
        torch.testing.assert_close(sparse(x), wanted, rtol=1e-5, atol=1e-5)


class Other(nn.Module):
    """Einsums around a softmax that are no attention."""

    def __init__(self, scores: str, mean: str) -> None:
        super().__init__()
        self.scores, self.mean = scores, mean

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(torch.einsum(self.scores, x, x), dim=-1)
        return torch.einsum(self.mean, weights, x)


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ("bid,bjd->bij", "bij,bid->bjd"),  # of queries, not of keys
        ("bid,bjd->bij", "bij,bjd->bijd"),  # no sum
        ("bid,bid->bi", "bi,bid->bd"),  # of one entry each
        ("bid,bje->bij", "bij,bjd->bid"),  # two sums
    ],
)
def test_other_einsums_stay(scores, mean) -> None:
    with pytest.raises(RecipeError, match="matches nothing"):
        applied(Other(scores, mean), torch.randn(2, LENGTH, LENGTH))


def test_what_keeps_a_softmax_from_being_attention_is_said() -> None:
    class Returned(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            weights = torch.softmax(x @ x.mT, dim=-1)
            return weights @ x, weights

    with pytest.raises(RecipeError, match=r"softmax is no attention: its weights are read by .*output"):
        applied(Returned(), torch.randn(2, LENGTH, WIDTH))
