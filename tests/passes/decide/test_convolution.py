"""Convolutions with pruned weights, with the entrywise operators behind them: equal to torch's in float64."""

from collections import Counter

import pytest
import torch
from torch import nn

from sparsify import options
from sparsify.passes.apply import apply
from sparsify.passes.choose import autotune, torch_operator
from sparsify.passes.choose.autotune import Winner
from sparsify.passes.graph.node_info import call_of, info
from sparsify.passes.graph.operators import operator_name
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


class Behind(nn.Module):
    """A convolution, and a function of its result, of a normalisation and of a vector."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.layer, self.norm = layer or nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 6, dtype=torch.float64).view(6, 1, 1))
        self.one = nn.Parameter(torch.tensor([0.7], dtype=torch.float64))
        self.function = function

    def forward(self, x):
        return self.function(self, self.layer(x), x)


PRODUCT = "sum(k, W[o,k] * F[n,k+p])"
LAYER = f"{PRODUCT} + b[o]"
NORM = f"s[o] * {PRODUCT} + b[o]"
# A function behind a convolution, and the statements of its region.
FUNCTIONS = {
    "silu": (lambda m, y, x: nn.functional.silu(m.norm(y)), f"Y[n,o,p] = silu({NORM})"),
    "gelu": (lambda m, y, x: nn.functional.gelu(y), f"Y[n,o,p] = gelu({LAYER})"),
    "relu6": (lambda m, y, x: nn.functional.relu6(m.norm(y)), f"Y[n,o,p] = min(max({NORM}, 0), 6)"),
    "clamp": (lambda m, y, x: m.norm(y).clamp(-0.5, 0.5), f"Y[n,o,p] = min(max({NORM}, -0.5), 0.5)"),
    "leaky": (
        lambda m, y, x: nn.functional.leaky_relu(y, 0.1),
        f"T[n,o,p] = {LAYER}; Y[n,o,p] = where(T[n,o,p] > 0, T[n,o,p], 0.1 * T[n,o,p])",
    ),
    "hardswish": (
        lambda m, y, x: nn.functional.hardswish(m.norm(y)),
        f"T[n,o,p] = {NORM}; Y[n,o,p] = 0.16666666666666666 * (T[n,o,p] * min(max(T[n,o,p] + 3, 0), 6))",
    ),
    "swish by hand": (lambda m, y, x: (z := m.norm(y)) * torch.sigmoid(z), f"Y[n,o,p] = silu({NORM})"),
    "gate of two": (
        lambda m, y, x: torch.sigmoid(2 * y) * torch.tanh(y),
        f"T[n,o,p] = {LAYER}; Y[n,o,p] = sigmoid(2 * T[n,o,p]) * tanh(T[n,o,p])",
    ),
    "scaled": (lambda m, y, x: m.norm(y * 0.5 + 1) / 3, f"Y[n,o,p] = {NORM}"),
    "number of the model": (lambda m, y, x: torch.relu(y * m.one), f"Y[n,o,p] = relu({NORM})"),
    "scale of channels": (
        lambda m, y, x: torch.cat([x, x[:, :2]], 1) + m.scale * torch.tanh(y),
        f"Y[n,o,p] = s[o] * tanh({LAYER}) + Z[n,o,p]",
    ),
    "sum before": (
        lambda m, y, x: torch.relu(m.norm(y + torch.cat([x, x[:, :2]], 1))),
        f"Y[n,o,p] = relu(s[o] * ({PRODUCT} + Z[n,o,p]) + b[o])",
    ),
    "difference": (
        lambda m, y, x: torch.cat([x, x[:, :2]], 1) - y,
        f"Y[n,o,p] = -{PRODUCT} + b[o] + Z[n,o,p]",
    ),
    "two norms": (lambda m, y, x: torch.tanh(m.norm(m.norm(y))), f"Y[n,o,p] = tanh({NORM})"),
    "mask": (
        lambda m, y, x: y.masked_fill(torch.cat([x, x[:, :2]], 1) > 0, 2.0),
        f"Y[n,o,p] = where(Z[n,o,p], 2.0, {LAYER})",
    ),
}


def behind(function, layer=None):
    torch.manual_seed(0)
    model = Behind(function, layer).double().train()
    model.norm(torch.randn(8, 6, 5, 5, dtype=torch.float64))  # statistics that are not 0 and 1
    return model.eval(), torch.randn(3, 4, 5, 7, dtype=torch.float64)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_follows_is_in_the_kernel(name):
    function, text = FUNCTIONS[name]
    model, x = behind(function)
    exact = prune(model, apply(model, RECIPE, x)._request.recipe).eval()
    sparse = apply(model, RECIPE, x, strict=True)
    (region,) = sparse.report.regions
    assert region.einsum == text
    with torch.no_grad():
        for given in (x, torch.randn(2, 4, 6, 3, dtype=torch.float64)):
            torch.testing.assert_close(sparse(given), exact(given))
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    own = {name: p for name, p in sparse.named_parameters() if p.requires_grad}
    theirs = {name: p for name, p in exact.named_parameters() if not is_pruned(name, p)}
    found = gradients(sparse(one), [one, *own.values()])
    wanted = gradients(exact(other), [other, *theirs.values()])
    assert own.keys() == theirs.keys()
    for mine, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, expected)


# A function behind a convolution, and the operators of it that are not in the kernel.
OUTSIDE = {
    "another shape": (lambda m, y, x: torch.relu(y) * x[:, :1], {"mul"}),
    "a gate of each image": (lambda m, y, x: y * x.mean((2, 3)).mean(1).view(-1, 1, 1, 1), {"mul"}),
    "what follows from it": (lambda m, y, x: y + y.flip(1), {"flip", "add"}),
    "two results": (lambda m, y, x: (torch.relu(y), torch.tanh(y)), {"relu", "tanh"}),
    "statistics of the batch": (
        lambda m, y, x: nn.functional.batch_norm(y, None, None, training=True),
        {"batch_norm"},
    ),
    "another dtype": (lambda m, y, x: torch.relu(y.float()), {"to", "relu"}),
    "another layout": (lambda m, y, x: torch.relu(y.transpose(2, 3)), {"transpose", "relu"}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_not(name):
    function, outside = OUTSIDE[name]
    model, x = behind(function)
    sparse = apply(model, RECIPE, x, strict=True)
    (region,) = sparse.report.regions
    left = {operator_name(node) for node in sparse.graph.nodes if node.op != "placeholder"}
    assert outside <= left | {"_to_copy", "to"}
    assert len(region.nodes) <= 2
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), sparse.original(x))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("extents", "lanes"), [((7, 12), 8), ((7, 16), 8), ((5, 9), 8), ((3, 3), 4), ((2, 30), 16)]
)
def test_rows_that_fill_vectors_have_no_padding_between(extents, lanes):
    """Rows of 9 in vectors of 8 take 16 lanes each, with the padding 11: the padding is computed, too."""
    function = FUNCTIONS["scale of channels"][0]
    model, _ = behind(function, nn.Conv2d(4, 6, 3, padding=1))
    x = torch.randn(2, 4, *extents)
    with options.override(vector_bytes=4 * min(lanes, 8)):
        sparse = apply(model.float(), RECIPE, x, strict=True)
        (region,) = sparse.report.regions[:1]
        step = extents[1] + 2
        if extents == (5, 9):
            assert region.einsum == f"Y[n,o,p] = s[o] * tanh({LAYER})"
        else:
            assert f"sum(k, W[o,k] * F[n,k+{step}*y+x])" in region.einsum
            assert "+ Z[n,o,y,x]" in region.einsum
        other = torch.randn(3, 4, 6, 17)
        with torch.no_grad():
            for given in (x, other, x):
                expected = sparse.original(given)
                torch.testing.assert_close(sparse(given), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("outputs", [1, 6])
@pytest.mark.parametrize("extent", [1, 5])
@pytest.mark.parametrize("batch", [1, 2])
def test_extents_of_one(outputs, extent, batch):
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(4, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, 2, 1),
    ]
    model = nn.Sequential(*layers).double()
    model(torch.randn(9, 4, 5, 5, dtype=torch.float64))
    nn.init.constant_(model[3].weight.data[:1], 0)
    x = torch.randn(batch, 4, extent, extent, dtype=torch.float64)
    sparse = apply(model.eval(), RECIPE, x)
    assert len(sparse.report.regions[0].nodes) == 3
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), sparse.original(x))


def is_pruned(name, parameter):
    return name.endswith("weight") and parameter.dim() > 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients(name):
    model, x = made(name)
    exact = prune(model, apply(model, RECIPE, x)._request.recipe).eval()
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
def test_images_of_other_sizes():
    model, x = made("block")
    sparse = apply(model, RECIPE, x)
    larger = torch.randn(2, 6, 13, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(sparse(larger), sparse.original(larger))
        torch.testing.assert_close(sparse(x), sparse.original(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", [2, 3])
def test_one_dynamic_extent_in_compiled_calls(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()).eval()
    sparse = apply(model, RECIPE, torch.randn(2, 4, 16, 16), strict=True, trainable=False)
    compiled = torch.compile(sparse, backend="eager")
    for extent in (16, 24, 40):
        x = torch.randn(2, 4, *(extent if at == mode else 16 for at in (2, 3)))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), sparse.original(x), rtol=1e-4, atol=1e-5)


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
        sizes = layout.sizes(len(arguments[0]), arguments[1], grid)
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
    plain, _ = made("block")  # its weights have no masks
    plain.train().load_state_dict(sparse.state_dict())
    assert not sparse.report.regions
    assert {entry.reason.split(",")[0] for entry in sparse.report.dense} == {"in training it is torch's"}
    weights = [p for n, p in sparse.named_parameters() if is_pruned(n, p)]
    whole = [p for n, p in plain.named_parameters() if is_pruned(n, p)]
    found, dense = gradients(sparse(x), weights), gradients(plain(x), whole)
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


def test_small_weights_with_few_zeros_run_by_the_faster_one(monkeypatch):
    model, x = made("signal")
    rule = {**RULE, "prune": {"method": "magnitude", "sparsity": 0.3}}
    for us in (90.0, 110.0):
        found = Winner("operator", (("kernel", us), ("torch", 100.0)))
        monkeypatch.setattr(torch_operator, "outcome", lambda draft, region, site, found=found: found)
        with options.override(tune_seconds=1):
            sparse = apply(model.float(), {**RECIPE, "sparsify": [rule]}, x.float())
        assert len(sparse.report.regions) == (us < 100)
        with torch.no_grad():
            torch.testing.assert_close(sparse(x.float()), sparse.original(x.float()), rtol=1e-4, atol=1e-5)


def test_weights_with_few_zeros_stay_dense():
    model, x = made("signal")
    rule = {**RULE, "prune": {"method": "magnitude", "sparsity": 0.3}}
    sparse = apply(model.float(), {**RECIPE, "sparsify": [rule]}, x.float())
    assert "70% of its weight are stored" in sparse.report.dense[0].reason


@pytest.mark.parametrize("us", [90.0, 110.0])
def test_the_faster_one_runs(us, monkeypatch):
    found = Winner("operator", (("kernel", us), ("torch", 100.0)))
    monkeypatch.setattr(torch_operator, "outcome", lambda draft, region, site: found)
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


def test_results_that_differ_stay_torchs():
    """Factors of a row are joined: where one of them divides by 0 the model has NaN at other places."""
    model, images = behind(lambda m, y, x: y * 0 / (m.scale * 1e-320))
    with pytest.warns(RuntimeWarning, match="stay dense"):
        sparse = apply(model, RECIPE, images)
    assert not sparse.report.regions
    torch.testing.assert_close(sparse(images), sparse.original(images))
