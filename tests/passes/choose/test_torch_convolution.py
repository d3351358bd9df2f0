"""Convolutions that stay torch's, as one call with what follows: the same numbers, and the graph where it is seen."""

import copy

import pytest
import torch
from torch import nn

from sparsify import options
from sparsify.passes.apply import apply
from sparsify.passes.choose import autotune, torch_convolution
from sparsify.passes.choose.autotune import Winner
from sparsify.passes.explain import explain_model as explain
from sparsify.passes.region.printer import graph_text
from sparsify.report import ChainEntry

RULE = {"targets": ["param:last.weight"], "role": "weight", "prune": {"method": "magnitude", "sparsity": 0.5}}
RECIPE = {"schema": 1, "name": "pruned", "sparsify": [RULE]}
IMAGES = (3, 4, 9, 10)


class Images(nn.Module):
    """A stem, a convolution with what is added to it, and one alone, before a linear layer."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.inner, self.norm = nn.Conv2d(6, 6, 1, groups=2), nn.BatchNorm2d(6, affine=False)
        self.alone = nn.Conv2d(6, 5, (3, 2), stride=(1, 2), dilation=(1, 2))
        self.last = nn.Linear(5, 7)

    def forward(self, x):
        y = self.stem(x)
        y = torch.relu(self.norm(self.inner(y)) + y)
        return self.last(self.alone(y).mean((2, 3)))


COVERED = {
    ("conv2d", "batch_norm", "relu", "max_pool2d"),
    ("conv2d", "batch_norm", "add", "relu"),
    ("conv2d",),
}


def made(form, monkeypatch, model=None, x=None, memory="fast", **changes):
    torch.manual_seed(0)
    if model is None:
        model = Images().train()
        model(torch.randn(8, *IMAGES[1:]))  # statistics that are not 0 and 1
    others = tuple((one, 1.0 if one == form else 1.4 if form else 2.0) for one in torch_convolution.FORMS)
    found = Winner("convolution", (("as it is", 2.0), *others))
    monkeypatch.setattr(torch_convolution, "autotune", lambda *asked, **_: found)
    with options.override(tune_seconds=0.01, **changes):
        recipe = {**RECIPE, "compile": {"memory": memory}}
        return apply(model.eval(), recipe, torch.randn(IMAGES) if x is None else x)


@pytest.fixture(params=torch_convolution.FORMS)
def sparse(request, monkeypatch):
    return made(request.param, monkeypatch)


@pytest.fixture
def computed(monkeypatch):
    """The names of the nodes whose chains were computed in their form."""
    found, own = [], torch_convolution.Folded.computed

    def spy(chain, arguments):
        found.append(tuple(torch_convolution.operator_name(node) for node in chain.covered))
        return own(chain, arguments)

    monkeypatch.setattr(torch_convolution.Folded, "computed", spy)
    return found


@pytest.mark.parametrize("batch", [3, 4])
def test_results(sparse, computed, batch):
    x = torch.randn(batch, *IMAGES[1:])
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), sparse.original(x))
    assert set(computed) == COVERED
    assert len(computed) == len(COVERED)


def test_results_lie_as_torch_has_them(sparse, computed):
    chain = torch_convolution.folded(sparse.graph)[0]
    arguments = [torch.randn(node.meta["val"].shape) for node in chain.inputs[1:]]
    arguments = [torch.randn(IMAGES), *(value.abs() for value in arguments)]
    found = chain.computed(arguments)
    assert found.is_contiguous()
    torch.testing.assert_close(found, chain.plain(*arguments)[0])


def kept_bytes(sparse):
    """The bytes of weights beside the parameters, after calls."""
    code = sparse.variants[0].eager.__closure__
    forward = next(cell.cell_contents for cell in code if hasattr(cell.cell_contents, "__globals__"))
    chains = [value for value in forward.__globals__.values() if isinstance(value, torch_convolution.Folded)]
    own = {parameter.data_ptr() for parameter in sparse.parameters()}
    made = [part for chain in chains for known in chain.structure.memory for part in known.results]
    return sum(part.nbytes for part in made if part is not None and part.data_ptr() not in own)


def test_report_and_prints_name_forms_and_bytes(sparse, request):
    form = f"by {request.node.callspec.params['sparse']}"
    with torch.no_grad():
        sparse(torch.randn(IMAGES))
    report = sparse.report
    assert [entry.form for entry in report.chains] == [form] * len(COVERED)
    beside = sum(entry.bytes_beside for entry in report.chains)
    assert beside == kept_bytes(sparse) > 0
    assert f"beside the parameters: {beside / 1024:.1f} KiB" in str(report)
    assert sum(entry.bytes_after for entry in report.conversions if entry.target == form) == beside
    assert all(entry.count == 1 for entry in report.conversions if entry.target == form)
    assert "as it is 2, by rows 1, by channels 1" in str(explain(sparse))
    text = graph_text(sparse.graph.nodes, {})
    assert text.count(f"# {form}, with what follows") == len(COVERED)


def test_disturbed_times_are_told():
    entry = ChainEntry("c", "", "conv2d", "by rows", {"as it is": 2.0, "by rows": 1.0}, is_agreed=False)
    assert entry.timed == "as it is 2, by rows 1 (other work disturbed it)"


def test_compact_memory_keeps_no_copies(monkeypatch, computed):
    sparse = made("channels", monkeypatch, memory="compact")
    with torch.no_grad():
        sparse(torch.randn(IMAGES))
    assert not computed
    assert not sparse.report.chains


def test_known_answers_take_no_example(monkeypatch):
    monkeypatch.setattr(torch_convolution, "example", lambda *asked: pytest.fail("an example is made"))
    assert made("rows", monkeypatch).report.chains


class Shown(nn.Module):
    """A convolution whose result others see, and one with a view behind it that its layout decides on."""

    def __init__(self, is_viewed=False):
        super().__init__()
        self.conv, self.last = nn.Conv2d(4, 16, 3, padding=1), nn.Linear(16, 3)
        self.is_viewed = is_viewed

    def forward(self, x):
        y = torch.relu(self.conv(x))
        rows = y.permute(0, 2, 3, 1)
        return y, self.last(rows.view(-1, 16) if self.is_viewed else rows.flatten(0, 2))


LAYOUTS = {"rows": torch.contiguous_format, "channels": torch.channels_last}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", torch_convolution.FORMS)
@pytest.mark.parametrize("weight", LAYOUTS)
@pytest.mark.parametrize("images", LAYOUTS)
def test_channels_that_are_neighbours_stay_neighbours(images, weight, form, monkeypatch):
    model = Shown(is_viewed="channels" in (images, weight)).to(memory_format=LAYOUTS[weight])
    x = torch.randn(IMAGES).to(memory_format=LAYOUTS[images])
    sparse = made(form, monkeypatch, model, x)
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), sparse.original(x))
        assert sparse(x)[0].stride() == model(x)[0].stride()


def test_layouts_of_calls_are_those_of_the_graph(computed, monkeypatch):
    model, x = Shown(), torch.randn(IMAGES)
    shown = made("rows", monkeypatch, model, x)
    one = torch.randn(3, 1, 9, 10)
    with torch.no_grad():
        for last in (x.to(memory_format=torch.channels_last), x[:1].to(memory_format=torch.channels_last)):
            computed.clear()
            assert shown(last)[0].stride() == model(last)[0].stride()
            assert not computed
        model.to(memory_format=torch.channels_last)
        shown.to(memory_format=torch.channels_last)
        assert shown(x)[0].stride() == model(x)[0].stride()
    assert torch_convolution.is_by_rows(one)
    assert not torch_convolution.is_by_rows(one.to(memory_format=torch.channels_last).contiguous())


def test_what_follows_results_sees_the_graph(sparse, computed):
    x = torch.randn(IMAGES)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    sparse(one).pow(2).sum().backward()
    sparse.original(other).pow(2).sum().backward()
    torch.testing.assert_close(one.grad, other.grad)
    with torch.no_grad():
        for transform in (
            lambda call: torch.func.vmap(call)(torch.stack([x, 2 * x])),
            lambda call: torch.func.jvp(call, (x,), (x.cos(),)),
            lambda call: call(x[:0]),
        ):
            torch.testing.assert_close(transform(sparse), transform(sparse.original))
    assert not computed


def test_new_parameters_and_statistics_are_folded(sparse):
    x = torch.randn(IMAGES)
    with torch.no_grad():
        before = sparse(x)
        for name in ("stem.0.weight", "stem.1.running_mean", "norm.running_var"):
            sparse.state_dict()[name].mul_(1.5)
            after = sparse(x)
            torch.testing.assert_close(after, sparse.original(x))
            assert not torch.allclose(before, after)
            before = after
        other = copy.deepcopy(sparse)
        other.alone.bias.add_(1)
        torch.testing.assert_close(sparse(x), before)
        assert not torch.allclose(other(x), before)


def test_statistics_that_torch_updates_without_a_version_are_folded(sparse):
    x = torch.randn(IMAGES)
    with torch.no_grad():
        for norm in (m for m in sparse._source.modules() if isinstance(m, nn.BatchNorm2d)):
            before, version = sparse(x), norm.running_mean._version
            norm.train()(torch.randn(4, norm.num_features, 5, 5) + 3)
            norm.eval()
            assert norm.running_mean._version == version
            assert not torch.allclose(sparse(x), before)
            torch.testing.assert_close(sparse(x), sparse.original(x), rtol=1e-4, atol=1e-4)


def test_without_a_faster_form_nodes_stay(monkeypatch, computed):
    sparse = made("", monkeypatch)
    with torch.no_grad():
        sparse(torch.randn(IMAGES))
    assert not computed
    assert not torch_convolution.folded(sparse.graph)


@pytest.mark.parametrize("change", ["double", "computed"])
def test_what_is_no_chain(change, monkeypatch):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.last = nn.Conv2d(4, 4, 3), nn.Linear(8, 4)

        def forward(self, x):
            weight = self.conv.weight * 2 if change == "computed" else self.conv.weight
            return self.last(torch.relu(torch.conv2d(x, weight, self.conv.bias)))

    monkeypatch.setattr(torch_convolution, "candidates", lambda *asked: pytest.fail("nothing is timed"))
    dtype = torch.float64 if change == "double" else torch.float32
    model, x = Layer().to(dtype).eval(), torch.randn(2, 4, 5, 10, dtype=dtype)
    with options.override(tune_seconds=0.01), torch.no_grad():
        sparse = apply(model, RECIPE, x)
        torch.testing.assert_close(sparse(x), sparse.original(x))


def test_what_is_timed(monkeypatch):
    chosen, own = [], autotune.compare
    monkeypatch.setattr(autotune, "recall", lambda question, sizes, answer, *rest, **_: answer())

    def compare(kind, *asked):
        found = own(kind, *asked)
        chosen.extend([found] if kind == "convolution" else [])
        return found

    monkeypatch.setattr(autotune, "compare", compare)
    with options.override(tune_seconds=0.02):
        sparse = apply(Images().eval(), RECIPE, torch.randn(IMAGES))
    assert [len(found.times) for found in chosen] == [1 + len(torch_convolution.FORMS)] * len(COVERED)
    assert len(torch_convolution.folded(sparse.graph)) == sum(found.name != "" for found in chosen)
    for found in chosen:
        assert (found.name == "") == (min(us for _, us in found.times[1:]) > 0.97 * found.us)
