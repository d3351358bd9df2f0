"""The listings of STen's paper: section 3 and the case studies of appendix A, with our names."""

import copy
from itertools import pairwise
from pathlib import Path

import pytest
import scipy.sparse
import torch
from torch import nn
from torch.nn import functional

import sparsify
from sparsify import Parts, recipe, sparsifiers
from sparsify.errors import UnsupportedOperatorError
from sparsify.sparsification.registered import dispatch, registry

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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(3)
def test_a_layer_of_bert():
    """Appendix A.1: weights by magnitude in CSR, a random tenth of what GELU gives, by the page's recipe."""
    layer = small_layer().double()
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


def test_the_listing_of_section_3():
    """An implementation of `add` for CSR and COO that applies a random fraction itself, called by its layouts."""

    @sparsify.register_operator(
        torch.add,
        inputs=("csr", "coo", None, None),
        outputs=[(sparsifiers.RandomFraction, "coo")],
    )
    def sparse_add(ctx, inputs, output_sparsifiers):
        left, right, alpha, _ = inputs
        (drawn,) = output_sparsifiers
        assert alpha in (None, 1)
        return drawn(left.to_dense() + right.to_dense(), "coo")

    a, b = (torch.randn(10, 20, generator=torch.Generator().manual_seed(n)) for n in range(2))
    drawn = sparsifiers.RandomFraction(0.5, seed=4)
    add = sparsify.sparsified(torch.add, Parts(drawn, "coo", sparsifiers.KeepAll(), "coo"))
    with sparsify.strict():
        found = add(sparsify.tensor(a, "csr"), sparsify.tensor(b, "coo"))
    assert str(found.format) == "coordinate, coordinate"
    torch.testing.assert_close(found.to_dense(), torch.where(drawn.mask(a + b), a + b, 0))


def small_layer():
    """A layer of BERT, small."""
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.bert.modeling_bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, intermediate_size=64, num_attention_heads=4, attn_implementation="eager"
    )
    return modeling.BertLayer(config).eval()


@pytest.mark.sampled(2)
def test_the_builder_of_appendix_a1():
    """Its names of weights, the name of the result of GELU, and the rules that it makes."""
    model = small_layer()
    weights = [f"{name}.weight" for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    assert weights == [
        "attention.self.query.weight", "attention.self.key.weight",
        "attention.self.value.weight", "attention.output.dense.weight",
        "intermediate.dense.weight", "output.dense.weight",
    ]  # fmt: skip
    names = {node.op: node.name for node in torch.fx.symbolic_trace(model.intermediate).graph.nodes}
    assert names["call_function"] == "gelu"
    rules = [
        {
            "targets": [f"param:{name}"],
            "prune": {"method": "magnitude", "sparsity": 0.9},
            "format": "csr",
        }
        for name in weights
    ]
    rules.append(
        {
            "targets": ["node:intermediate.gelu"],
            "inline": sparsifiers.RandomFraction(0.9),
            "temporary": "coo",
            "external": sparsifiers.KeepAll(),
            "format": "coo",
        }
    )
    input = torch.rand(2, 9, 32)
    sparse_model = sparsify.apply(model, {"schema": 1, "name": "builder", "sparsify": rules}, (input,))
    assert [len(entry.matched) for entry in sparse_model.report.rules] == [1] * 7
    output = sparse_model(input)
    assert (output[0] if isinstance(output, tuple) else output).shape == input.shape


def test_the_messages_of_appendix_a3(monkeypatch):
    """Before anything is registered, each operator says once that it computes densely, and what to register."""
    monkeypatch.setattr(dispatch, "_warned", set())
    sparsify.register_format(MyCsc)
    a, b = torch.randn(10, 20), torch.randn(10, 20)
    c = torch.randn(20, 30, requires_grad=True)
    parts = (sparsifiers.KeepAll(), torch.Tensor, sparsifiers.RandomFraction(0.5, seed=1), MyCsc)
    add = sparsify.sparsified(torch.add, parts, parts)
    with pytest.warns(RuntimeWarning, match=r"torch.mm of \(MyCsc, torch.Tensor\) has no implementation"):
        d = torch.mm(add(a, b), c)
    kept = parts[2].mask(a + b)
    torch.testing.assert_close(d, torch.where(kept, a + b, 0) @ c)
    with (
        pytest.raises(UnsupportedOperatorError, match=r"@sparsify.register_operator\(torch.mm"),
        sparsify.strict(),
    ):
        torch.mm(add(a, b), c)

    @sparsify.register_operator(torch.mm, inputs=(MyCsc, torch.Tensor))
    def mm(ctx, inputs, output_sparsifiers):
        return torch.from_numpy(inputs[0].wrapped_tensor.data @ inputs[1].detach().numpy())

    d = torch.mm(add(a, b), c)
    with pytest.raises(UnsupportedOperatorError, match=r"@sparsify.register_backward\(torch.mm"):
        d.backward(torch.randn(10, 30))
