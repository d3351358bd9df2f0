"""Convolutions with pruned weights: found with what follows them, and equal to torch's in float64."""

from collections import Counter

import pytest
import torch
from torch import nn

from sparsify import options
from sparsify.passes.apply import apply
from sparsify.passes.choose import autotune, torch_operator
from sparsify.passes.choose.autotune import Winner
from sparsify.passes.graph.node_info import call_of, info
from sparsify.passes.operands.convolution_operands import PLACED, SIZES
from sparsify.passes.rules.prune import prune

RULE = {
    "targets": ["param:*.weight"],
    "types": ["Conv1d", "Conv2d", "Conv3d"],
    "role": "weight",
    "prune": {"method": "magnitude", "sparsity": 0.8},
}
RECIPE = {"schema": 1, "name": "pruned", "sparsify": [RULE]}


@pytest.fixture(scope="module", autouse=True)
def untimed():
    """What torch does faster becomes a kernel too: here matters what it computes."""
    with options.override(tune_seconds=0):
        yield


class Block(nn.Module):
    """A bottleneck whose shapes change."""

    def __init__(self):
        super().__init__()
        self.reduce, self.first = nn.Conv2d(6, 5, 1, bias=False), nn.BatchNorm2d(5)
        self.inner, self.second = nn.Conv2d(5, 5, 3, 2, 1), nn.BatchNorm2d(5, affine=False)
        self.expand, self.third = nn.Conv2d(5, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.beside = nn.Conv2d(6, 8, 1, 2)

    def forward(self, x):
        y = torch.relu(self.first(self.reduce(x)))
        y = self.third(self.expand(torch.relu_(self.second(self.inner(y)))))
        y += self.beside(x)
        return torch.relu(y)


MODELS = {
    "block": (Block, (6, 9, 10)),
    "signal": (lambda: nn.Sequential(nn.Conv1d(4, 6, 5, 2, 2), nn.ReLU()), (4, 17)),
    "volume": (
        lambda: nn.Sequential(nn.Conv3d(3, 4, 3, padding=(0, 1, 2), dilation=(1, 2, 1))),
        (3, 5, 7, 6),
    ),
    "same": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, (3, 5), padding="same", dilation=(1, 2)), nn.ReLU()),
        (4, 6, 7),
    ),
    "repeated": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.Tanh()),
        (4, 6, 7),
    ),
}
KERNELS = {"block": 4, "signal": 1, "volume": 1, "same": 1, "repeated": 1}


def made(name):
    torch.manual_seed(0)
    kind, shape = MODELS[name]
    model = kind().double().train()
    model(torch.randn(8, *shape, dtype=torch.float64))  # statistics that are not 0 and 1
    return model.eval(), torch.randn(3, *shape, dtype=torch.float64)


def gradients(result, parameters):
    factor = torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view_as(result)
    return torch.autograd.grad((result * factor).sum(), parameters, allow_unused=True)


def is_pruned(name, parameter):
    return name.endswith("weight") and parameter.dim() > 2


@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients(name):
    model, x = made(name)
    exact = prune(model, apply(model, RECIPE, x)._asked.recipe).eval()
    sparse = apply(model, RECIPE, x, strict=True)
    assert len(sparse.report.regions) == KERNELS[name]
    for given in (x, torch.randn_like(x[:1]).repeat(2, *[1] * (x.dim() - 1))):
        with torch.no_grad():
            torch.testing.assert_close(sparse(given), exact(given))
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    own = {name: p for name, p in sparse.named_parameters() if p.requires_grad}
    frozen = {name for name, p in exact.named_parameters() if is_pruned(name, p)}
    theirs = {name: p for name, p in exact.named_parameters() if name not in frozen}
    assert own.keys() == theirs.keys()
    found = gradients(sparse(one), [one, *own.values()])
    wanted = gradients(exact(other), [other, *theirs.values()])
    for mine, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, expected)


