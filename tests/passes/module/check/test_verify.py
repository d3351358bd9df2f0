"""Comparing: differences beyond the limits raise, those within are measured."""

import copy
from functools import partial

import pytest
import torch
from graph_models import MESSAGES, TwoLayers, graph
from torch import nn
from torch.nn import functional as F

import sparsify
from sparsify.errors import VerificationError
from sparsify.passes.apply import apply
from sparsify.passes.module.check.verify import compare, naming_values, rounding_error
from sparsify.recipe import Verify

LIMITS = Verify(rtol=1e-4, atol=1e-5)


def test_the_largest_difference_is_returned():
    x = torch.arange(4.0)
    assert compare(lambda: x, lambda: x + 1e-5, LIMITS) == pytest.approx(1e-5, rel=0.1)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (torch.tensor([0.0, 1.1]), "differs from the dense model's by 0.1"),
        (torch.tensor([0.0, float("nan")]), "differs"),
        (torch.zeros(3), "is torch.float32 \\[3\\], densely torch.float32 \\[2\\]"),
        ([torch.zeros(2)], "the outputs are"),
    ],
)
def test_differences_raise(found, words):
    with pytest.raises(VerificationError, match=words):
        compare(lambda: torch.tensor([0.0, 1.0]), lambda: found, LIMITS)


def test_truth_values():
    kept = torch.tensor([True, False])
    assert compare(lambda: kept, lambda: kept.clone(), LIMITS) == 0.0
    with pytest.raises(VerificationError, match="differs"):
        compare(lambda: kept, lambda: ~kept, LIMITS)


