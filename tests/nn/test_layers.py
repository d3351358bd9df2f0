"""Layers that are sparse from the start: what they compute, how they train, are captured, copied and saved."""

import copy

import pytest
import torch
from torch import nn

import sparsify
from sparsify import sparsifiers
from sparsify.errors import FormatError, ShapeError, SparsifierError
from sparsify.nn import Conv2d, Embedding, Linear
from sparsify.training import mask_of

pytestmark = pytest.mark.filterwarnings("error")
DOUBLE = {"dtype": torch.float64}
LAYERS = {
    "linear": (lambda: Linear(16, 12, sparsity=0.75, seed=1, **DOUBLE), lambda: torch.randn(5, 16, **DOUBLE)),
    "blocks": (
        lambda: Linear(16, 12, format="bcsr(2, 4)", sparsity=0.5, seed=1, **DOUBLE),
        lambda: torch.randn(5, 16, **DOUBLE),
    ),
    "groups": (
        lambda: Linear(16, 12, format="nm(2, 4)", seed=1, **DOUBLE),
        lambda: torch.randn(5, 16, **DOUBLE),
    ),
    "conv": (
        lambda: Conv2d(4, 6, 3, 2, 1, groups=2, sparsity=0.75, seed=1, **DOUBLE),
        lambda: torch.randn(2, 4, 9, 8, **DOUBLE),
    ),
    "embedding": (
        lambda: Embedding(20, 8, padding_idx=3, sparsity=0.75, seed=1, **DOUBLE),
        lambda: torch.tensor([[1, 3, 19], [1, 0, 3]]),
    ),
}


def dense_twin(layer):
    """torch's layer with the same numbers."""
    found = copy.deepcopy(layer)
    found.__class__ = layer.dense_layer
    found.weight = nn.Parameter(layer.weight.detach().to_dense())
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients_are_those_of_torch_on_the_pattern(name):
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    layer, x = make(), inputs()
    twin = dense_twin(layer)
    with sparsify.strict():
        found = layer(x)
        found.square().sum().backward()
    want = twin(x)
    want.square().sum().backward()
    torch.testing.assert_close(found, want)
    assert layer.weight.grad.pattern.equals(layer.weight.pattern)
    kept = torch.where(mask_of(layer.weight), twin.weight.grad, 0)
    torch.testing.assert_close(layer.weight.grad.to_dense(), kept)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAYERS)
def test_applied_models_compute_with_them(name):
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    model, x = nn.Sequential(make(), nn.ReLU()).train(), inputs()
    applied = sparsify.apply(model, {"name": "own", "sparsify": []}, (x,))
    applied(x).square().sum().backward()
    found, model[0].weight.grad = model[0].weight.grad, None
    assert not applied.report.warnings
    model(x).square().sum().backward()
    torch.testing.assert_close(found.values(), model[0].weight.grad.values())


def test_entries_are_drawn_by_the_seed_and_counted_exactly():
    layers = [Linear(64, 32, sparsity=0.9, seed=seed) for seed in (1, 1, 2)]
    masks = [mask_of(layer.weight) for layer in layers]
    assert [layer.weight.nnz for layer in layers] == [205] * 3
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    torch.manual_seed(5)
    first = Linear(64, 32, sparsity=0.9)
    torch.manual_seed(5)
    again = Linear(64, 32, sparsity=0.9)
    assert torch.equal(first.weight.values(), again.weight.values())
    assert torch.equal(mask_of(first.weight), mask_of(again.weight))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "format, sparsity, nnz",
    [
        ("csr", 1.0, 0),
        ("csc", 0.5, 64),
        ("coo", 0.5, 64),
        ("nm(1, 4)", 0.75, 32),
        ("nm(1, 4, group=4)", None, 32),
        ("bcsr(4, 8)", 0.5, 64),
        (sparsify.Format("i: dense, j/2: dense, j%2: grouped(1)"), None, 64),
        ("i: compressed, j: dense", 0.5, 64),
    ],
    ids=str,
)
def test_formats_decide_which_entries_there_can_be(format, sparsity, nnz):
    layer = Linear(16, 8, format=format, sparsity=sparsity, seed=0)
    assert layer.weight.nnz == nnz and layer(torch.ones(3, 16)).shape == (3, 8)
    pattern, before = layer.weight.pattern, layer.weight.values().clone()
    layer.reset_parameters()
    assert layer.weight.pattern.equals(pattern)
    assert not nnz or not torch.equal(layer.weight.values(), before)


def test_copies_and_states_have_the_entries():
    layer = Linear(16, 8, sparsity=0.75, seed=1)
    twin, other = copy.deepcopy(layer), Linear(16, 8, sparsity=0.75, seed=2)
    assert type(twin) is Linear and torch.equal(mask_of(twin.weight), mask_of(layer.weight))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight.to_dense(), layer.weight.to_dense())
    assert "format='dense, compressed', sparsity=0.75" in repr(layer)


