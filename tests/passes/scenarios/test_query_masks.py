"""Masks that differ by query and not by key: a row that is masked as a whole stays masked."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import sparsify

MASK = {"kind": "bigbird", "block": 8, "random": 1, "global": 1}
RULE = {"targets": ["op:scaled_dot_product_attention"], "mask": MASK}
RECIPE = {"schema": 1, "name": "queries", "sparsify": [RULE]}


class Native(nn.Module):
    """Torch's operator."""

    def forward(self, q, k, v, mask):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Spelled(nn.Module):
    """The same by a softmax between two products."""

    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / 4 + mask
        return scores.softmax(-1) @ v


class Shifted(nn.Module):
    """Scores less their largest ones, which changes nothing."""

    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / 4
        scores = scores - scores.amax(-1, keepdim=True)
        return (scores + mask).softmax(-1) @ v


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", [Native, Spelled, Shifted])
@pytest.mark.parametrize("fill", [-torch.inf, torch.finfo(torch.float32).min, -3.0])
def test_rows_of_masked_queries(kind, fill):
    torch.manual_seed(0)
    given = [torch.randn(2, 3, 64, 16) for _ in range(3)]
    sparse = sparsify.apply(kind().eval(), RECIPE, (*given, torch.zeros(2, 1, 64, 1)))
    assert sparse.report.regions
    mask = torch.zeros(2, 1, 64, 1)
    mask[:, :, 40:] = fill
    found, expected = sparse(*given, mask), sparse.original(*given, mask)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
