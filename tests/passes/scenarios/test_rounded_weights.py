"""Weights whose values are stored as bfloat16, float16 or int8: right numbers, and models like any other."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify import recipe as recipes
from sparsify.errors import CompilerError, DtypeError, RecipeError
from sparsify.passes.rules.prune import prune
from sparsify.storage.tensor import SparseTensor

DTYPES = ("bfloat16", "float16", "int8")
WAYS: dict[str, Any] = {
    "unstructured": {"method": "magnitude", "sparsity": 0.8},
    "groups": {"method": "magnitude", "pattern": "2:4"},
    "blocks": {"method": "block_magnitude", "sparsity": 0.75, "pattern": {"block": [8, 1]}},
}


class Layers(nn.Module):
    """A linear layer for each way to prune, all of the same input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for way in WAYS:
            self.add_module(way, nn.Linear(72, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.relu(self.get_submodule(way)(x)) for way in WAYS], -1)


def recipe(dtype: str, ways: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Weights pruned in each way and stored so, wherever that saves memory."""
    rules = [
        {"targets": [f"param:{way}.weight"], "role": "weight", "prune": how, "dtype": dtype, **more}
        for way, how in (WAYS if ways is None else ways).items()
    ]
    return {"schema": 1, "name": "rounded", "sparsify": rules, "compile": {"backends": ["own"]}}


def one(dtype: str, **more: Any) -> dict[str, Any]:
    """The same for the first layer alone."""
    return recipe(dtype, {"unstructured": WAYS["unstructured"]}, **more)


def example(rows: int = 16, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, 72, dtype=dtype, generator=torch.Generator().manual_seed(rows))


@pytest.fixture(scope="module", autouse=True)
def untimed() -> Iterator[None]:
    """What is expected decides alone, not how busy the machine is."""
    with options.override(tune_seconds=0.0):
        yield


@pytest.fixture(scope="module", params=DTYPES)
def applied(request, untimed):
    """A dtype, the model, its sparse form, and a float64 model with the rounded weights."""
    dtype, model = request.param, Layers().eval()
    sparse = sparsify.apply(model, recipe(dtype), example())
    rounded = copy.deepcopy(model)
    rounded.load_state_dict(sparse.state_dict())
    return dtype, model, sparse, rounded.double()


def held(module: nn.Module) -> dict[str, torch.dtype]:
    """By name the dtypes of packed weights."""
    return {name: p.dtype for name, p in module.named_parameters() if isinstance(p, SparseTensor)}


def assert_right(sparse: Any, rounded: nn.Module, rows: int) -> None:
    """Sums are float32 ones: no result is further away than their rounding."""
    x = example(rows)
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), rounded(x.double()).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
def test_right_for_all_rows(applied):
    dtype, _, sparse, rounded = applied
    for rows in (16, 1, 130):
        assert_right(sparse, rounded, rows)
    narrow = {f"{way}.weight": getattr(torch, dtype) for way in WAYS}
    assert held(sparse) == narrow


def test_states_are_those_of_the_pruned_model_rounded(applied):
    dtype, model, sparse, _ = applied
    pruned = prune(model, recipes.load(recipe("same")))
    state = sparse.state_dict()
    assert list(state) == list(model.state_dict())
    for name, weight in pruned.named_parameters():
        assert state[name].dtype == torch.float32
        if not name.endswith("weight"):
            assert torch.equal(state[name], weight)
        elif dtype == "int8":
            step = weight.abs().amax(1, keepdim=True) / 127
            assert bool(((state[name] - weight).abs() <= 0.501 * step).all())
        else:
            assert torch.equal(state[name], weight.to(getattr(torch, dtype)).float())


def test_report(applied):
    dtype, model, _, _ = applied
    sparse = sparsify.apply(model, recipe(dtype), example())  # with one graph: others may add formats beside
    report = sparse.report
    for entry, rounding in zip(report.weights, report.roundings, strict=True):
        assert entry.format.endswith(f", {dtype}")
        assert rounding.name == entry.name
        assert rounding.dtype == dtype
        pruned = prune(model, recipes.load(recipe("same"))).get_parameter(entry.name)
        difference = (sparse.state_dict()[entry.name] - pruned).detach()
        assert rounding.largest == pytest.approx(float(difference.abs().max()), rel=1e-4)
        assert rounding.relative == pytest.approx(float(difference.norm() / pruned.detach().norm()), rel=1e-3)
        parameter = sparse.get_parameter(entry.name)
        arrays = [parameter._vals, *parameter._pattern.arrays()]
        scales = 4 * 48 if dtype == "int8" else 0
        assert entry.bytes_after == sum(array.nbytes for array in arrays) + scales
        assert entry.bytes_before == 4 * 48 * 72
    assert report.parameter_bytes == (
        sum(parameter.nbytes for parameter in model.parameters()),
        sum(entry.bytes_after for entry in report.weights) + 3 * 48 * 4,
    )
    assert dtype in str(report)


WHOLE = pytest.mark.parametrize("applied", ["int8"], indirect=True)  # whose scales have to follow, too


@WHOLE
def test_other_weights_are_rounded_when_they_are_loaded(applied):
    _, _, sparse, rounded = applied
    twin = copy.deepcopy(sparse)
    other = {name: value.roll(1) * 2.7 for name, value in rounded.float().state_dict().items()}
    rounded.double()
    twin.load_state_dict(other)
    now = copy.deepcopy(rounded)
    now.load_state_dict(twin.state_dict())
    assert_right(twin, now, 16)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(value, other[name], rtol=0.02, atol=0.01)
    assert_right(sparse, rounded, 16)  # the copy has its own


USES = {
    "copied": lambda sparse, folder: copy.deepcopy(sparse),
    "pickled": lambda sparse, folder: pickle.loads(pickle.dumps(sparse)),
    "compiled": lambda sparse, folder: torch.compile(sparse, fullgraph=True, backend="aot_eager"),
    "exported": lambda sparse, folder: torch.export.export(sparse, (example(),)).module(),
    "saved": lambda sparse, folder: sparsify.load(sparsify.save(sparse, folder), Layers(), example()),
    "converted": lambda sparse, folder: copy.deepcopy(sparse).double().float(),
    "kept": lambda sparse, folder: loaded(copy.deepcopy(sparse), sparse.state_dict(keep_vars=True)),
    "around": lambda sparse, folder: nn.Sequential(sparse),
}


def loaded(sparse: Any, state: Any) -> Any:
    sparse.load_state_dict(state)
    return sparse


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@WHOLE
@pytest.mark.parametrize("use", USES)
def test_used_as_any_model(applied, use, tmp_path):
    _, _, sparse, rounded = applied
    used = USES[use](sparse, tmp_path / "model")
    assert_right(used, rounded, 16)
    if use not in ("compiled", "exported", "around"):
        assert held(used) == held(sparse)
    state = {name.removeprefix("0."): value for name, value in used.state_dict().items()}
    if use not in ("compiled", "exported"):
        assert all(torch.equal(value, state[name]) for name, value in sparse.state_dict().items())


@WHOLE
def test_gradients_of_inputs(applied):
    _, _, sparse, rounded = applied
    x = example().requires_grad_()
    wanted = example().double().requires_grad_()
    sparse(x).square().sum().backward()
    rounded(wanted).square().sum().backward()
    torch.testing.assert_close(x.grad, wanted.grad.float(), rtol=1e-4, atol=1e-4)


@WHOLE
def test_kernels_that_fail_later(applied):
    _, _, sparse, rounded = applied
    regions = [region for variant in sparse.variants for region in variant.regions]
    for region in regions:
        region.failure = CompilerError("lost", "nothing")
    try:
        assert_right(sparse, rounded, 16)
    finally:
        for region in regions:
            region.failure = None


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "dtype"), [(torch.bfloat16, "same"), (torch.float16, "bfloat16")], ids=["bfloat16", "float16"]
)
def test_models_in_16_bits(kind, dtype):
    model = Layers().eval().to(kind)
    sparse = sparsify.apply(model, recipe(dtype), example(dtype=kind))
    narrow = kind if dtype == "same" else getattr(torch, dtype)
    assert held(sparse) == {f"{way}.weight": narrow for way in WAYS}
    rounded = copy.deepcopy(model)
    rounded.load_state_dict(sparse.state_dict())
    rounded.double()
    with torch.no_grad():
        for rows in (16, 1):
            x = example(rows, kind)
            y = sparse(x)
            assert y.dtype == kind
            # Sums are float32 and rounded once: half a step of the result, which torch's own sums may be away from.
            step = torch.finfo(kind).eps
            torch.testing.assert_close(y.double(), rounded(x.double()), rtol=0.501 * step, atol=1e-5)
    inputs = [example(dtype=kind).requires_grad_() for _ in range(2)]
    for run, x in zip((sparse, sparse.original), inputs, strict=True):
        run(x).float().square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=0.05, atol=0.05)


def test_models_in_16_bits_train_densely():
    model = Layers().eval().bfloat16()
    with pytest.warns(RuntimeWarning, match=r"nothing of this model in torch\.bfloat16 runs in kernels"):
        sparse = sparsify.apply(model, recipe("same"), example(dtype=torch.bfloat16), trainable=True)
    assert sparse.report.regions == []
    assert {entry.reason for entry in sparse.report.dense} == {
        "torch.bfloat16 is supported for products with weights that get no gradients"
    }


class Turned(nn.Module):
    """A weight that is multiplied from the right, or its transpose."""

    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.is_turned = is_turned
        self.weight = nn.Parameter(torch.randn(72, 72))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.t() if self.is_turned else self.weight)


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_sums_over_rows_that_have_scales_stay_dense():
    rules = recipe("int8", {"x": WAYS["unstructured"]}, targets=["param:weight"])
    for is_turned in (True, False):
        sparse = sparsify.apply(Turned(is_turned).eval(), rules, example())
        assert len(sparse.report.regions) == is_turned
        torch.testing.assert_close(sparse(example()), sparse.original(example()), rtol=1e-4, atol=1e-4)
    (entry,) = sparse.report.dense
    assert "matmul sums over the rows of weight, which have a scale each" in entry.reason


def test_given_weights_are_rounded():
    model = Layers().eval()
    rule = {"targets": ["param:unstructured.*"], "role": "weight", "source": "given", "dtype": "int8"}
    sparse = sparsify.apply(model, {"schema": 1, "name": "given", "sparsify": [rule]}, example())
    assert [entry.name for entry in sparse.report.roundings] == ["unstructured.weight"]
    weight = sparse.state_dict()["unstructured.weight"]
    assert 0 < float((weight - model.unstructured.weight).detach().abs().max()) < 1e-3
    assert sparse.get_parameter("unstructured.bias") is model.unstructured.bias


def test_in_place():
    model = Layers().eval()
    with pytest.raises(RecipeError, match=r"`dtype: int8` with inplace=True.*leave out inplace"):
        sparsify.apply(model, one("int8"), example(), inplace=True)
    assert held(model) == {}
    sparse = sparsify.apply(model, one("bfloat16"), example(), inplace=True)
    assert held(model) == held(sparse) == {"unstructured.weight": torch.bfloat16}
    torch.testing.assert_close(model(example()), sparse(example()), rtol=1e-5, atol=1e-5)


def test_states_without_scales():
    sparse = sparsify.apply(Layers().eval(), one("int8"), example())
    whole = {**sparse.state_dict(), "unstructured.weight": sparse.get_parameter("unstructured.weight")}
    before = sparse(example())
    with pytest.raises(DtypeError, match="without the scales of its rows"):
        sparse.load_state_dict(whole)
    assert torch.equal(sparse(example()), before)


@pytest.mark.parametrize(
    ("rule", "arguments", "words"),
    [
        (one("int4"), {}, "'int4' is not known; did you mean 'int8'"),
        (one("bfloat16"), {"trainable": True}, "stores param:unstructured.weight rounded"),
        (
            one("bfloat16", prune=None, source="given", targets=["input:x"]),
            {},
            "rounds parameters, and input:x",
        ),
    ],
)
def test_what_is_refused(rule, arguments, words):
    with pytest.raises(RecipeError, match=words):
        sparsify.apply(Layers().eval(), rule, example(), **arguments)


def test_what_a_dtype_does_not_hold():
    model = Layers().eval()
    model.unstructured.weight.data[0, 0] = 1e6
    with pytest.raises(RecipeError, match=r"unstructured.weight: values of float16.*as large as 1e\+06"):
        sparsify.apply(model, one("float16"), example())
