"""The case studies of STen's paper, appendix A: an MLP from scratch, custom implementations; the page of its items."""

import copy
import re
from itertools import pairwise
from pathlib import Path

import pytest
import scipy.sparse
import torch
from torch import nn
from torch.nn import functional

import sparsify
from sparsify import Parts, recipe, sparsifiers
from sparsify.sparsification import registry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    for name in ("operators", "gradients"):
        monkeypatch.setattr(registry, name, {})
    monkeypatch.setattr(registry, "sparsifiers", [])


class SparseLinear(nn.Module):
    """Appendix A.2: a layer whose weight is drawn sparse and stored in CSC."""

    def __init__(self, inputs, outputs, sparsity, seed):
        super().__init__()
        dense = torch.randn(
            outputs, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        drawn = sparsifiers.RandomFraction(sparsity, seed=seed)
        self.weight = nn.Parameter(sparsify.sparsify(dense, drawn, "csc"))
        self.bias = nn.Parameter(torch.rand(outputs, dtype=torch.float64))
        self.linear = sparsify.sparsified(functional.linear, Parts(), Parts())

    def forward(self, input):
        return self.linear(input, self.weight, self.bias)


def test_an_mlp_from_scratch():
    """Results and gradients are those of dense layers with the same zeros; gradients lie on the patterns."""
    torch.manual_seed(0)
    sizes = [50, 40, 30, 20, 30, 10]
    layers = [SparseLinear(a, b, 0.8, n) for n, (a, b) in enumerate(pairwise(sizes))]
    model = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
    x = torch.randn(15, 50, dtype=torch.float64)
    weights = [layer.weight.detach().to_dense().requires_grad_() for layer in layers]
    want = x
    for n, (weight, layer) in enumerate(zip(weights, layers, strict=True)):
        want = functional.linear(want.relu() if n else want, weight, layer.bias.detach())
    found = model(x)
    torch.testing.assert_close(found, want)
    found.square().sum().backward()
    want.square().sum().backward()
    for weight, layer in zip(weights, layers, strict=True):
        assert layer.weight.grad.pattern.equals(layer.weight.pattern)
        torch.testing.assert_close(layer.weight.grad.to_dense(), torch.where(weight != 0, weight.grad, 0))


class MyRandomFraction:
    """Appendix A.3: a sparsifier that is its parameter alone."""

    def __init__(self, fraction):
        self.fraction = fraction


class MyCsc:
    """Appendix A.3: a format over scipy's arrays."""

    def __init__(self, data):
        self.data = data

    @staticmethod
    def from_dense(tensor):
        return MyCsc(scipy.sparse.csc_matrix(tensor.numpy()))

    def to_dense(self):
        return torch.from_numpy(self.data.toarray())


def test_custom_implementations():
    """d = (a + b) c, the sum and its gradient in a format of a user by a sparsifier of a user."""
    sparsify.register_format(MyCsc)
    kept = [torch.rand(10, 20, generator=torch.Generator().manual_seed(n)) >= 0.5 for n in range(2)]
    masks = iter(kept)
    seen = []

    @sparsify.register_sparsifier(sparsifier=MyRandomFraction, input=torch.Tensor, output=MyCsc)
    def random_fraction(sparsifier, tensor):
        return MyCsc.from_dense(torch.where(next(masks), tensor.detach(), 0))

    @sparsify.register_operator(
        torch.add,
        inputs=(torch.Tensor, torch.Tensor, None, None),
        outputs=[(sparsifiers.KeepAll, torch.Tensor)],
    )
    def add(ctx, inputs, output_sparsifiers):
        return torch.add(inputs[0].detach(), inputs[1].detach())

    @sparsify.register_backward(torch.add, inputs=(torch.Tensor, torch.Tensor, None, None))
    def add_backward(ctx, grad_outputs, input_sparsifiers):
        seen.append(type(grad_outputs[0]))
        return grad_outputs[0], grad_outputs[0], None, None

    @sparsify.register_operator(
        torch.mm, inputs=(MyCsc, torch.Tensor), outputs=[(sparsifiers.KeepAll, torch.Tensor)]
    )
    def mm(ctx, inputs, output_sparsifiers):
        ctx.save_for_backward(*inputs)
        return torch.from_numpy(inputs[0].wrapped_tensor.data @ inputs[1].detach().numpy())

    @sparsify.register_backward(torch.mm, inputs=(MyCsc, torch.Tensor), grad_outputs=(torch.Tensor,))
    def mm_backward(ctx, grad_outputs, input_sparsifiers):
        left, right = ctx.saved_tensors
        return grad_outputs[0] @ right.T, torch.from_numpy(
            left.wrapped_tensor.data.T @ grad_outputs[0].numpy()
        )

    a, b, c = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((10, 20), (10, 20), (20, 30))
    )
    gradient = torch.randn(10, 30, dtype=torch.float64)
    parts = (sparsifiers.KeepAll(), torch.Tensor, MyRandomFraction(0.5), MyCsc)
    with sparsify.strict():
        d = torch.mm(sparsify.sparsified(torch.add, parts, parts)(a, b), c)
        d.backward(gradient)
    total = torch.where(kept[0], a + b, 0).detach()
    torch.testing.assert_close(d.detach(), total @ c.detach())
    torch.testing.assert_close(c.grad, total.T @ gradient)
    want = torch.where(kept[0] & kept[1], gradient @ c.detach().T, 0)
    torch.testing.assert_close(a.grad, want)
    torch.testing.assert_close(b.grad, want)
    assert len(seen) == 1


def test_a_layer_of_bert():
    """Appendix A.1: weights by magnitude in CSR, a random tenth of what GELU gives, by the page's recipe."""
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.bert.modeling_bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_attention_heads=4, attn_implementation="eager"
    )
    layer = modeling.BertLayer(config).double().eval()
    page = (ROOT / "docs" / "sten.md").read_text(encoding="utf-8")
    given = recipe.loads(page.split("```yaml\n")[1].split("```")[0])
    x = torch.randn(2, 9, 32, dtype=torch.float64, requires_grad=True)
    found = sparsify.apply(layer, given, (x,))
    assert [len(entry.matched) for entry in found.report.rules] == [6, 1]

    dense = copy.deepcopy(layer)
    with torch.no_grad():
        for weight in dense.parameters():
            if weight.dim() == 2:
                weight.copy_(sparsifiers.ScalarFraction(0.9)(weight, "csr").to_dense())
    kept = sparsifiers.RandomFraction(0.9)
    act = dense.intermediate.intermediate_act_fn
    act.register_forward_hook(lambda _, __, y: torch.where(kept.mask(y), y, 0))
    want, result = (out[0] if isinstance(out := model(x), tuple) else out for model in (dense, found))
    torch.testing.assert_close(result, want)
    gradients = [torch.autograd.grad(y.sin().sum(), x)[0] for y in (result, want)]
    torch.testing.assert_close(*gradients)
    assert found.report.regions


def test_each_item_of_the_page_has_a_test():
    """`docs/sten.md` names tests and public names that there are."""
    page = (ROOT / "docs" / "sten.md").read_text(encoding="utf-8")
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(tests) > 15
    for path, name in tests:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {name}"
    for name in re.findall(r"`sparsify\.(\w+)", page):
        assert hasattr(sparsify, name), name
    for name in re.findall(r"`sparsifiers\.(\w+)", page):
        assert hasattr(sparsifiers, name), name
