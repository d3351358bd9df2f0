"""A sparse model in the place of its model: signature, attributes, methods, hooks, changes and conversions."""

import copy
import inspect
import pickle
import typing
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsify
from sparsify.errors import CaptureError

RULE = {
    "targets": ["param:*.weight"],
    "types": ["Linear"],
    "ties": "share",
    "prune": {"method": "magnitude", "sparsity": 0.8},
}
RECIPE = {"schema": 1, "name": "pruned", "sparsify": [RULE]}


class Scaled(nn.Module):
    """A model with constants, methods and modules of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16)])
        self.again = self.first
        self.scale = 1.0
        self.settings = {"width": 32}

    def forward(self, x: Tensor, flag: bool = False) -> Tensor:
        return self.layers[0](self.last(torch.relu(self.again(self.first(x))))) * self.scale

    @property
    def width(self) -> int:
        return self.settings["width"]

    def predict(self, x: Tensor) -> Tensor:
        return self(x).argmax(-1)

    def doubled(self, x: Tensor) -> Tensor:
        return self(x, flag=True) * 2

    def encode(self, x: Tensor) -> Tensor:
        return self.first(x)

    def rescale(self, scale: float) -> "Scaled":
        self.scale = scale
        return self

    def reset(self) -> None:
        with torch.no_grad():
            self.first.weight.fill_(0.5)

    def widen(self) -> None:
        self.last = nn.Linear(32, 16)

    def freeze(self) -> None:
        self.first.eval()

    def wrap(self) -> None:
        self.last = nn.Sequential(self.last, nn.Tanh())

    def head(self) -> nn.Module:
        return self.last


X = torch.randn(4, 32)


@pytest.fixture(scope="module")
def made() -> tuple[Scaled, sparsify.SparseModule]:
    model = Scaled().eval()
    return model, sparsify.apply(model, RECIPE, X)


@pytest.fixture
def sparse(made: Any) -> sparsify.SparseModule:
    return copy.deepcopy(made[1])


def matches_source(sparse: sparsify.SparseModule) -> None:
    """Kernels run, and compute what the source model does."""
    torch.testing.assert_close(sparse(X), sparse.original(X), rtol=1e-4, atol=1e-5)
    assert sparse.report.regions


def test_signature(made: Any) -> None:
    model, sparse = made
    assert inspect.signature(sparse.forward) == inspect.signature(model.forward)
    assert inspect.signature(sparse) == inspect.signature(model.forward)
    assert typing.get_type_hints(sparse.forward) == typing.get_type_hints(model.forward)


def test_attributes(made: Any) -> None:
    model, sparse = made
    assert (sparse.scale, sparse.width, sparse.settings) == (1.0, 32, {"width": 32})
    assert sparse.first.in_features == 32
    assert sparse.layers[0] is sparse.get_submodule("layers.0")
    assert (len(sparse.layers), list(sparse.layers)) == (1, [sparse.layers[0]])
    assert sparse.head() is sparse.last
    assert [name for name, _ in sparse.named_modules()] == [name for name, _ in model.named_modules()]
    assert not hasattr(sparse, "nope")
    with pytest.raises(AttributeError, match="'Scaled' object has no attribute 'nope'"):
        sparse.nope  # noqa: B018


def test_methods_call_the_sparse_model(sparse: sparsify.SparseModule) -> None:
    ran: list[int] = []
    sparse.register_forward_hook(lambda *_: ran.append(1))
    sparse.report.regions[0].measured_us = None
    assert torch.equal(sparse.predict(X), sparse.original(X).argmax(-1))
    matches_source(sparse)


def test_methods_that_run_modules_warn_once(sparse: sparsify.SparseModule) -> None:
    with pytest.warns(RuntimeWarning, match="encode runs modules of the source model densely"):
        found = sparse.encode(X)
    state = sparse.state_dict()
    torch.testing.assert_close(found, nn.functional.linear(X, state["first.weight"], state["first.bias"]))
    sparse.encode(X)
    with pytest.warns(RuntimeWarning, match="first is called by itself"):
        torch.testing.assert_close(sparse.first(X), found)


@pytest.mark.parametrize("how", ["method", "attribute"])
def test_constants_that_change_are_captured_anew(made: Any, sparse: Any, how: str) -> None:
    before = sparse(X)
    if how == "method":
        assert sparse.rescale(3.0) is sparse
    else:
        sparse.scale = 3.0
    assert (sparse.scale, made[0].scale) == (3.0, 1.0)
    torch.testing.assert_close(sparse(X), before * 3, rtol=1e-4, atol=1e-5)


def test_constants_that_change_between_a_capture_and_its_call(made: Any, sparse: Any) -> None:
    def change(*args: Any) -> Any:
        found = type(sparse).variant_for(sparse, *args)
        sparse.scale = 3.0
        return found

    sparse.__dict__["variant_for"] = change
    before = sparse(X)
    del sparse.__dict__["variant_for"]
    torch.testing.assert_close(sparse(X), before * 3, rtol=1e-4, atol=1e-5)


def test_methods_that_write_into_packed_weights(sparse: sparsify.SparseModule) -> None:
    assert not isinstance(sparse.state_dict()["first.weight"], sparsify.SparseTensor)
    sparse.reset()
    assert bool((sparse.state_dict()["first.weight"] == 0.5).all())
    matches_source(sparse)


def test_methods_that_replace_modules(sparse: sparsify.SparseModule) -> None:
    before = sparse.last
    sparse.widen()
    assert sparse.last is before
    assert sparse.state_dict()["last.weight"].count_nonzero() == 32 * 16
    matches_source(sparse)


def test_methods_that_put_modules_into_new_ones(sparse: sparsify.SparseModule) -> None:
    before = sparse.state_dict()["last.weight"]
    sparse.wrap()
    assert torch.equal(sparse.state_dict()["last.0.weight"], before)
    assert all(isinstance(part, nn.Module) for part in sparse._source.modules())
    matches_source(sparse)


def test_packed_weights_under_other_names(sparse: sparsify.SparseModule) -> None:
    before = sparse.state_dict()["again.weight"]
    sparse.first = nn.Linear(32, 32)
    assert "again.weight" in sparse._weights.packed()
    assert type(sparse.state_dict()["again.weight"]) is Tensor
    matches_source(sparse)
    torch.testing.assert_close(sparse.state_dict()["again.weight"], before)


def test_captures_within_methods(sparse: sparsify.SparseModule) -> None:
    """The source model has its packed weights while a method runs, in which calls of other kinds are captured."""
    found = sparse.doubled(X)
    torch.testing.assert_close(found, sparse.original(X, True) * 2, rtol=1e-4, atol=1e-5)
    assert len(sparse.variants) == 2
    matches_source(sparse)


def test_modules_and_parameters_that_are_replaced(sparse: sparsify.SparseModule) -> None:
    sparse.layers[0].bias = nn.Parameter(torch.full((16,), 7.0))
    matches_source(sparse)
    sparse.last = nn.Linear(32, 16)
    assert sparse.last.weight.count_nonzero() == 32 * 16
    matches_source(sparse)


def test_the_given_model_keeps_what_is_replaced_in_the_sparse_one() -> None:
    model = Scaled().eval()
    sparse = sparsify.apply(model, {"schema": 1, "name": "none"}, X)
    last = model.last
    sparse.last = nn.Linear(32, 16)
    sparse.scale = 2.0
    assert model.last is last
    assert model.scale == 1.0
    torch.testing.assert_close(sparse(X), sparse.original(X))
    assert sparse.first.weight is model.first.weight


def test_modes_that_methods_set(sparse: sparsify.SparseModule) -> None:
    sparse.train()
    sparse.freeze()
    assert [sparse.training, sparse.first.training, sparse.last.training] == [True, False, True]


def test_hooks_of_modules_run(made: Any, sparse: sparsify.SparseModule) -> None:
    ran: list[Any] = []
    handle = sparse.last.register_forward_hook(lambda module, _, found: ran.append(module) or found + 1)
    with pytest.warns(RuntimeWarning, match="last have hooks: while they have, the source model runs"):
        changed = sparse(X)
    assert ran == [sparse.last]
    assert not torch.allclose(changed, made[1](X))
    handle.remove()
    with warnings.catch_warnings(action="error"):
        torch.testing.assert_close(sparse(X), made[1](X))
    assert len(ran) == 1


@pytest.mark.parametrize("is_removed", [True, False])
def test_hooks_of_modules_that_are_replaced(sparse: sparsify.SparseModule, is_removed: bool) -> None:
    sparse.last = nn.Sequential(nn.Linear(32, 16), nn.Tanh())
    handle = sparse.last[1].register_forward_hook(lambda *_: None)
    if is_removed:
        handle.remove()
    sparse.last = nn.Linear(32, 16)
    assert not sparse._hooks.paths
    matches_source(sparse)


def test_hooks_that_were_removed_cost_nothing(sparse: sparsify.SparseModule) -> None:
    sparse.last.register_forward_hook(lambda *_: None).remove()
    assert sparse._hooks.paths == ["last"]
    kept = sparse.first.register_full_backward_hook(lambda *_: None)
    with torch.no_grad():
        sparse(X)
    assert sparse._hooks.paths == ["first"]
    kept.remove()
    sparse(X)
    assert not sparse._hooks.paths


@pytest.mark.sampled(2)
def test_hooks_for_gradients_run() -> None:
    sparse = sparsify.apply(Scaled(), RECIPE, X)
    ran: list[int] = []
    sparse.last.register_full_backward_hook(lambda *_: ran.append(1))
    sparse.first.register_full_backward_pre_hook(lambda *_: ran.append(2))
    with torch.no_grad(), warnings.catch_warnings(action="error"):
        sparse(X)
    with pytest.warns(RuntimeWarning, match="have hooks"):
        sparse(X.clone().requires_grad_()).sum().backward()
    assert ran == [1, 2, 2]


def test_hooks_that_change_gradients_of_the_source_model_run() -> None:
    model = Scaled()
    model.last.register_full_backward_hook(lambda _, grads, __: tuple(grad * 0 for grad in grads))
    sparse = sparsify.apply(model, {"schema": 1, "name": "none"}, X)
    with pytest.warns(RuntimeWarning, match="last have hooks"):
        sparse(X).sum().backward()
    assert model.first.weight.grad is not None
    assert model.first.weight.grad.abs().max() == 0


def test_hooks_are_refused_where_nothing_runs_densely() -> None:
    sparse = sparsify.apply(Scaled().eval(), RECIPE, X, strict=True)
    sparse.last.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(CaptureError, match="last have hooks, with which the source model runs"):
        sparse(X)


def test_hooks_of_the_source_model_are_in_the_graph() -> None:
    model = Scaled().eval()
    model.last.register_forward_hook(lambda _, __, found: found * 2)
    with pytest.warns(RuntimeWarning, match="hooks of last run while the model is captured"):
        sparse = sparsify.apply(model, {"schema": 1, "name": "none"}, X)
    torch.testing.assert_close(sparse(X), model(X))


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm])
def test_weights_that_hooks_compute(norm: Any) -> None:
    model = nn.Sequential(norm(nn.Linear(32, 8)), nn.ReLU()).eval()
    sparse = sparsify.apply(model, {"schema": 1, "name": "none"}, X)
    torch.testing.assert_close(sparse(X), model(X))


def test_tensors_in_place_of_parameters_where_the_source_model_runs(sparse: Any) -> None:
    given = {"last.bias": torch.ones(16), "first.weight": torch.ones(32, 32)}
    wanted = torch.func.functional_call(sparse, given, (X,))
    dense = Scaled().eval()
    dense.load_state_dict(sparse.state_dict())
    torch.testing.assert_close(wanted, torch.func.functional_call(dense, given, (X,)), rtol=1e-4, atol=1e-4)
    sparse.last.register_forward_hook(lambda *_: None)
    with pytest.warns(RuntimeWarning, match="last have hooks"):
        found = torch.func.functional_call(sparse, given, (X,))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_copies(made: Any, tmp_path: Path) -> None:
    sparse = made[1]
    for other in (copy.deepcopy(sparse), copy.copy(sparse), pickle.loads(pickle.dumps(sparse))):
        torch.testing.assert_close(other(X), sparse(X))
        assert other.last.out_features == 16
        assert other.first is other.again
    part = copy.deepcopy(sparse.last)
    with pytest.raises(CaptureError, match="part of a sparse model that is gone"):
        part(X)


def test_averages(made: Any) -> None:
    sparse = made[1]
    average = torch.optim.swa_utils.AveragedModel(sparse)
    average.update_parameters(sparse)
    torch.testing.assert_close(average(X), sparse(X))


def test_containers() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    sparse = sparsify.apply(model, RECIPE, X)
    assert (len(sparse), sparse[0], list(sparse)) == (3, sparse.get_submodule("0"), list(sparse.children()))
    assert sparse[2].out_features == 8
    assert not hasattr(made, "__len__")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_runs_kernels(training: bool, dtype: torch.dtype) -> None:
    model = Scaled().train(training)
    sparse = sparsify.apply(model, RECIPE, X)
    dense = Scaled().train(training)
    dense.load_state_dict(sparse.state_dict())
    exact = dense(X)
    ran: list[Any] = []
    sparse.original = lambda *_, **__: ran.append(1)  # type: ignore[method-assign]
    with torch.autocast("cpu", dtype=dtype), warnings.catch_warnings(action="error"):
        wanted, found = dense(X), sparse(X)
        again = sparse(X)
    assert found.dtype == wanted.dtype == dtype
    assert not ran
    assert torch.equal(found, again)
    assert (found - exact).abs().max() <= (wanted - exact).abs().max() + torch.finfo(dtype).eps
    if training:
        with torch.autocast("cpu", dtype=dtype):
            sparse(X).sum().backward()
        dense(X).sum().backward()
        kept = sparse.state_dict()["first.weight"] != 0
        grad = sparse.get_parameter("first.weight").grad
        torch.testing.assert_close(grad, dense.first.weight.grad * kept, rtol=1e-2, atol=1e-3)


def test_autocast_after_changes() -> None:
    class Widened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.is_wide = nn.Linear(32, 16), True

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x).float() if self.is_wide else self.last(x)

    sparse = sparsify.apply(Widened().eval(), RECIPE, X)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert sparse(X).dtype == torch.float32
        sparse.is_wide = False
        assert [sparse(X).dtype, sparse(X).dtype] == [torch.bfloat16, torch.bfloat16]


def test_autocast_that_a_model_needs() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.bfloat16())

    model = Mixed().eval()
    sparse = sparsify.apply(model, {"schema": 1, "name": "none"})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.warns(RuntimeWarning, match="autocast is for models in float32"):
            found = sparse(X)
        assert torch.equal(found, model(X))
        assert torch.equal(sparse(X), found)