def test_from_dense_keeps_what_the_sparsifier_keeps():
    dense = nn.Conv2d(4, 6, 3, padding=1)
    layer = Conv2d.from_dense(dense, sparsifiers.ScalarFraction(0.75))
    assert layer.weight.nnz == 54 and type(dense.weight) is nn.Parameter
    assert layer.weight.values().abs().min() >= dense.weight.abs().flatten().sort().values[-54]
    assert layer.bias is not dense.bias and torch.equal(layer.bias, dense.bias)
    with pytest.raises(SparsifierError, match=r"Linear\.from_dense of a Conv2d"):
        Linear.from_dense(dense, sparsifiers.ScalarFraction(0.75))
    with pytest.raises(SparsifierError, match="max_norm"):
        Embedding.from_dense(nn.Embedding(4, 4, max_norm=1.0), sparsifiers.KeepAll())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("method", ["rigl", "gmp", "constant"])
def test_pruners_change_their_masks(method, is_applied):
    """What is not stored stays so until the method regrows it, in the layer itself and in an applied model."""
    torch.manual_seed(0)
    net = nn.Sequential(Linear(32, 64, sparsity=0.75, seed=1), nn.ReLU(), nn.Linear(64, 8)).train()
    first = mask_of(net[0].weight)
    x, y = torch.randn(16, 32), torch.randint(8, (16,))
    rule = {"targets": "param:0.weight", "prune": {"method": method}}
    if method != "constant":
        rule |= {"schedule": {"end": 4, "every": 2}}
        rule["prune"]["sparsity"] = 0.75 if method == "rigl" else 0.9
    recipe = {"name": "own", "sparsify": [rule]}
    model = sparsify.apply(net, recipe, (x,)) if is_applied else net
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    pruner = sparsify.Pruner(model, optimizer, None if is_applied else recipe)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        pruner.step()
    weight = model.get_parameter("0.weight")
    assert isinstance(weight, sparsify.SparseTensor)
    kept = mask_of(weight)
    assert int(kept.sum()) == {"rigl": 512, "gmp": 205, "constant": 512}[method]
    assert bool((kept & ~first).any()) == (method == "rigl")


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: Linear(16, 8), SparsifierError, "the share of zeros"),
        (lambda: Linear(16, 8, sparsity=1.5), SparsifierError, r"sparsity\(1.5\)"),
        (lambda: Linear(16, 8, format="nm(2, 4)", sparsity=0.9), SparsifierError, "whose groups have 0.5"),
        (lambda: Linear(16, 8, format="dense", sparsity=0.9), FormatError, "torch.nn"),
        (lambda: Linear(18, 8, format="nm(2, 4)"), ShapeError, "groups of 4 do not divide"),
        (lambda: Linear(18, 8, format="bcsr(4, 4)", sparsity=0.5), ShapeError, "blocks of 4 x 4"),
        (lambda: Conv2d(4, 4, 3, format="csc", sparsity=0.5), FormatError, "2 modes"),
        (lambda: Linear(16, 16, format="dia", sparsity=0.5, seed=0), FormatError, "for a mask of 128; csr"),
        (
            lambda: Linear(16, 16, format="ell", sparsity=0.5, seed=0),
            FormatError,
            "stores 176 .* of 128; csr",
        ),
        (
            lambda: Linear.from_dense(nn.Linear(16, 16), sparsifiers.ScalarFraction(0.5), "bcsr(2, 2)"),
            FormatError,
            "for a mask of 128",
        ),
        (lambda: Linear(16, 8, sparsity=0.5, seed="a"), SparsifierError, r"Linear\(seed='a'\); an integer"),
        (lambda: Embedding.from_pretrained(torch.ones(3, 4)), SparsifierError, r"Embedding\.from_dense"),
    ],
)
def test_layers_that_cannot_be(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_padded_formats_hold_entries_that_fill_them():
    """Whole diagonals in `dia`, a zero among them: the ends outside of the shape count as no entries."""
    dense = nn.Linear(6, 6)
    band = torch.ones(6, 6).triu(-1).tril(1).bool()
    with torch.no_grad():
        dense.weight.mul_(band)
        dense.weight[2, 2] = 1e-3
    layer = Linear.from_dense(dense, sparsifiers.ScalarThreshold(1e-6), "dia")
    assert "sparsity=0.556" in repr(layer)
    layer(torch.randn(4, 6)).square().sum().backward()
    torch.optim.SGD(layer.parameters(), 0.1).step()
    assert int((layer.weight.detach().to_dense() != 0).sum()) == 16
    zeros = nn.Linear(4, 4)
    nn.init.zeros_(zeros.weight)
    assert Linear.from_dense(zeros, sparsifiers.ScalarFraction(0.5)).weight.nnz == 8  # kept zeros are entries
