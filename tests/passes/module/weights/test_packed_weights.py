"""Frozen weights are held packed: bytes, copies, states, modes, compiled and exported models, failures."""

import copy
import gc
import io
import itertools
import os
import pickle
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sparsify
from sparsify import options
from sparsify.errors import CompilerError, VerificationError
from sparsify.runtime.buffers import POOL
from sparsify.storage.tensor import SparseTensor

RULE: dict[str, Any] = {"targets": ["param:*weight"], "role": "weight", "source": "given"}
GIVEN: dict[str, Any] = {"schema": 1, "name": "given", "sparsify": [RULE]}
PRUNED: dict[str, Any] = {
    "schema": 1,
    "name": "pruned",
    "sparsify": [
        {"targets": ["param:*.weight"], "role": "weight", "prune": {"method": "magnitude", "sparsity": 0.9}}
    ],
}
CLOSE: dict[str, float] = {"rtol": 1e-4, "atol": 1e-5}


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with ReLU between them, nine of ten weights zero."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for columns, outputs in itertools.pairwise(sizes or (128, 192, 64)):
        layer = nn.Linear(columns, outputs)
        layer.weight.data *= torch.rand(outputs, columns) < 0.1
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def example(rows: int = 32) -> torch.Tensor:
    return torch.randn(rows, 128, generator=torch.Generator().manual_seed(rows))


@pytest.fixture(scope="module", autouse=True)
def untimed() -> Iterator[None]:
    """What is expected decides alone, not how busy the machine is."""
    with options.override(tune_seconds=0.0):
        yield


@pytest.fixture(scope="module")
def applied(untimed: None) -> tuple[nn.Sequential, Any]:
    """A model and its sparse form, for tests that leave both as they are."""
    model = mlp()
    return model, sparsify.apply(model, GIVEN, example())


def held(module: Any) -> dict[str, bool]:
    """By name whether a weight is packed."""
    return {
        name: isinstance(parameter, SparseTensor)
        for name, parameter in module.named_parameters()
        if name.endswith("weight")
    }


def reachable_bytes(root: Any) -> int:
    """The bytes of all tensor memory that an object leads to, each storage once."""
    seen: set[int] = set()
    storages: dict[int, int] = {}
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, type | types.ModuleType | types.FrameType):
            continue
        seen.add(id(found))
        if type(found) in (torch.Tensor, nn.Parameter):
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        if isinstance(found, types.FunctionType):  # not the globals of its module
            waiting += [cell.cell_contents for cell in found.__closure__ or ()]
        else:
            waiting += gc.get_referents(found)
    return sum(storages.values())


def test_weights_are_packed_and_the_model_keeps_its_own(applied):
    model, sparse = applied
    assert held(sparse) == {"0.weight": True, "2.weight": True}
    assert held(model) == {"0.weight": False, "2.weight": False}
    for rows in (32, 1, 7, 200):
        torch.testing.assert_close(sparse(example(rows)), model(example(rows)), **CLOSE)
    torch.testing.assert_close(sparse.original(example()), model(example()), **CLOSE)
    assert held(sparse) == {"0.weight": True, "2.weight": True}


def test_memory_is_what_the_report_says():
    model = mlp(128, 1536, 256)
    dense = sum(parameter.nbytes for parameter in model.parameters())
    sparse = sparsify.apply(model, GIVEN, example(2))
    before, after = sparse.report.parameter_bytes
    assert before == dense
    assert [entry.bytes_before for entry in sparse.report.weights] == [128 * 1536 * 4, 1536 * 256 * 4]
    biases = (1536 + 256) * 4
    assert after == sum(entry.bytes_after for entry in sparse.report.weights) + biases
    assert 0.1 * dense < after < 0.25 * dense  # wide vectors go with blocks, which hold zeros
    outputs = 2 * 2 * (1536 + 256) * 4  # kernels keep the shape of their last result, with its memory
    del model
    assert after <= reachable_bytes(sparse) <= after + outputs + 4096
    assert f"parameters: {before / 1024:.1f} KiB dense, {after / 1024:.1f} KiB held" in str(sparse.report)


