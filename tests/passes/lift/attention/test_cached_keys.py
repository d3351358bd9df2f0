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


class Hidden(nn.Module):
    """Rows of earlier calls before those of this one, and keys made of both."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, past):
        keys = self.key(torch.cat([past, x], -2))
        return nn.functional.scaled_dot_product_attention(self.query(x), keys, keys)


class Stacked(nn.Module):
    """Two layers, whose keys of earlier calls are one input."""

    def forward(self, x, past):
        for layer in range(2):
            keys = torch.cat([past[:, layer, None], x[:, :1]], -2)
            x = x[:, :1] + nn.functional.scaled_dot_product_attention(x[:, :1], keys, keys)
        return x


class Filled(nn.Module):
    """Keys of this call written into a cache that is the model's own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.rand(1, 2, 12, 8))

    def forward(self, x, at):
        self.cache.index_copy_(2, at, x)
        return nn.functional.scaled_dot_product_attention(x, self.cache, self.cache)


class Made(nn.Module):
    """Attention of `x` to keys that a function makes of it and a second input."""

    def __init__(self, make):
        super().__init__()
        self.make = make
        self.null = nn.Parameter(torch.rand(1, 2, 1, 8))

    def forward(self, x, other):
        keys = self.make(self, x, other)
        return nn.functional.scaled_dot_product_attention(x, keys, keys)


def turned(keys):
    """Keys with their halves exchanged, as rotations have them."""
    return keys * 0.3 + torch.cat([-keys[..., 4:], keys[..., :4]], -1) * 0.7


def spread(x):
    """As many rows as a cache has, the last of them those of `x`."""
    return nn.functional.pad(x, (0, 0, 8, 0))


OLD = (torch.arange(12) < 8)[None, None, :, None]
INTO = torch.arange(8, 12)[None, None, :, None].expand(1, 2, 4, 8)
AT = (torch.zeros(1, 1, 1, dtype=torch.long), torch.arange(2)[None, :, None], torch.arange(8, 12)[None, None])
JOINS = {
    "another_name": lambda model, x, past: torch.concatenate([past, x], -2),
    "turned": lambda model, x, past: turned(torch.cat([past, x], -2)),
    "normalized": lambda model, x, past: nn.functional.layer_norm(torch.cat([past, x], -2), (8,)),
    "repeated": lambda model, x, past: torch.cat([past, x], -2).repeat(2, 1, 1, 1).chunk(2, 0)[0],
    "index_put": lambda model, x, past: past.index_put(AT, x),
    "scatter": lambda model, x, past: past.scatter(2, INTO, x),
    "where": lambda model, x, past: torch.where(OLD, past, spread(x)),
    "where_one": lambda model, x, past: torch.where(OLD, past, x[:, :, :1]),
    "blended": lambda model, x, past: past * OLD + spread(x) * ~OLD,
}
OTHERS = {
    "memory": lambda model, x, memory: turned(memory),
    "null": lambda model, x, memory: torch.cat([model.null, memory], -2),
    "moved": lambda model, x, memory: memory + x.mean(-2, keepdim=True),
    "as_many": lambda model, x, other: torch.where(x > 0.5, x, other[:, :, :4]),
}


class Prefixed(nn.Module):
    """Queries and keys behind a prefix."""

    def forward(self, x, past):
        whole = torch.cat([past, x], -2)
        return nn.functional.scaled_dot_product_attention(whole, whole, whole)


def example():
    return torch.rand(1, 2, 4, 8), torch.rand(1, 2, 12, 8)


@pytest.mark.parametrize("kind", [Joined, Written, Hidden, Stacked])
def test_keys_of_earlier_calls(kind):
    x, past = example()
    with pytest.warns(RuntimeWarning, match="where queries stand among keys of earlier calls"):
        sparse = apply(model := kind(), WINDOW, (x, past.clone()))
    assert sparse.report.dense and not sparse.report.regions
    torch.testing.assert_close(sparse(x, past.clone()), model(x, past.clone()))
    with pytest.raises(CaptureError, match=r"keys of earlier calls.*without a cache, or without strict"):
        apply(model, WINDOW, (x, past), strict=True)


@pytest.mark.parametrize("make", JOINS.values(), ids=JOINS)
def test_keys_of_earlier_calls_behind_any_join(make):
    x, past = example()
    with pytest.warns(RuntimeWarning, match="where queries stand among keys of earlier calls"):
        sparse = apply(model := Made(make), WINDOW, (x, past))
    assert sparse.report.dense and not sparse.report.regions
    torch.testing.assert_close(sparse(x, past), model(x, past))


def test_keys_in_a_cache_of_the_model():
    x, at = example()[0], torch.arange(8, 12)
    with pytest.warns(RuntimeWarning, match="where queries stand among keys of earlier calls"):
        sparse = apply(model := Filled(), WINDOW, (x, at))
    torch.testing.assert_close(sparse(x, at), model(x, at))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_keys_of_another_input_are_no_past(make):
    sparse = apply(Made(make), WINDOW, example(), strict=True)
    assert sparse.report.regions and not sparse.report.dense


def test_a_prefix_of_queries_too_is_no_past():
    x, past = example()
    sparse = apply(Prefixed(), WINDOW, (x, past))
    assert sparse.report.regions
    assert not torch.allclose(sparse(x, past), Prefixed()(x, past), atol=1e-3)
