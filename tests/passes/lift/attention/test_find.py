"""Attention under the patterns of rules: found, masked, lifted to one program; against dense attention in float64."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import sparsify
from sparsify import options, patterns
from sparsify.errors import CaptureError, RecipeError
from sparsify.passes.graph.node_info import call_of, info

HEADS = 2
WIDTH = 16
# Weighted means of normal numbers in float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def untimed():
    """Schedules are not timed here."""
    with options.override(tune_seconds=0):
        yield


class Attention(nn.Module):
    """One layer, with torch's operator or spelled out."""

    def __init__(self, way: str = "operator", causal: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.way, self.causal = way, causal

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        y = x if y is None else y
        heads = [self.heads(layer(z)) for layer, z in ((self.q, x), (self.k, y), (self.v, y))]
        result = getattr(self, self.way)(*heads, mask)
        return result.transpose(1, 2).reshape(*x.shape[:2], WIDTH)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)

    def operator(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)

    def spelled(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores + mask
        return torch.dropout(torch.softmax(scores, dim=-1), 0.1, self.training) @ v

    def filled(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = (q * q.shape[-1] ** -0.5) @ k.permute(0, 1, 3, 2)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return torch.softmax(scores, dim=-1) @ v

    def shifted(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Windows of several pictures are the batch; each window of a picture has a mask of its own."""
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + self.q.weight[: q.shape[2], :1]
        if mask is not None:
            parts = scores.view(q.shape[0] // len(mask), len(mask), *scores.shape[1:])
            scores = (parts + mask[None, :, None]).view(-1, *scores.shape[1:])
        return torch.softmax(scores, dim=-1) @ v

    def weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        found = torch.softmax(q @ k.transpose(-1, -2), dim=-1)
        return found @ v + found.sum(-1, keepdim=True)


def recipe(kind: str = "bigbird", **numbers: Any) -> dict[str, Any]:
    numbers = numbers or {"block": 4, "random": 1, "global": 1}
    rule = {"targets": ["op:scaled_dot_product_attention"], "mask": {"kind": kind, **numbers}}
    return {"schema": 1, "name": "masked", "sparsify": [rule]}


def expected(
    model: Attention, pattern: Tensor, x: Tensor, y: Tensor | None = None, mask: Any = None
) -> Tensor:
    """The result in float64 by torch alone."""
    double = Attention(causal=False).double()
    double.load_state_dict(model.state_dict())
    keep = pattern
    if mask is not None and mask.dtype == torch.bool:
        keep = pattern & mask
    elif mask is not None:
        keep = mask.double().masked_fill(~pattern, -math.inf)
    if keep.dtype == torch.bool and model.causal:
        keep = keep & torch.ones(keep.shape[-2:], dtype=torch.bool).tril()
    return double(x.double(), None if y is None else y.double(), keep).float()


def applied(model: Attention, given: dict[str, Any], *inputs: Any, **how: Any) -> Any:
    sparse = sparsify.apply(model.eval(), given, inputs, strict=True, **how)
    (region,) = sparse.report.regions
    assert any(name.startswith(("scaled_dot_product_attention", "softmax")) for name in region.nodes)
    assert not sparse.report.dense
    return sparse


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["operator", "spelled", "filled"])
def test_ways_to_write_attention(way):
    model, x = Attention(way), torch.randn(2, 30, WIDTH)
    sparse = applied(model, recipe(), x)
    for length in (30, 17, 40):  # one kernel for all lengths
        x = torch.randn(3, length, WIDTH)
        pattern = patterns.bigbird(length, block=4, random=1, global_=1).to_dense()
        torch.testing.assert_close(sparse(x), expected(model, pattern, x), **CLOSE)
    assert len(sparse.variants) == 1
    kernel = next(call_of(node) for node in sparse.graph.nodes if info(node).call is not None).kernel
    assert {extent for _, extent in kernel.program.extents} == {HEADS, WIDTH // HEADS}  # no length


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("way", "shape", "kind"),
    [
        ("operator", (2, 1, 1, 24), "bool"),
        ("operator", (24, 24), "float"),
        ("operator", (2, HEADS, 24, 24), "float"),
        ("spelled", (1, HEADS, 24, 24), "float"),
        ("filled", (2, 1, 24, 24), "bool"),
    ],
)
def test_the_models_own_masks(way, shape, kind):
    model, x = Attention(way), torch.randn(2, 24, WIDTH)
    mask = torch.randn(shape) if kind == "float" else torch.rand(shape) < 0.6
    sparse = applied(model, recipe("sliding_window", before=5, block=8), x, None, mask)
    pattern = patterns.sliding_window(24, before=5).to_dense()
    torch.testing.assert_close(sparse(x, None, mask), expected(model, pattern, x, None, mask), **CLOSE)


class Padded(Attention):
    """The mask is built for each pair of query and key, as transformers does."""

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        queries, keys = (torch.arange(x.shape[1])[None, None].unsqueeze(mode) for mode in (3, 2))
        order = keys <= queries if self.causal else queries + 0 >= 0
        allowed = torch.ones((), dtype=torch.bool) & order
        heads = [self.heads(layer(x)) for layer in (self.q, self.k, self.v)]
        mask = (allowed & padding[:, None, None, :].bool()).expand(len(x), -1, x.shape[1], x.shape[1])
        result = scaled_dot_product_attention(*heads, attn_mask=mask)
        return result.transpose(1, 2).reshape(x.shape)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_padding_are_kept_once_for_each_key(causal):
    model, x = Padded(causal=causal), torch.randn(2, 24, WIDTH)
    padding = torch.arange(24) < torch.tensor([24, 17])[:, None]
    sparse = applied(model, recipe("bigbird", block=4, random=1), x, padding.long())
    assert "where(B[b,j], " in sparse.report.regions[0].einsum
    pattern = patterns.bigbird(24, block=4, random=1, causal=causal).to_dense()
    reference = Attention()
    reference.load_state_dict(model.state_dict())
    wanted = expected(reference, pattern, x, None, padding[:, None, None])
    torch.testing.assert_close(sparse(x, padding.long()), wanted, **CLOSE)


@pytest.mark.sampled(3)
def test_masks_of_windows():
    model, x, mask = Attention("shifted"), torch.randn(6, 12, WIDTH), torch.randn(3, 12, 12)
    sparse = applied(model, recipe("sliding_window", before=3, block=4), x, None, mask)
    bias = model.q.weight[:12, :1] + patterns.sliding_window(12, before=3).to_dense().log()
    for batch in (6, 9):
        x = torch.randn(batch, 12, WIDTH)
        own = (mask + bias).repeat(batch // 3, 1, 1)[:, None]
        wanted = expected(Attention("operator"), torch.ones(12, 12, dtype=torch.bool), x, None, own)
        torch.testing.assert_close(sparse(x, None, mask), wanted, **CLOSE)
    assert len(sparse.variants) == 1


@pytest.mark.sampled(2)
def test_patterns_beside_sparse_weights():
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Attention() for _ in range(2))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            for layer in self.layers:  # both with the same mask
                x = layer(x, None, mask[:, None, None])
            return x

    model, x, mask = Layers().eval(), torch.randn(2, 24, WIDTH), torch.rand(2, 24) < 0.8
    given = recipe()
    prune = {"method": "magnitude", "sparsity": 0.5}
    given["sparsify"].append(
        {"targets": ["param:*weight"], "role": "weight", "prune": prune, "format": "csr"}
    )
    sparse = sparsify.apply(model, given, (x, mask), strict=True)
    assert len(sparse.report.regions) == 8
    model.load_state_dict(sparse.state_dict())
    pattern = patterns.bigbird(24, block=4, random=1, global_=1).to_dense()
    wanted = x
    for layer in model.layers:
        wanted = expected(layer, pattern, wanted, None, mask[:, None, None])
    torch.testing.assert_close(sparse(x, mask), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_models_in_halves(dtype):
    """Scores, weights and sums are float32: the layers around attention round as torch's do."""
    model, x = Attention().to(dtype), torch.randn(2, 40, WIDTH).to(dtype)
    sparse = applied(model, recipe(), x)
    pattern = patterns.bigbird(40, block=4, random=1, global_=1).to_dense()
    wanted = expected(model, pattern, x)
    found = sparse(x)
    assert found.dtype == dtype
    assert (found.float() - wanted).abs().max() <= 2 * torch.finfo(dtype).eps * wanted.abs().max()
    model.train()
    sparse.train()
    sparse(x).sum().backward()
    double = Attention().double()
    double.load_state_dict(model.state_dict())
    double(x.double(), None, pattern).sum().backward()
    gradients = {name: parameter.grad.double() for name, parameter in sparse.named_parameters()}
    exact = {name: parameter.grad for name, parameter in double.named_parameters()}
    # That of a key's bias is nothing: what it adds to all scores of a row cancels.
    largest = max(float(value.abs().max()) for value in exact.values())
    assert gradients.keys() == exact.keys()
    for name, value in exact.items():
        assert (gradients[name] - value).abs().max() <= 4 * torch.finfo(dtype).eps * largest, name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shared", ["all", "keys and values", "queries and keys"])
def test_operands_that_are_one_tensor(shared):
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            one, other = self.layer(x), x.sin()
            value = other if shared == "queries and keys" else one
            query = other if shared == "keys and values" else one
            return scaled_dot_product_attention(query, one, value, attn_mask=mask)

    model, x = Plain(), torch.randn(2, 3, 24, WIDTH)
    sparse = applied(model, recipe("sliding_window", before=3, block=4), x)
    pattern = patterns.sliding_window(24, before=3).to_dense()
    torch.testing.assert_close(sparse(x), model(x, pattern), **CLOSE)
    model.train()
    sparse.train()
    wanted = torch.autograd.grad(model(x, pattern).square().sum(), list(model.parameters()))
    found = torch.autograd.grad(sparse(x).square().sum(), list(sparse.parameters()))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-3)


def test_queries_without_keys():
    model, x = Attention(), torch.randn(2, 24, WIDTH)
    mask = torch.rand(2, 1, 24, 24) < 0.5
    mask[0, 0, 3:7] = False
    sparse = applied(model, recipe("sliding_window", before=2, block=4), x, None, mask)
    found = sparse(x, None, mask)
    assert bool((found[0, 3:7] == 0).all())
    pattern = patterns.sliding_window(24, before=2).to_dense()
    torch.testing.assert_close(found, expected(model, pattern, x, None, mask), **CLOSE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "numbers"), [("bigbird", {"block": 8, "random": 1}), ("causal", {"block": 8})]
)
def test_causal_attention(kind, numbers):
    model, x = Attention(causal=True), torch.randn(1, 40, WIDTH)
    sparse = applied(model, recipe(kind, **numbers), x)
    pattern = (
        patterns.bigbird(40, block=8, random=1, causal=True) if kind == "bigbird" else patterns.causal(40)
    )
    torch.testing.assert_close(sparse(x), expected(model, pattern.to_dense(), x), **CLOSE)


@pytest.mark.sampled(2)
def test_a_pattern_for_each_head():
    model, x = Attention(), torch.randn(2, 40, WIDTH)
    sparse = applied(model, recipe(block=8, random=1, heads=HEADS, seed=3), x)
    pattern = patterns.bigbird(40, block=8, random=1, heads=HEADS, seed=3).to_dense()
    torch.testing.assert_close(sparse(x), expected(model, pattern, x), **CLOSE)


def test_other_keys_than_queries():
    model, x, y = Attention(), torch.randn(2, 24, WIDTH), torch.randn(2, 37, WIDTH)
    sparse = applied(model, recipe("longformer", window=6, **{"global": 2}), x, y)
    pattern = patterns.longformer(24, 37, window=6, global_=2).to_dense()
    torch.testing.assert_close(sparse(x, y), expected(model, pattern, x, y), **CLOSE)


def test_fixed_shapes():
    model, x = Attention(), torch.randn(2, 24, WIDTH)
    sparse = applied(model, recipe(), x, dynamic=())
    pattern = patterns.bigbird(24, block=4, random=1, global_=1).to_dense()
    torch.testing.assert_close(sparse(x), expected(model, pattern, x), **CLOSE)


@pytest.mark.sampled(2)
def test_finite_fills_count_where_all_keys_are_masked():
    class Finite(Attention):
        def filled(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            scores = (q @ k.transpose(-1, -2)).masked_fill(self.q.weight[:1, :1] < 9, -1e9)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return torch.softmax(scores, dim=-1) @ v

    model, x = Finite("filled"), torch.randn(2, 24, WIDTH)
    sparse = applied(model, recipe("sliding_window", before=5, block=8), x)
    double = copy.deepcopy(model).double()
    pattern = patterns.sliding_window(24, before=5).to_dense()
    torch.testing.assert_close(sparse(x), double(x.double(), None, pattern).float(), **CLOSE)


def test_weights_that_are_read_stay():
    with pytest.raises(RecipeError, match="matches nothing"):
        sparsify.apply(Attention("weights").eval(), recipe(), (torch.randn(2, 24, WIDTH),))


def test_without_rules_nothing_is_joined():
    sparse = sparsify.apply(
        Attention("spelled").eval(),
        {"schema": 1, "name": "none", "sparsify": []},
        (torch.randn(2, 24, WIDTH),),
    )
    assert not sparse.report.regions


def test_the_dense_model_has_the_pattern_too():
    model, x = Attention(), torch.randn(2, 24, WIDTH)
    sparse = applied(model, recipe("sliding_window", before=2), x)
    torch.testing.assert_close(copy.deepcopy(sparse).original(x), sparse.original(x))
    pattern = patterns.sliding_window(24, before=2).to_dense()
    wanted = expected(model, pattern, x)
    torch.testing.assert_close(sparse.original(x), wanted, **CLOSE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(sparse(x).float(), wanted, rtol=0.1, atol=0.1)


def test_a_model_that_cannot_be_captured_does_not_run_unmasked():
    class Branches(Attention):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if bool(x.sum() > 0) else -x)

    with pytest.warns(RuntimeWarning, match="cannot"):
        sparse = sparsify.apply(Branches().eval(), recipe(), (torch.randn(2, 24, WIDTH),))
    with pytest.raises(CaptureError, match="cannot run with the masks of its recipe"):
        sparse(torch.randn(2, 24, WIDTH))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"kind": "bigbird", "blok": 3}, "the mask bigbird has no 'blok'; did you mean 'block'"),
        ({"kind": "bigbird", "block": "wide"}, "block='wide'; a whole number"),
        ({"kind": "from_file"}, "the mask from_file needs 'path'"),
        ({"kind": "spiral"}, "spiral"),
    ],
)
def test_masks_that_are_none(mask, message):
    given = recipe()
    given["sparsify"][0]["mask"] = mask
    with pytest.raises(RecipeError, match=message):
        sparsify.apply(Attention().eval(), given, (torch.randn(2, 24, WIDTH),))