def test_gradients_of_gradients():
    model, x = made("block")
    sparse = apply(model, RECIPE, x)

    def penalty(call):
        given = x.clone().requires_grad_()
        read = [given, *(p for p in parameters if p.requires_grad)]
        first = torch.autograd.grad(call(given).pow(2).sum(), read, create_graph=True)
        return [*first, *torch.autograd.grad(sum(part.pow(2).sum() for part in first), read)]

    parameters = [p for name, p in sparse.named_parameters() if not is_pruned(name, p)]
    assert len(penalty(sparse)) > 4
    torch.testing.assert_close(penalty(sparse), penalty(sparse.original))


@pytest.mark.parametrize("name", ["signal", "repeated"])
def test_transforms(name):
    model, x = made(name)
    sparse = apply(model, RECIPE, x)
    for transform in (
        lambda call: torch.func.grad(lambda given: call(given).pow(2).sum())(x),
        lambda call: torch.func.vmap(call)(torch.stack([x, 2 * x])),
        lambda call: torch.func.jvp(call, (x,), (x.cos(),)),
    ):
        torch.testing.assert_close(transform(sparse), transform(sparse.original))


@pytest.mark.parametrize("is_differentiated", [False, True])
def test_images_smaller_than_windows(is_differentiated):
    layer = nn.Conv2d(4, 6, 3, 2)
    x = torch.randn(2, 4, 9, 10)
    sparse = apply(nn.Sequential(layer).eval(), RECIPE, x, strict=True)
    with torch.set_grad_enabled(is_differentiated), pytest.raises(RuntimeError, match="Kernel size can't be"):
        sparse(torch.randn(2, 4, 2, 9))


@pytest.mark.parametrize("name", ["signal", "repeated"])
def test_no_images(name):
    model, x = made(name)
    sparse = apply(model, RECIPE, x)
    assert sparse(x[:0]).shape == model(x[:0]).shape