def test_memory_of_pruned_copies_and_in_place():
    model = mlp()
    sparse = sparsify.apply(model, PRUNED, example(), inplace=True)
    assert held(model) == held(sparse) == {"0.weight": True, "2.weight": True}
    assert model[0].weight is sparse.get_parameter("0.weight")
    assert reachable_bytes(model) == sparse.report.parameter_bytes[1]
    torch.testing.assert_close(model(example()), sparse(example()), **CLOSE)


def test_states(applied):
    model, sparse = applied
    state = sparse.state_dict()
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    assert isinstance(sparse.state_dict(keep_vars=True)["0.weight"], SparseTensor)
    twin = copy.deepcopy(sparse)
    other = {name: value.roll(1) * 2 for name, value in state.items()}
    twin.load_state_dict(other)
    assert held(twin) == held(sparse)
    assert all(torch.equal(value, other[name]) for name, value in twin.state_dict().items())
    torch.testing.assert_close(twin(example()), twin.original(example()), **CLOSE)
    torch.testing.assert_close(sparse(example()), model(example()), **CLOSE)
    twin.load_state_dict(sparse.state_dict(keep_vars=True))
    torch.testing.assert_close(twin(example()), model(example()), **CLOSE)
    with pytest.raises(RuntimeError, match="size mismatch"):
        twin.load_state_dict({**state, "0.weight": torch.ones(3, 3)})
    torch.testing.assert_close(twin(example()), model(example()), **CLOSE)


def test_states_of_models_around_it(applied):
    model, sparse = applied
    around = nn.Sequential(copy.deepcopy(sparse))
    state = around.state_dict()
    assert torch.equal(state["0.2.weight"], model[2].weight)
    around.load_state_dict({name: value * 2 for name, value in state.items()})
    assert held(around[0]) == held(sparse)
    torch.testing.assert_close(around(example()), around[0].original(example()), **CLOSE)
    assert torch.equal(around.state_dict()["0.2.weight"], model[2].weight * 2)


def test_copies_and_pickles(applied):
    model, sparse = applied
    file = io.BytesIO()
    torch.save(sparse, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(sparse),
        pickle.loads(pickle.dumps(sparse)),
        torch.load(file, weights_only=False),
    ):
        assert held(twin) == held(sparse)
        torch.testing.assert_close(twin(example()), model(example()), **CLOSE)
        assert held(twin) == held(sparse)
    assert len(pickle.dumps(sparse)) < 0.5 * sparse.report.parameter_bytes[0]


def test_saved_models_are_dense_files(applied, tmp_path):
    model, sparse = applied
    loaded = sparsify.load(sparsify.save(sparse, tmp_path / "model"), mlp(), example())
    assert held(loaded) == held(sparse)
    torch.testing.assert_close(loaded(example()), model(example()), **CLOSE)


def test_conversions(applied):
    model, sparse = applied
    twin = copy.deepcopy(sparse).double()
    assert {parameter.dtype for parameter in twin.parameters()} == {torch.float64}
    torch.testing.assert_close(twin(example().double()), model.double()(example().double()), **CLOSE)
    assert held(twin) == held(sparse)
    torch.testing.assert_close(twin.float()(example()), model.float()(example()), **CLOSE)