def test_draws_follow_the_seed_of_the_recipe(tmp_path):
    model, x = Attention(), torch.randn(1, 64, WIDTH)
    given = recipe(block=4, random=1, **{"global": 0})
    first, second = (applied(model, {**given, "seed": seed}, x)(x) for seed in (1, 2))
    pattern = patterns.bigbird(64, block=4, random=1, global_=0, seed=2).to_dense()
    torch.testing.assert_close(second, expected(model, pattern, x), **CLOSE)
    assert not torch.allclose(first, second)


@pytest.mark.filterwarnings("ignore:.*gradients of sparse regions are computed densely")
def test_no_gradient_passes_a_block_without_gradients():
    class Detached(Attention):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                scale = self.q(x).sigmoid()
            return super().forward(x * scale)

    model, x = Detached(), torch.randn(2, 24, WIDTH)
    sparse = sparsify.apply(model.eval(), recipe(), (x,))
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    sparse(inputs[0]).sum().backward()
    sparse.original(inputs[1]).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, **CLOSE)
    scale = model.q(x).sigmoid().detach()
    again = x.clone().requires_grad_()
    expected(
        model, patterns.bigbird(24, block=4, random=1, global_=1).to_dense(), again * scale
    ).sum().backward()
    torch.testing.assert_close(inputs[0].grad, again.grad, rtol=1e-4, atol=1e-4)