def test_images_of_other_sizes():
    model, x = made("block")
    sparse = apply(model, RECIPE, x)
    larger = torch.randn(2, 6, 13, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(sparse(larger), sparse.original(larger))
        torch.testing.assert_close(sparse(x), sparse.original(x))


def test_what_is_kept_for_sizes_of_images():
    model, x = made("signal")
    sparse = apply(model, RECIPE, x, verify=False)
    (call,) = [call_of(node) for node in sparse.graph.nodes if info(node).call is not None]
    layout, kernels = call.layout, set()
    for length in range(19, 19 + 4 * SIZES, 2):
        arguments = [torch.randn(1, 4, length), *sparse.parameters()]
        with torch.no_grad():
            call.values(arguments)
        grid = layout.grid(arguments[0])
        sizes = layout.sizes(call.program, len(arguments[0]), arguments[1], grid)
        kernels.add(layout.kernel_for(grid, call.program, call.options, sizes))
    assert len(kernels) == 2 * SIZES
    assert kernels > {*layout.others.values()}
    assert (len(layout.others), len(layout.grids), len(layout.placed.memory)) == (SIZES, SIZES, PLACED)


@pytest.mark.parametrize("vector_bytes", [0, 16, 32])
def test_narrow_vectors(vector_bytes):
    model, x = made("signal")
    with options.override(vector_bytes=vector_bytes):
        sparse = apply(model.float(), RECIPE, x.float())
        with torch.no_grad():
            expected = sparse.original(x.float())
            torch.testing.assert_close(sparse(x.float()), expected, rtol=1e-5, atol=1e-6)


def test_programs():
    model, x = made("block")
    sparse = apply(model, RECIPE, x)
    product = "sum(k, W[o,k] * F[n,k+p])"
    assert Counter(region.einsum for region in sparse.report.regions) == {
        f"Y[n,o,p] = relu(s[o] * {product} + b[o])": 2,
        f"Y[n,o,p] = relu(s[o] * {product} + b[o] + Z[n,o,p])": 1,
        f"Y[n,o,p] = {product} + b[o]": 1,
    }
    assert not sparse.report.dense
    assert all(0 < entry.bytes_after < entry.bytes_before for entry in sparse.report.conversions)


def test_new_weights_and_statistics_are_packed():
    model, x = made("block")
    sparse = apply(model, RECIPE, x)
    with torch.no_grad():
        before = sparse(x)
        states = {
            name: value * 1.5 for name, value in sparse.state_dict().items() if value.is_floating_point()
        }
        sparse.load_state_dict(states, strict=False)
        after = sparse(x)
        torch.testing.assert_close(after, sparse.original(x))
    assert not torch.allclose(before, after)


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_training_keeps_zeros():
    model, x = made("block")
    sparse = apply(model.train(), RECIPE, x)
    assert not sparse.report.regions
    assert {entry.reason.split(",")[0] for entry in sparse.report.dense} == {"in training it is torch's"}
    weights = [p for n, p in sparse.named_parameters() if is_pruned(n, p)]
    whole = [p for n, p in sparse.original.__self__.named_parameters() if is_pruned(n, p)]
    found, dense = gradients(sparse(x), weights), gradients(sparse.original(x), whole)
    for own, theirs, weight in zip(found, dense, weights, strict=True):
        torch.testing.assert_close(own, theirs * (weight != 0))
        assert not torch.equal(own, theirs)


@pytest.mark.filterwarnings("ignore:.*stays dense")
@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Conv2d(4, 4, 3, groups=2), "its channels are in groups"),
        (nn.Conv2d(4, 4, 4, padding="same"), "padding='same' of an even kernel"),
        (nn.Conv2d(4, 4, 3, dtype=torch.bfloat16), "convolutions in torch.bfloat16 are not supported yet"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*nothing of this model in torch.bfloat16 runs:RuntimeWarning")
def test_what_stays_dense(layer, reason):
    x = torch.randn(2, 4, 6, 6, dtype=layer.weight.dtype)
    sparse = apply(nn.Sequential(layer).eval(), RECIPE, x)
    assert not sparse.report.regions
    assert [(entry.op, reason in entry.reason) for entry in sparse.report.dense] == [("conv2d", True)]


def test_weights_with_few_zeros_stay_dense():
    model, x = made("signal")
    rule = {**RULE, "prune": {"method": "magnitude", "sparsity": 0.3}}
    sparse = apply(model.float(), {**RECIPE, "sparsify": [rule]}, x.float())
    assert "70% of its weight are stored" in sparse.report.dense[0].reason


@pytest.mark.parametrize("us", [90.0, 110.0])
def test_the_faster_one_runs(us, monkeypatch):
    found = Winner("operator", (("kernel", us), ("torch", 100.0)))
    monkeypatch.setattr(torch_operator, "outcome", lambda draft, region: found)
    model, x = made("signal")
    with options.override(tune_seconds=1):
        sparse = apply(model, RECIPE, x)
    if us < 100:
        assert "timed 90 us, torch's 100" in sparse.report.regions[0].notes
    else:
        assert sparse.report.dense[0].reason == "torch's conv1d is faster: timed 110 us, torch's 100"


def test_what_is_asked_before(monkeypatch):
    """Layers with the same program over as many results are asked about one by one."""
    asked = set()

    def recall(question, sizes, *rest, **_):
        asked.add((question, repr(sizes.without_operands())))
        return Winner("operator", (("kernel", 1.0), ("torch", 2.0)))

    monkeypatch.setattr(autotune, "recall", recall)
    layers = [
        ([nn.Conv2d(8, 8, 1)], 6),
        ([nn.Conv2d(8, 8, 1, 2)], 12),
        ([nn.Conv2d(8, 8, 1), nn.ReLU()], 6),
        ([nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()], 6),
    ]
    for parts, extent in layers:
        nn.init.uniform_(parts[0].weight)
        with options.override(tune_seconds=1):
            apply(nn.Sequential(*parts).eval(), RECIPE, torch.randn(1, 8, extent, extent), verify=False)
    assert len(asked) == len(layers)


def test_what_is_timed():
    model, x = made("block")
    with options.override(tune_seconds=0.02):
        sparse = apply(model, RECIPE, x)
    notes = [note for region in sparse.report.regions for note in region.notes]
    texts = [*notes, *(entry.reason for entry in sparse.report.dense)]
    assert sum("us, torch's" in text for text in texts) == KERNELS["block"]