def test_compiled_models(applied):
    model, sparse = applied
    compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager")
    x = example().requires_grad_()
    y = example().requires_grad_()
    torch.testing.assert_close(compiled(x), model(y), **CLOSE)
    compiled(x).square().sum().backward()
    model(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_exported_models(applied, strict):
    model, sparse = applied
    program = torch.export.export(sparse, (example(),), strict=strict)
    for found in (program, program.run_decompositions()):
        torch.testing.assert_close(found.module()(example()), model(example()), **CLOSE)


class Turned(nn.Module):
    """A weight that is multiplied from the right, or its transpose."""

    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.is_turned = is_turned
        weight = torch.randn(128, 64) * (torch.rand(128, 64) < 0.1)
        self.weight = nn.Parameter(weight.t().contiguous() if is_turned else weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.t() if self.is_turned else self.weight)


@pytest.mark.parametrize("is_turned", [False, True])
def test_weights_keep_their_shape(is_turned):
    model = Turned(is_turned).eval()
    sparse = sparsify.apply(model, GIVEN, example())
    assert held(sparse) == {"weight": True}
    assert sparse.weight.shape == model.weight.shape
    assert torch.equal(sparse.state_dict()["weight"], model.weight)
    torch.testing.assert_close(sparse(example(5)), model(example(5)), **CLOSE)


def test_tied_weights_stay_tied():
    model = mlp(128, 128, 128)
    model[2].weight = model[0].weight
    sparse = sparsify.apply(model, GIVEN, example())
    assert sparse.get_parameter("0.weight") is sparse.get_parameter("2.weight")
    assert held(sparse) == {"0.weight": True}
    state = sparse.state_dict()
    assert state["0.weight"] is state["2.weight"]
    torch.testing.assert_close(sparse(example()), model(example()), **CLOSE)


class AlsoDense(nn.Module):
    """A weight that is multiplied, and where a shift is given summed as no kernel does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = mlp(128, 192)[0]

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        y = self.linear(x)
        return y if shift is None else y + shift * self.linear.weight.cumsum(1)[:, 0]


@pytest.mark.filterwarnings("ignore:.*stays dense")
def test_what_is_needed_dense_too_is_reported():
    model, shift = AlsoDense().eval(), torch.ones(1)
    sparse = sparsify.apply(model, GIVEN, example())
    assert held(sparse) == {"linear.weight": True}
    torch.testing.assert_close(sparse(example(), shift), model(example(), shift), **CLOSE)
    assert held(sparse) == {"linear.weight": False}
    (entry,) = sparse.report.weights
    assert entry.format == "dense, and packed beside"
    assert entry.bytes_after > entry.bytes_before
    torch.testing.assert_close(sparse(example()), model(example()), **CLOSE)


@pytest.mark.sampled(2)
def test_training_makes_weights_dense_again():
    model = mlp()
    sparse = sparsify.apply(model, GIVEN, example())
    sparse.train()
    assert held(sparse) == {"0.weight": False, "2.weight": False}
    optimizer = torch.optim.SGD(sparse.parameters(), lr=0.1)
    sparse(example()).square().sum().backward()
    assert sparse.get_parameter("0.weight").grad is not None
    before = sparse(example())
    optimizer.step()
    assert not torch.allclose(sparse(example()), before)
    sparse.eval()
    torch.testing.assert_close(sparse(example()), sparse.original(example()), **CLOSE)
    assert held(model) == held(sparse) == {"0.weight": False, "2.weight": False}


def test_weights_that_another_model_trains_stay_dense():
    model = mlp()
    sparse = sparsify.apply(model, GIVEN, example(), trainable=True)
    assert sparse.get_parameter("0.weight") is model[0].weight
    assert held(sparse) == {"0.weight": False, "2.weight": False}


def test_other_inputs_share_the_packed_weights():
    model = mlp()
    sparse = sparsify.apply(model, GIVEN, example(), dynamic=())
    weight = sparse.get_parameter("0.weight")
    torch.testing.assert_close(sparse(example(1)), model(example(1)), **CLOSE)
    assert sparse.get_parameter("0.weight") is weight
    assert len(sparse._captures) == 2


def refuse(*_: Any, **__: Any) -> Any:
    raise CompilerError("no kernel today", "tomorrow")


def fail(*_: Any, **__: Any) -> Any:
    raise VerificationError("too far away", "nothing is close")


@pytest.mark.parametrize("recipe", [GIVEN, PRUNED], ids=["given", "pruned"])
@pytest.mark.parametrize("late", [False, True])
def test_failures_leave_the_model_as_it_is(recipe, late, monkeypatch):
    model = mlp()
    before = {name: (parameter, parameter.clone()) for name, parameter in model.named_parameters()}
    if late:
        monkeypatch.setattr("sparsify.passes.module.check.verify.compare", fail)
    else:
        monkeypatch.setattr(import_module("sparsify.passes.emit.emit"), "prepare_all", refuse)
    with pytest.raises((CompilerError, VerificationError)):
        sparsify.apply(model, recipe, example(), inplace=True, strict=True)
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])


def test_kernels_that_fail_later(applied):
    model, sparse = applied
    for region in sparse.variants[0].regions:
        region.failure = CompilerError("lost", "nothing")
    try:
        torch.testing.assert_close(sparse(example()), model(example()), **CLOSE)
    finally:
        for region in sparse.variants[0].regions:
            region.failure = None


def test_models_that_cannot_be_copied_keep_dense_weights():
    model = mlp()
    model.lock = threading.Lock()
    sparse = sparsify.apply(model, GIVEN, example())
    assert held(sparse) == {"0.weight": False, "2.weight": False}
    assert "cannot be copied" in sparse.report.warnings[0]
    assert sparse.report.weights[0].bytes_after > sparse.report.weights[0].bytes_before
    torch.testing.assert_close(sparse(example()), model(example()), **CLOSE)
    assert held(sparsify.apply(model, GIVEN, example(), inplace=True)) == {"0.weight": True, "2.weight": True}


@pytest.mark.sampled(3)
def test_intermediates_are_reused_and_results_are_not():
    POOL.clear()
    model = mlp(128, 512, 512, 512, 512)
    x = example(128)
    sparse = sparsify.apply(model, GIVEN, x)
    result = 128 * 512 * 4
    assert sparse.report.peak_bytes == 2 * result  # a layer's input and its result
    assert sparse.report.dense_peak_bytes == 2 * result
    assert "at most 512.0 KiB at a time, the dense model's 512.0 KiB" in str(sparse.report)
    with torch.no_grad():
        expected = model(x)
        sparse(x)
        before = POOL.held_bytes
        kept = sparse(x)
        for _ in range(5):
            sparse(example(128) * 2)
        assert POOL.held_bytes <= before + result
        torch.testing.assert_close(kept, expected, **CLOSE)
    inputs = x.clone().requires_grad_()
    y = sparse(inputs)
    for _ in range(3):
        sparse(x * 3)  # what autograd saved stays
    y.square().sum().backward()
    wanted = x.clone().requires_grad_()
    model(wanted).square().sum().backward()
    torch.testing.assert_close(inputs.grad, wanted.grad, rtol=1e-4, atol=1e-4)


RESIDENT = """
import ctypes, gc
import torch
from torch import nn
import sparsify

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

def apply(columns, outputs):
    rule = {"targets": ["param:*weight"], "prune": {"method": "magnitude", "sparsity": 0.95}}
    model = nn.Sequential(nn.Linear(columns, outputs)).eval()
    recipe = {"schema": 1, "name": "pruned", "sparsify": [{**rule, "role": "weight"}]}
    return sparsify.apply(model, recipe, torch.randn(16, columns), inplace=True)

apply(1024, 4096)  # what is imported and measured once stays
before = resident()
sparse = apply(1024, 4096)
print(resident() - before, *sparse.report.parameter_bytes)
"""


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what is resident")
def test_resident_memory_of_a_large_layer():
    environment = {**os.environ, "SPARSIFY_TUNE_SECONDS": "0"}
    found = subprocess.run(
        [sys.executable, "-c", RESIDENT], env=environment, capture_output=True, text=True, check=True
    )
    grown, dense, held = (int(word) for word in found.stdout.split())
    assert held < 0.1 * dense
    assert grown < 0.3 * dense  # the allocator keeps some pages of what was freed
