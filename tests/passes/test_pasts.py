"""Attention to keys of earlier calls that a call brings: it stays dense."""

import pytest
import torch
from torch import nn

from sparsify.errors import CaptureError
from sparsify.passes.apply import apply

WINDOW = {
    "schema": 1,
    "name": "window",
    "sparsify": [
        {"targets": ["op:scaled_dot_product_attention"], "mask": {"kind": "sliding_window", "before": 2}}
    ],
}


class Joined(nn.Module):
    """Keys of earlier calls before those of this one."""

    def forward(self, x, past):
        keys = torch.cat([past, x], -2)
        return nn.functional.scaled_dot_product_attention(x, keys, keys)


class Written(nn.Module):
    """Keys of this call written into a cache of fixed length."""

    def forward(self, x, past):
        past[:, :, -4:].copy_(x)
        return nn.functional.scaled_dot_product_attention(x, past, past)


class Prefixed(nn.Module):
    """Queries and keys behind a prefix."""

    def forward(self, x, past):
        whole = torch.cat([past, x], -2)
        return nn.functional.scaled_dot_product_attention(whole, whole, whole)


def example():
    return torch.rand(1, 2, 4, 8), torch.rand(1, 2, 12, 8)


@pytest.mark.parametrize("kind", [Joined, Written])
def test_keys_of_earlier_calls(kind):
    x, past = example()
    with pytest.warns(RuntimeWarning, match="where queries stand among keys of earlier calls"):
        sparse = apply(kind(), WINDOW, (x, past.clone()))
    assert sparse.report.dense and not sparse.report.regions
    torch.testing.assert_close(sparse(x, past.clone()), kind()(x, past.clone()))
    with pytest.raises(CaptureError, match=r"keys of earlier calls.*without a cache, or without strict"):
        apply(kind(), WINDOW, (x, past), strict=True)


def test_a_prefix_of_queries_too_is_no_past():
    x, past = example()
    sparse = apply(Prefixed(), WINDOW, (x, past))
    assert sparse.report.regions
    assert not torch.allclose(sparse(x, past), Prefixed()(x, past), atol=1e-3)
