"""Regions by another library's product: right results everywhere, and the dense weight for all that needs it."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.passes.call.region_call import RegionCall
from sparsify.passes.choose import autotune, linear_library, pack
from sparsify.passes.choose.autotune import Candidate, Winner

RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [{"targets": ["param:*.weight"], "role": "weight", "source": "given"}],
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # sums of 48 products in another order


def pruned(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*layers).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter *= torch.rand_like(parameter) < 0.3
    return model


def applied(model: nn.Module, x: torch.Tensor, library: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model with this library's products, as if they had been the fastest."""

    def found(kind: str, question: str, candidates: Any, **_: Any) -> Winner:
        formats, libraries = candidates()
        others = tuple((name, 1.0 + (name != library)) for name in libraries)
        return Winner(kind, (("torch", 2.0), (formats[0], 3.0), *others))

    offered = lambda draft, region, trials, libraries: ([*trials], libraries)  # noqa: E731
    monkeypatch.setattr(pack, "candidates", offered)
    monkeypatch.setattr(pack, "autotune", found)
    with options.override(tune_seconds=1.0):
        return sparsify.apply(model, RECIPE, x)


def regions(module: Any) -> list[RegionCall]:
    return [region for variant in module.variants for region in variant.regions]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("library", list(linear_library.LIBRARIES))
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU("tanh"), nn.Tanh()], ids=str)
def test_results(library, activation, monkeypatch):
    model = pruned(nn.Linear(48, 40), activation, nn.Linear(40, 24, bias=False))
    sparse = applied(model, torch.randn(3, 5, 48), library, monkeypatch)
    assert [region.library is not None for region in regions(sparse)] == [True, True]
    for shape in ((3, 5, 48), (2, 7, 48)):
        x = torch.randn(shape)
        torch.testing.assert_close(sparse(x), model(x), **CLOSE)
    strided = torch.randn(5, 48, 3).permute(2, 0, 1)
    torch.testing.assert_close(sparse(strided), model(strided), **CLOSE)
    assert "packed beside by" in str(sparse.report)
    assert "timed 3.0 us, torch's 2.0" in str(sparse.report)
    assert not sparse.report.weights  # the model holds them dense


@pytest.fixture
def model() -> nn.Sequential:
    return pruned(nn.Linear(48, 40), nn.ReLU())


@pytest.fixture
def sparse(model, monkeypatch) -> Any:
    return applied(model, torch.randn(6, 48), "onednn", monkeypatch)


def test_gradients_are_those_of_torch(model, sparse):
    x = torch.randn(6, 48, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    (found,) = torch.autograd.grad(sparse(x).square().sum(), x)
    torch.testing.assert_close(found, expected, **CLOSE)


def test_written_weights_are_packed_again(model, sparse):
    x = torch.randn(6, 48)
    sparse(x)
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(sparse(x), model(x), **CLOSE)
    state = {name: value / 3 for name, value in model.state_dict().items()}
    sparse.load_state_dict(state)
    torch.testing.assert_close(sparse(x), torch.relu(x @ state["0.weight"].t() + state["0.bias"]), **CLOSE)


def test_copies_and_other_dtypes(model, sparse):
    x = torch.randn(6, 48)
    before = model(x)
    twin = copy.deepcopy(sparse)
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(twin(x), before, **CLOSE)
    torch.testing.assert_close(sparse(x), model(x), **CLOSE)
    double = copy.deepcopy(model).double()
    torch.testing.assert_close(sparse.double()(x.double()), double(x.double()), **CLOSE)


def test_traces_export_and_inference(model, sparse):
    x = torch.randn(6, 48)
    compiled = torch.compile(sparse, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), **CLOSE)
    exported = torch.export.export(sparse, (x,)).module()
    torch.testing.assert_close(exported(x), model(x), **CLOSE)
    with torch.inference_mode():
        torch.testing.assert_close(sparse(x), model(x), **CLOSE)
    assert sparse(torch.empty(0, 48)).shape == (0, 40)


def test_transforms(model, sparse):
    x = torch.randn(4, 6, 48)
    torch.testing.assert_close(torch.func.vmap(sparse)(x), model(x), **CLOSE)


def test_it_is_explained(sparse):
    assert "packed beside by oneDNN" in str(sparsify.explain(sparse))


@pytest.mark.parametrize(("asked", "names"), [(["own", "torch"], []), (["own", "onednn"], ["onednn"])])
def test_recipes_say_which_may_be_chosen(model, monkeypatch, asked, names):
    offered = []

    def found(draft: Any, region: Any, trials: Any, libraries: Any) -> list[Candidate]:
        offered.append(libraries)
        return [Candidate("torch", lambda: None), Candidate(next(iter(trials)), lambda: None)]

    monkeypatch.setattr(pack, "candidates", found)
    monkeypatch.setattr(autotune, "recall", lambda question, sizes, answer, *_, **__: answer())
    with options.override(tune_seconds=1.0):
        recipe = {**RECIPE, "compile": {"backends": asked}}
        sparsify.apply(model, recipe, torch.randn(6, 48), verify=False)
    assert offered == [names]


def test_the_race_runs_what_will_run(model, tmp_path):
    """All contenders for real, for a moment: each has a time."""
    with options.override(tune_seconds=0.001, cache_dir=tmp_path):
        report = sparsify.apply(model, RECIPE, torch.randn(6, 48)).report
    told = [*(note for entry in report.regions for note in entry.notes), *(e.reason for e in report.dense)]
    assert "torch's CSR" in told[0]
    assert ", oneDNN " in told[0] or not torch.backends.mkldnn.is_available()
