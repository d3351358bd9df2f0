"""Heads of queries that share keys and values: one program that reads these once; against torch in float64."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import sparsify
from sparsify import options, patterns

HEADS, KEPT, WIDTH, LENGTH = 6, 2, 8, 17


class Grouped(nn.Module):
    """Six heads of queries over two of keys and values, in the ways that models write it."""

    def __init__(self, way: str, kept: int = KEPT) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH * heads) for heads in (HEADS, kept, kept))
        self.way = way

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for layer in self.layers)
        return getattr(self, self.way)(q, k, v, mask)

    def operator(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def repeated(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def expanded(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        batch, heads, length, width = k.shape
        shape = batch, heads, q.shape[1] // heads, length, width
        k, v = (part[:, :, None].expand(shape).reshape(batch, -1, length, width) for part in (k, v))
        scores = q @ k.mT * width**-0.5
        return torch.softmax(scores if mask is None else scores + mask, -1) @ v

    def tiled(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Heads take turns: no groups."""
        batch, heads, length, width = k.shape
        shape = batch, q.shape[1] // heads, heads, length, width
        k, v = (part[:, None].expand(shape).reshape(batch, -1, length, width) for part in (k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def applied(model: Grouped, inputs: tuple[Tensor, ...], **numbers: int) -> sparsify.SparseModule:
    rule = {
        "targets": ["op:scaled_dot_product_attention"],
        "mask": {"kind": "bigbird", "block": 4, "global": 1, "random": 1, **numbers},
    }
    with options.override(tune_seconds=0):
        recipe = {"schema": 1, "name": "grouped", "sparsify": [rule]}
        return sparsify.apply(model.eval(), recipe, inputs, strict=True, trainable=True)


def check(sparse: sparsify.SparseModule, model: Grouped, inputs: tuple[Tensor, ...], heads: int = 1) -> None:
    """Outputs and gradients."""
    pattern = patterns.bigbird(LENGTH, block=4, global_=1, random=1, heads=heads).to_dense()
    mask = inputs[1] if len(inputs) > 1 else torch.zeros(())
    full = torch.zeros(pattern.shape).masked_fill(~pattern, -torch.inf) + mask
    double = Grouped(model.way, model.layers[1].out_features // WIDTH).double()
    double.load_state_dict(model.state_dict())
    wanted, found = double(inputs[0].double(), full.double()), sparse(*inputs)
    weights = torch.randn(found.shape)
    (found * weights).sum().backward()
    (wanted * weights.double()).sum().backward()
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-5)
    gradients = dict(sparse.named_parameters())
    for name, parameter in double.named_parameters():
        torch.testing.assert_close(gradients[name].grad, parameter.grad.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("way", "shape"),
    [
        ("operator", (1, 1, LENGTH, LENGTH)),
        ("operator", (HEADS, LENGTH, LENGTH)),
        ("repeated", None),
        ("expanded", (2, HEADS, 1, LENGTH)),
    ],
)
def test_groups_share_keys_and_values(way: str, shape: tuple[int, ...] | None) -> None:
    model, inputs = Grouped(way), (torch.randn(2, LENGTH, WIDTH),)
    if shape is not None:
        inputs = (*inputs, torch.randn(shape))
    sparse = applied(model, inputs)
    einsum = sparse.report.regions[0].einsum
    assert "K[a,b,j,k]" in einsum
    assert "V[a,b,j,l]" in einsum
    check(sparse, model, inputs)


def test_one_head_of_keys_for_all() -> None:
    model, inputs = Grouped("operator", 1), (torch.randn(2, LENGTH, WIDTH),)
    sparse = applied(model, inputs)
    assert "K[b,j,k]" in sparse.report.regions[0].einsum
    check(sparse, model, inputs)


def test_heads_that_take_turns_are_no_groups() -> None:
    model, inputs = Grouped("tiled"), (torch.randn(2, LENGTH, WIDTH),)
    sparse = applied(model, inputs)
    assert "K[b,h,j,k]" in sparse.report.regions[0].einsum
    check(sparse, model, inputs)


@pytest.mark.parametrize("way", ["operator", "repeated"])
def test_a_pattern_for_each_head_reads_keys_by_head(way: str) -> None:
    model, inputs = Grouped(way), (torch.randn(2, LENGTH, WIDTH),)
    sparse = applied(model, inputs, heads=HEADS)
    assert "M[h,i,j]" in sparse.report.regions[0].einsum
    check(sparse, model, inputs, HEADS)


class Given(nn.Module):
    """Attention whose heads are extents of its inputs."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_heads_that_may_vary_stay_dense_and_say_how_not_to() -> None:
    inputs = tuple(torch.randn(2, heads, LENGTH, WIDTH) for heads in (HEADS, KEPT, KEPT))
    rule = {"targets": ["op:scaled_dot_product_attention"], "mask": {"kind": "sliding_window", "before": 2}}
    recipe = {"schema": 1, "name": "grouped", "sparsify": [rule]}
    with options.override(tune_seconds=0):
        sparse = sparsify.apply(Given(), recipe, inputs)
        (entry,) = sparse.report.dense
        assert "heads and keys" in entry.reason and "dynamic=()" in entry.reason
        lengths = {"q": (0, 2), "k": (0, 2), "v": (0, 2)}
        for dynamic in ((), lengths):
            assert len(sparsify.apply(Given(), recipe, inputs, dynamic=dynamic).report.regions) == 1