NUMBERS = torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]])
FORMS = {
    **{
        name: partial(torch.Tensor.to, dtype=getattr(torch, name))
        for name in ("uint8", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex64")
    },
    "coo": torch.Tensor.to_sparse,
    "coo of integers": lambda x: x.long().to_sparse(),
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda x: x.to_sparse_bsr((1, 1)),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_outputs_of_all_kinds_are_compared(form):
    want = form(NUMBERS)
    assert compare(lambda: want, lambda: form(NUMBERS), LIMITS) == 0.0
    with pytest.raises(VerificationError, match=r"differs from the dense model's by [789]"):
        compare(lambda: want, lambda: form(NUMBERS + 8 * (NUMBERS == 3)), LIMITS)


def test_rounded_outputs_may_differ_by_roundings():
    x = torch.linspace(1, 2, 50)
    assert (
        0
        < compare(lambda: x.to(torch.float8_e4m3fn), lambda: (x * 1.05).to(torch.float8_e4m3fn), LIMITS)
        < 0.2
    )
    gaps = x.clone()
    gaps[7] = float("nan")
    with pytest.raises(VerificationError, match="NaN"):
        compare(lambda: x.to(torch.float8_e5m2), lambda: gaps.to(torch.float8_e5m2), LIMITS)


@pytest.mark.parametrize("name", ["coo", "float8_e4m3fn"])
def test_gradients_of_outputs_of_all_kinds_are_compared(name):
    w, form = NUMBERS.clone().requires_grad_(), FORMS[name]
    assert compare(lambda: form(w * 2), lambda: form(w + w), LIMITS, [w]) == 0.0
    with pytest.raises(VerificationError, match="gradient 0"):
        compare(lambda: form(w * 2), lambda: form((w * 2).detach() + 9 * (w - w.detach())), LIMITS, [w])


def test_models_with_outputs_of_all_kinds_are_applied():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 4)

        def forward(self, x):
            found = self.lin(x)
            return found, found.to(torch.float8_e4m3fn), (x * 0).to(torch.uint16), x.to_sparse()

    recipe = {
        "schema": 1,
        "name": "half",
        "sparsify": [
            {
                "targets": ["param:lin.weight"],
                "role": "weight",
                "prune": {"method": "magnitude", "sparsity": 0.5},
            }
        ],
    }
    for training in (False, True):
        sparse = sparsify.apply(Several().train(training), recipe, NUMBERS)
        assert [found.dtype for found in sparse(NUMBERS)[1:3]] == [torch.float8_e4m3fn, torch.uint16]


def test_gradients_are_compared():
    w = torch.ones(3, requires_grad=True)
    assert compare(lambda: w * 2, lambda: w + w, LIMITS, [w]) == 0.0
    with pytest.raises(VerificationError, match="gradient 0"):
        compare(lambda: w * 2, lambda: (w * 2).detach() + 3 * (w - w.detach()), LIMITS, [w])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_16_bits_are_compared(dtype):
    torch.manual_seed(0)
    layer, x = nn.Linear(32, 16).to(dtype), torch.randn(24, 32, dtype=dtype)
    columns, parameters = torch.randperm(32), list(layer.parameters())

    def turned():
        return F.linear(x[:, columns], layer.weight[:, columns], layer.bias)

    assert compare(lambda: layer(x), turned, LIMITS, parameters) < 0.1
    for wrong in (lambda: turned().detach() + 0 * turned(), lambda: 2 * turned() - turned().detach()):
        with pytest.raises(VerificationError, match="gradient 0 differs"):
            compare(lambda: layer(x), wrong, LIMITS, parameters)
    with pytest.raises(VerificationError, match="gradient 1 exists only densely"):
        compare(lambda: layer(x), lambda: F.linear(x, layer.weight, layer.bias.detach()), LIMITS, parameters)


def test_gradients_through_a_norm_are_compared():
    """The sum of squares of what a norm returns hardly depends on what it is given."""
    torch.manual_seed(0)
    w = torch.randn(5, 16, requires_grad=True)

    def found(factor):
        return F.layer_norm(w.detach() + factor * (w - w.detach()), (16,))

    assert compare(lambda: F.layer_norm(w, (16,)), lambda: found(1), LIMITS, [w]) < 1e-6
    with pytest.raises(VerificationError, match="gradient 0 differs"):
        compare(lambda: F.layer_norm(w, (16,)), lambda: found(1.1), LIMITS, [w])


def test_dropout_draws_the_same_in_every_memory_order():
    x = torch.ones(40, 30, requires_grad=True)
    turned = torch.ones(30, 40, requires_grad=True).t()
    assert compare(lambda: F.dropout(x, 0.5), lambda: F.dropout(turned, 0.5), LIMITS) == 0.0
    with torch.no_grad():
        assert compare(lambda: F.dropout(x, 0.5), lambda: F.dropout(turned, 0.5), LIMITS) == 0.0


def test_weights_that_are_no_numbers_are_named():
    layer = nn.Linear(3, 2)
    layer.weight.data[1, 2] = float("nan")
    dense, x = layer(torch.ones(3)), torch.tensor([1.0, float("inf"), 0.0])
    found = torch.stack((dense[0], torch.tensor(1.0)))
    words = r"weight is nan at \[1, 2\]; x is inf at \[1\]; output differs .* 1 of 2 entries: it is 1 at \[1\], and"
    with pytest.raises(VerificationError, match=words), naming_values(layer, {"x": x}):
        compare(lambda: dense, lambda: found, LIMITS)


class Plain(TwoLayers):
    """Two layers without dropout."""

    def forward(self, x, edge_index):
        return self.c2(self.c1(x, edge_index).relu(), edge_index)


def long_sum(dtype):
    """The sum of many numbers, rounded after each of them as torch does in 16 bits."""
    numbers = torch.rand(500, generator=torch.Generator().manual_seed(0)).to(dtype)
    total = numbers.new_zeros(())
    for number in numbers:
        total = total + number
    return numbers, total.reshape(1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_16_bits_may_be_as_far_off_as_the_dense_ones(dtype):
    numbers, plain = long_sum(dtype)
    true = numbers.double().sum().reshape(1)
    off = float((plain.double() - true).abs())
    limits = Verify(rtol=1e-5, atol=1e-6)
    step = 4 * torch.finfo(dtype).eps * float(true)
    for found in (true.to(dtype), plain, (true + 1.9 * off).to(dtype)):
        largest = rounding_error(found, plain, true, (), limits)
        assert largest == float((found.double() - true).abs())
    with pytest.raises(VerificationError, match="differs from the model in float64 by"):
        rounding_error((true + 3 * off + 2 * step).to(dtype), plain, true, (), limits)
    with pytest.raises(VerificationError, match="differs from the model in float64"):
        rounding_error((true * torch.nan).to(dtype), plain, true, (), limits)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["GINConv", "GATConv"])
def test_message_passing_trains_in_16_bits(name, dtype):
    layers = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)

    def layer(features, out):
        if name == "GATConv":
            return layers.GATConv(features, out)
        return layers.GINConv(nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, out)))

    model = Plain(layer, features=32, hidden=32, classes=16).to(dtype).train()
    exact = copy.deepcopy(model).double()
    given = [(x.to(dtype), edges) for x, edges in (graph(400, 2000, 32), graph(300, 1500, 32, seed=1))]
    sparse = apply(model, MESSAGES, given[0])
    assert len(sparse.report.regions) == 2
    for x, edges in given:
        results = [sparse(x, edges), model(x, edges), exact(x.double(), edges)]
        weights = [list(model.parameters()), list(model.parameters()), list(exact.parameters())]
        found, plain, true = (
            torch.autograd.grad(result.double().cos().sum(), own)
            for result, own in zip(results, weights, strict=True)
        )
        scale = max(float(part.abs().max()) for part in true)
        for ours, usual, wanted in zip(found, plain, true, strict=True):
            error, allowed = (float((part.double() - wanted).abs().max()) for part in (ours, usual))
            assert error <= 2 * allowed + 8 * torch.finfo(dtype).eps * scale
