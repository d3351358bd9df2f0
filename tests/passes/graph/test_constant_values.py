"""Masks that a model builds from counted positions: what leaves out nothing is not kept; what does, is."""

import math

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.functional import scaled_dot_product_attention

import sparsify
from sparsify import options, patterns
from sparsify.passes.graph.constant_values import constant, counted_mode

RECIPE = {
    "schema": 1,
    "name": "window",
    "sparsify": [
        {"targets": ["op:scaled_dot_product_attention"], "mask": {"kind": "sliding_window", "before": 5}}
    ],
}


class Packed(nn.Module):
    """A decoder's attention over texts that may be packed into one row: positions that do not go on begin a text."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        batch, length, _ = x.shape
        if positions is None:
            positions = (torch.arange(length) + 0)[None].expand(batch, -1)
        texts = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
        row = torch.arange(batch)[:, None, None, None]
        query, key = torch.arange(length)[:, None], torch.arange(length)
        same = texts[row, query] == texts[row, key]
        order = positions[row, key] <= positions[row, query]
        heads = x[:, None]
        return scaled_dot_product_attention(heads, heads, heads, attn_mask=same & order)[:, 0]


def wanted(x: Tensor, texts: Tensor) -> Tensor:
    """In float64, by the definition."""
    length = x.shape[1]
    kept = patterns.sliding_window(length, before=5, after=0).to_dense() & (
        texts[:, :, None] == texts[:, None]
    )
    double = x.double()
    scores = double @ double.mT / math.sqrt(x.shape[-1])
    return (torch.softmax(scores.masked_fill(~kept, -math.inf), -1) @ double).float()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_packed", [False, True])
def test_positions_that_only_count_leave_out_what_comes_later(is_packed: bool) -> None:
    x = torch.randn(2, 23, 8)
    texts = torch.zeros(2, 23, dtype=torch.long)
    inputs: tuple[Tensor, ...] = (x,)
    if is_packed:
        texts[0, 9:], texts[1, 20:] = 1, 1
        counted = torch.arange(23)
        inputs = (x, counted - torch.where(texts == 1, torch.tensor([[9], [20]]), 0))
    with options.override(tune_seconds=0):
        sparse = sparsify.apply(Packed().eval(), RECIPE, inputs, strict=True)
    assert ("B[" in sparse.report.regions[0].einsum) == is_packed
    torch.testing.assert_close(sparse(*inputs), wanted(x, texts), rtol=1e-5, atol=1e-5)


def padded(x: Tensor) -> Tensor:
    """The last three keys are padding, written into a mask of ones."""
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    mask[:, -3:] = False
    return mask[:, None]


def segmented(x: Tensor) -> Tensor:
    """Two texts, their numbers written into zeros."""
    texts = torch.zeros(x.shape[:2], dtype=torch.long)
    texts[:, 7:] = 1
    return texts[:, :, None] == texts[:, None]


def shifted(x: Tensor) -> Tensor:
    """Keys that are counted from the third one on."""
    keys = torch.arange(x.shape[1])
    keys[3:] += 4
    return (keys <= torch.arange(x.shape[1])[:, None])[None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mask", [padded, segmented, shifted])
def test_masks_that_are_written_into_stay_in_force(mask) -> None:
    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            heads = x[:, None]
            return scaled_dot_product_attention(heads, heads, heads, attn_mask=mask(x)[:, None])[:, 0]

    x = torch.randn(2, 23, 8)
    with options.override(tune_seconds=0):
        sparse = sparsify.apply(Written().eval(), RECIPE, (x,), strict=True)
    kept = patterns.sliding_window(23, before=5).to_dense() & mask(x)
    double = x.double()
    scores = (double @ double.mT / math.sqrt(8)).masked_fill(~kept, -math.inf)
    expected = torch.softmax(scores, -1).nan_to_num(0) @ double
    torch.testing.assert_close(sparse(x), expected.float(), rtol=1e-5, atol=1e-5)


def made(function) -> fx.Node:
    """The node of what a function of a tensor, [4, 6], returns."""
    exported = torch.export.export(_Module(function), (torch.zeros(4, 6),))
    return next(iter(exported.graph.output_node().args[0]))


class _Module(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "mode"),
    [
        (lambda x: torch.arange(x.shape[1]), -1),
        (lambda x: torch.arange(x.shape[1])[:, None].expand(-1, 3), -2),
        (lambda x: torch.arange(x.shape[1]).to(torch.int32).unsqueeze(0), -1),
        (lambda x: torch.arange(1)[None].expand(4, 6), None),
        (lambda x: torch.arange(300).to(torch.int8), None),
        (lambda x: torch.arange(x.shape[1]) + 1, None),
        (lambda x: torch.arange(1, 7), None),
        (lambda x: torch.arange(6).expand(4, 6)[torch.arange(4)[:, None], torch.arange(6)], -1),
        (lambda x: torch.arange(6).expand(4, 6)[torch.arange(4)[:, None], torch.tensor([3, 1])], None),
    ],
)
def test_what_is_counted(function, mode) -> None:
    node = made(function)
    assert counted_mode(node) == mode
    if mode is not None:
        value = function(torch.zeros(4, 6))
        counts = torch.arange(value.shape[mode], dtype=value.dtype)
        assert value.equal(counts.view(-1, *[1] * (-1 - mode)).expand(value.shape))


@pytest.mark.parametrize(
    ("function", "number"),
    [
        (lambda x: torch.ones(6, dtype=torch.bool)[None], 1),
        (lambda x: torch.arange(6).diff(), 1),
        (lambda x: torch.arange(6).diff(prepend=torch.arange(6)[:1] - 1), 1),
        (lambda x: torch.arange(6).diff(prepend=torch.arange(6)[:1] - 2), None),
        (lambda x: torch.arange(6).diff(prepend=torch.arange(6)[1:2] - 1), None),
        (lambda x: torch.arange(6).diff(n=2), None),
        (lambda x: (torch.arange(6).diff() != 1).cumsum(0), 0),
        (lambda x: torch.ones(6).cumsum(0), None),
        (lambda x: torch.zeros(6) == 1, 0),
        (lambda x: torch.zeros(6).eq(torch.zeros(1)), 1),
        (lambda x: x == x, None),
    ],
)
def test_what_is_one_number(function, number) -> None:
    assert constant(made(function)) == number
    if number is not None:
        assert (function(torch.zeros(4, 6)) == number).all()
